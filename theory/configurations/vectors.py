"""The biases, norm parameters and tables that each model family learns in addition to its weight matrices.

Source: `named_parameters` of the classes of transformers 5.24 with their own defaults; nanoGPT's `bias=True`.
"""

from collections.abc import Sequence

from theory.configurations.reading import Note
from theory.stack import Stack
from theory.stack.weights import weight_shapes

_ATTENTION = ("WQ", "WK", "WV", "WO")
_UNITS = ("WG", "W1", "W2")

_FAMILIES = {
    (*_ATTENTION, *_UNITS): (
        "bert biogpt camembert data2vec-text distilbert electra ernie gpt2 gpt_bigcode gpt_neox jais2 megatron-bert "
        "nanogpt openai-gpt opt persimmon phi roberta roberta-prelayernorm starcoder2 xglm xlm-roberta xlm-roberta-xl"
    ),
    ("WO", *_UNITS): "gpt_neo",
    _UNITS: "codegen gptj",
    ("WQ", "WK", "WV"): "qwen2 seed_oss",
    (): (
        "arcee cohere cohere2 cwm ernie4_5 exaone exaone4 falcon gemma gemma2 gemma3_text granite helium "
        "hunyuan_v1_dense internlm3 llama ministral ministral3 mistral nemotron olmo olmo2 olmo3 qwen3 "
        "stablelm vaultgemma"
    ),
}  # fmt: skip
BIASES = {family: roles for roles, families in _FAMILIES.items() for family in families.split()}
"""The roles of the matrices that have a bias, by `model_type`; for families that are missing here it is not known."""

# Norms without a bias that are LayerNorm's, and without gains.
_WITHOUT_SHIFT = ("cohere", "cohere2")
_WITHOUT_GAIN = ("olmo",)
# What asks for biases or against them.
_SWITCHES = {"attention_bias": _ATTENTION, "mlp_bias": _UNITS, "qkv_bias": _ATTENTION[:3]}


def learned_vectors(stack: Stack, family: str | None, notes: Sequence[Note] = ()) -> tuple[str, ...]:
    """Return the names of the biases, norm parameters and tables that a model of a given family learns.

    The names are those of `NoiseScale.vectors`.

    Args:
        stack: the network.
        family: `model_type` of the family; None if it is not known, and only matrices are assumed to be learned.
        notes: notes on the network's configuration, which may switch biases on or off.
    """
    if family is None:
        return ()
    roles = set(BIASES.get(family, ()))
    for note in notes:
        switched = _SWITCHES.get(note.field, ())
        roles = roles | set(switched) if note.value is True else roles - set(switched)
        if note.field == "bias" and note.value is False:
            roles = set()
    names = [f"bias_{role}" for role in weight_shapes(stack) if role in roles]
    if family not in _WITHOUT_GAIN:
        layer = stack.normalization == "layer" and family not in _WITHOUT_SHIFT
        names += ["gain", "shift"] if layer and not (family == "nanogpt" and not roles) else ["gain"]
    names += ["inputs"] if stack.embeddings == "untied" else []
    names += ["positions"] if stack.positions in ("learned", "learned_segment") else []
    return (*names, *(["segment"] if stack.positions == "learned_segment" else []))
