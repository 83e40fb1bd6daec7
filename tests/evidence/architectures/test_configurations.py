"""Published architectures, built by their own code with random weights, against the prediction of their own config.

Reduced in width (d = 512), depth (L = 4) and vocabulary (512), nothing downloaded: the classes of Hugging Face
transformers, attention written out. 16 tokens of different words, independent uniform labels at all of them. Embeddings
are untied but where a name says otherwise, and in BERT and RoBERTa; of these the matrix of both is measured too, and
that of BERT's head.
"""

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.evidence_file import kept_case, record
from theory import predict
from theory.configurations import stack_from_config

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.evidence

WIDTH, DEPTH, VOCAB, TOKENS, DRAWS = 512, 4, 512, 16, 96

_LLAMA = {
    "hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 2 * WIDTH,
}  # fmt: skip
_GPT = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": 8}
_BERT = {name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"}
# The class that is built, by the name of its configuration's, and whether embeddings are tied.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", _LLAMA | {"num_key_value_heads": 2}),
    "Mistral": ("MistralForCausalLM", _LLAMA | {"num_key_value_heads": 4}),
    "Qwen2": ("Qwen2ForCausalLM", _LLAMA),
    "Qwen3": ("Qwen3ForCausalLM", _LLAMA | {"head_dim": 128}),
    "Gemma": ("GemmaForCausalLM", _LLAMA | {"head_dim": 128, "num_key_value_heads": 1}),
    "Gemma2": ("Gemma2ForCausalLM", _LLAMA | {"head_dim": 64, "query_pre_attn_scalar": 64}),
    "Gemma3Text": ("Gemma3ForCausalLM", _LLAMA | {"head_dim": 64, "query_pre_attn_scalar": 64}),
    "Olmo": ("OlmoForCausalLM", _LLAMA),
    "Olmo2": ("Olmo2ForCausalLM", _LLAMA),
    "Phi": ("PhiForCausalLM", _LLAMA),
    "Phi3": ("Phi3ForCausalLM", _LLAMA),
    "GPT2": ("GPT2LMHeadModel", _GPT),
    "GPTJ": ("GPTJForCausalLM", _GPT | {"rotary_dim": 16}),
    "GPTNeoX": ("GPTNeoXForCausalLM", _BERT),
    "GPT2, tied": ("GPT2LMHeadModel", _GPT),
    "Qwen3, tied": ("Qwen3ForCausalLM", _LLAMA | {"head_dim": 128}),
    "Gemma2, tied": ("Gemma2ForCausalLM", _LLAMA | {"head_dim": 64, "query_pre_attn_scalar": 64}),
    "Bert": ("BertForMaskedLM", _BERT),
    "Roberta": ("RobertaForMaskedLM", _BERT),
}

_ROLES = {
    "q_proj": "WQ", "k_proj": "WK", "v_proj": "WV", "o_proj": "WO", "gate_proj": "WG", "up_proj": "W1",
    "down_proj": "W2", "fc1": "W1", "fc2": "W2", "out_proj": "WO", "fc_in": "W1", "fc_out": "W2",
    "dense_h_to_4h": "W1", "dense_4h_to_h": "W2", "query": "WQ", "key": "WK", "value": "WV", "c_fc": "W1",
}  # fmt: skip
_WHOLE = {
    "transform.dense.weight": "WH", "lm_head.dense.weight": "WH", "word_embeddings.weight": "Wemb",
    "wte.weight": "Wemb", "embed_tokens.weight": "Wemb",
}  # fmt: skip
_FUSED = {"c_attn": (("WQ", "WK", "WV"), 1), "qkv_proj": (("WQ", "WK", "WV"), 0), "gate_up_proj": (("WG", "W1"), 0)}


def _parts(name: str, gradient: torch.Tensor, family: str) -> list[tuple[str, torch.Tensor]]:
    """What of a parameter's gradient belongs to which of our matrices."""
    leaf = name.split(".")[-2]
    if leaf in _FUSED:
        roles, axis = _FUSED[leaf]
        return list(zip(roles, gradient.chunk(len(roles), axis), strict=True))
    if leaf == "query_key_value":  # head by head
        by_head = gradient.view(8, 3, -1, gradient.shape[1])
        return [(role, by_head[:, k]) for k, role in enumerate(("WQ", "WK", "WV"))]
    if leaf == "c_proj":
        return [("WO" if "attn" in name else "W2", gradient)]
    if leaf == "dense" and family in ("Bert", "Roberta"):
        return [("WO" if "attention" in name else "W1" if "intermediate" in name else "W2", gradient)]
    if leaf == "dense":
        return [("WO", gradient)]
    return [(_ROLES[leaf], gradient)]


