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
    ("WQ", "WK", "WV"): "glm glm4 qwen2 qwen2_moe seed_oss",
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
# Fields that switch biases on or off.
_SWITCHES = {
    "attention_bias": _ATTENTION, "attention_out_bias": ("WO",), "mlp_bias": _UNITS, "qkv_bias": _ATTENTION[:3],
    "use_qkv_bias": _ATTENTION[:3], **dict.fromkeys(("bias", "use_bias", "enable_bias"), (*_ATTENTION, *_UNITS)),
}  # fmt: skip
# Families whose `attention_bias` does not concern W^O.
_BARE = ("glm", "glm4", "glm4_moe", "helium", "seed_oss", "solar_open")
# The roles of the matrices that a model multiplies by a constant c, by the field of the note whose value is 1/c.
_MULTIPLIED = {"W_emb": "Wemb", "W_emb as the output": "Wemb", "table of inputs": "inputs"}


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
        switched = set(
            _SWITCHES.get("qkv_bias" if note.field == "attention_bias" and family in _BARE else note.field, ())
        )
        roles = roles | switched if note.value is True else roles - switched
    learned = {f"bias_{role}": role in roles for role in weight_shapes(stack)} | {
        "gain": family not in _WITHOUT_GAIN,
        "shift": stack.normalization == "layer" and family not in (*_WITHOUT_GAIN, *_WITHOUT_SHIFT)
        and not (family == "nanogpt" and not roles),
        "inputs": stack.embeddings == "untied",
        "positions": stack.positions in ("learned", "learned_segment"),
        "segment": stack.positions == "learned_segment",
    }  # fmt: skip
    return tuple(name for name, is_learned in learned.items() if is_learned)


def gradient_factors(notes: Sequence[Note]) -> dict[str, float]:
    """Return the factors on squared gradient norms of the matrices that a model multiplies by constants, by role.

    If the model stores W and multiplies it by the constants, with product c, the gradient at W is c times the gradient
    at c W, which the Stack has. This holds with tied embeddings too, because the input vectors are multiples of the
    rows of c W.

    Args:
        notes: notes on the network's configuration. A matrix may have several constants.
    """
    factors: dict[str, float] = {}
    for role, note in ((_MULTIPLIED[note.field], note) for note in notes if note.field in _MULTIPLIED):
        factors[role] = factors.get(role, 1.0) * note.value**-2
    return factors


def logit_multiplier(notes: Sequence[Note]) -> float:
    """Return the constant by which a model multiplies its output logits, or its stored output matrix; 1 for none."""
    return gradient_factors(notes).get("Wemb", 1.0) ** 0.5


def has_own_rates(notes: Sequence[Note]) -> bool:
    """Return whether the framework that initializes a model (muP) trains its matrices at different learning rates."""
    return any(note.field == "W_emb as the output" for note in notes)
