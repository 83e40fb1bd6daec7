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

from tests.helpers import model_classes  # noqa: E402  # it needs transformers

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


def _is_tied(family: str) -> bool:
    return family.endswith("tied") or family in ("Bert", "Roberta")


def squares(model: torch.nn.Module) -> dict[str, list[float]]:
    """Squared norms of the gradients of a model by matrix and layer."""
    found: dict[str, list[float]] = {}
    for role, layer, gradient in model_classes.matrices(model, gradient=True):
        found.setdefault(role, [0.0] * (1 if role == "WH" else DEPTH))[layer] += float(gradient.square().sum())
    return found


def _draw(family: str, config: Any, seed: int) -> dict[str, list[float]]:
    """Squared norms of gradients by role and layer, and the stream's energies, of one network."""
    torch.manual_seed(seed)
    built = MODELS[family][0]
    model = getattr(transformers, built)._from_config(config, attn_implementation="eager").eval()
    ids, labels = torch.randperm(VOCAB)[None, :TOKENS], torch.randint(VOCAB, (TOKENS,))
    out = model(input_ids=ids, output_hidden_states=True)
    torch.nn.functional.cross_entropy(out.logits[0], labels).backward()
    found = squares(model)
    if _is_tied(family):
        found["Wemb"] = [float(model.get_input_embeddings().weight.grad.square().sum())]
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
    # Of a Post-LN model the stream is what is normalized after the sum.
    stream = np.ones(DEPTH - 1) if stack.placement == "post" else expected["hidden_energy"][:-1]
    rows = rows_of(draws, {name: stream if name == "stream" else expected[f"grad_sq_{name}"] for name in draws[0]})
    return {"left out": [str(note) for note in notes if note.what == "left out"], "numbers": rows}


def rows_of(draws: list[dict[str, list[float]]], expected: dict[str, Any]) -> list[dict[str, Any]]:
    """Every number over what is expected of it, with standard errors."""
    rows = []
    for name, theory in expected.items():
        values = np.array([draw[name] for draw in draws]) / np.atleast_1d(theory)
        sems = values.std(0, ddof=1) / len(draws) ** 0.5
        for layer, (ratio, sem) in enumerate(zip(values.mean(0), sems, strict=True), start=1):
            beyond = bool(abs(ratio - 1) > max(0.05, 4 * sem))
            rows.append({"of": name, "layer": layer, "ratio": float(ratio), "sem": float(sem), "beyond": beyond})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    of_layers = [row for row in rows if row["of"] != "stream"]
    return {
        "numbers": len(rows),
        "beyond": [row for row in rows if row["beyond"]],
        "largest deviation": max(of_layers, key=lambda row: abs(row["ratio"] - 1)),
        "median sem": float(np.median([row["sem"] for row in of_layers])),
        "mean ratio": float(np.mean([row["ratio"] for row in of_layers])),
    }


@pytest.mark.filterwarnings("ignore")
def test_architectures_are_as_their_configs_predict(kept_folder):
    """Every matrix of every layer, and the stream, within 5% or 4 standard errors, which errs in at most 6e-5 each."""
    found = {}
    for family in MODELS:
        table = kept_case(kept_folder, f"configurations {family} {DRAWS}", lambda family=family: case(family))
        found[family] = summary(table["numbers"]) | {"left out": table["left out"]}
    about = {"width": WIDTH, "depth": DEPTH, "vocab": VOCAB, "tokens": TOKENS, "draws": DRAWS}
    record("configurations", about | {"transformers": transformers.__version__, "models": found})
    assert not [name for name, one in found.items() if one["beyond"]]