def _is_tied(family: str) -> bool:
    return family.endswith("tied") or family in ("Bert", "Roberta")


def _draw(family: str, config: Any, seed: int) -> dict[str, list[float]]:
    """Squared norms of gradients by role and layer, and the stream's energies, of one network."""
    torch.manual_seed(seed)
    built = MODELS[family][0]
    model = getattr(transformers, built)._from_config(config, attn_implementation="eager").eval()
    ids, labels = torch.randperm(VOCAB)[None, :TOKENS], torch.randint(VOCAB, (TOKENS,))
    out = model(input_ids=ids, output_hidden_states=True)
    torch.nn.functional.cross_entropy(out.logits[0], labels).backward()
    found: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        layer = next((int(part) for part in name.split(".") if part.isdigit()), None)
        whole = next((role for part, role in _WHOLE.items() if part in name), "")
        if layer is None and whole and _is_tied(family):
            found[whole] = [float(parameter.grad.square().sum())]
        if layer is None or parameter.ndim < 2:
            continue
        for role, part in _parts(name, parameter.grad, family):
            found.setdefault(role, [0.0] * DEPTH)[layer] += float(part.square().sum())
    # What stands after the last layer is normalized already.
    found["stream"] = [float(one.detach().square().mean()) for one in out.hidden_states[1:-1]]
    return found


def case(family: str) -> dict[str, Any]:
    """Every number of one architecture over its prediction, with standard errors; and what its config leaves out."""
    config = getattr(transformers, f"{family.partition(',')[0]}Config")(
        **MODELS[family][1], vocab_size=VOCAB, tie_word_embeddings=_is_tied(family), bos_token_id=0, eos_token_id=1,
        pad_token_id=2,
    )  # fmt: skip
    stack, notes = stack_from_config(config.to_dict(), tokens=TOKENS)
    expected = predict(stack, patterns=512)
    draws = [_draw(family, config, seed) for seed in range(DRAWS)]
    rows = []
    for name in draws[0]:
        values = np.array([draw[name] for draw in draws])
        mean, sem = values.mean(0), values.std(0, ddof=1) / DRAWS**0.5
        theory = expected["hidden_energy" if name == "stream" else f"grad_sq_{name}"]
        # Of a Post-LN model the stream is what is normalized after the sum.
        theory = np.ones(DEPTH) if name == "stream" and stack.placement == "post" else theory
        theory = np.atleast_1d(theory)
        for layer, (one, error) in enumerate(zip(mean, sem, strict=True)):
            row = {"of": name, "layer": layer + 1, "ratio": one / theory[layer], "sem": error / theory[layer]}
            rows.append(row | {"beyond": bool(abs(row["ratio"] - 1) > max(0.05, 4 * row["sem"]))})
    return {"left out": [str(note) for note in notes if note.what == "left out"], "numbers": rows}


@pytest.mark.filterwarnings("ignore")
def test_architectures_are_as_their_configs_predict(kept_folder):
    """Every matrix of every layer, and the stream, within 5% or 4 standard errors, which errs in at most 6e-5 each."""
    found = {}
    for family in MODELS:
        table = kept_case(kept_folder, f"configurations {family} {DRAWS}", lambda family=family: case(family))
        of_layers = [row for row in table["numbers"] if row["of"] != "stream"]
        found[family] = {
            "numbers": len(table["numbers"]),
            "beyond": [row for row in table["numbers"] if row["beyond"]],
            "largest deviation": max(of_layers, key=lambda row: abs(row["ratio"] - 1)),
            "median sem": float(np.median([row["sem"] for row in of_layers])),
            "mean ratio": float(np.mean([row["ratio"] for row in of_layers])),
            "left out": table["left out"],
        }
    about = {"width": WIDTH, "depth": DEPTH, "vocab": VOCAB, "tokens": TOKENS, "draws": DRAWS}
    record("configurations", about | {"transformers": transformers.__version__, "models": found})
    assert not [name for name, one in found.items() if one["beyond"]]
