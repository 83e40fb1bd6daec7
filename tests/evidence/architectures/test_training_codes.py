"""Networks drawn by training codes' own rules: plain torch modules beside theory, and published models by theory.

16 tokens of different words, independent uniform labels at all of them, embeddings untied. The modules are those of
`tests.helpers.twins.training_codes`, which share nothing with theory or with the sampler.
"""

from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.twins.training_codes import DRAWN, Architecture, Sizes, measured
from theory import Stack, predict
from theory.configurations import stack_from_config

pytestmark = pytest.mark.evidence

DEPTH, HEADS, VOCAB, TOKENS, DRAWS = 4, 4, 512, 16, 400
_LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}
_OLMO2 = _LLAMA | {"model_type": "olmo2", "rms_norm_eps": 1e-6}
TWINS: dict[str, tuple[str, int, int, Architecture, dict[str, Any]]] = {
    "Pythia by GPT-NeoX": (
        "neox", 256, 4, Architecture(parallel=True, rms=False, rotary=0.25),
        {"model_type": "gpt_neox", "rotary_pct": 0.25},
    ),
    "Llama by torchtitan": ("torchtitan", 256, 3, Architecture(base=500_000.0), _LLAMA),
    "Llama by Megatron-LM": ("megatron", 256, 3, Architecture(base=500_000.0), _LLAMA),
    "OLMo 1 by its code": ("olmo", 256, 3, Architecture(rms=False), {"model_type": "olmo"}),
    "OLMo 2 by its code": ("olmo2", 256, 3, Architecture(after=True, epsilon=1e-6, base=500_000.0), _OLMO2),
    "Llama by muP": ("mup:64", 256, 3, Architecture(base=500_000.0, attention_scale=-1.0, logits=0.25), _LLAMA),
    "Llama by CompleteP": (
        "completep:64:2", 256, 3,
        Architecture(base=500_000.0, attention_scale=-1.0, logits=0.25, branches=0.5), _LLAMA,
    ),
}  # fmt: skip
"""The code, the width, units over the width, what is done with the weights, and fields of the configuration."""

MODELS = {
    "pythia-1.4b": "neox", "gpt-neox-20b": "neox", "olmo-1b": "olmo", "olmo-2-7b": "olmo2", "llama-2-7b": "torchtitan",
    "llama-3-8b": "torchtitan", "llama-3.2-1b": "torchtitan", "qwen2.5-7b": "megatron",
}  # fmt: skip
"""Published models, and a code that draws such ones."""


def described(stack: Stack, patterns: int = 16) -> dict[str, Any]:
    """First over last layer's norms by matrix, the stream's energies, and the cosine of two tokens."""
    found = predict(stack, patterns=patterns)
    energy, product = found["hidden_energy"], found["token_correlation"]
    norms = {name[8:]: np.sqrt(one) for name, one in found.items() if name.startswith("grad_sq_") and one.ndim}
    return rounded(
        {
            "first over last": {role: float(one[0] / one[-1]) for role, one in norms.items()},
            "energy": [float(energy[0]), float(energy[-1])],
            "cosine": [float((product / energy)[0]), float((product / energy)[-1])],
            "W_emb": float(np.sqrt(found["grad_sq_Wemb"])),
        }
    )


def beside(name: str) -> list[dict[str, Any]]:
    """Norms of every matrix's gradient in every layer, and the stream's energy, over theory, with standard errors."""
    code, width, ratio, architecture, fields = TWINS[name]
    sizes = Sizes(width=width, depth=DEPTH, hidden=ratio * width, heads=HEADS, vocab=VOCAB)
    config = fields | {
        "hidden_size": width, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "vocab_size": VOCAB,
        "intermediate_size": sizes.hidden, "tie_word_embeddings": False,
    }  # fmt: skip
    stack, _ = stack_from_config(config, tokens=TOKENS, drawn_by=code)
    theory = predict(stack, patterns=1024)
    torch.manual_seed(0)
    networks = [measured(DRAWN[code](sizes), architecture, HEADS, TOKENS) for _ in range(DRAWS)]
    rows = []
    for quantity in networks[0]:
        values = np.array([network[quantity] for network in networks])
        mean, power = values.mean(0), 0.5 if quantity.startswith("grad_sq_") else 1.0
        ratios = (mean / theory[quantity]) ** power
        errors = power * ratios * values.std(0, ddof=1) / DRAWS**0.5 / mean
        for layer, (ratio_of_layer, error) in enumerate(zip(ratios, errors, strict=True), start=1):
            of = quantity.removeprefix("grad_sq_")
            rows.append({"of": of, "layer": layer, "ratio": float(ratio_of_layer), "sem": float(error)})
    return rows


def test_modules_and_models_drawn_by_training_codes(kept_folder):
    """Every number within 5% or 4 standard errors, of at most 1.5%; and every prediction is a number."""
    found: dict[str, Any] = {
        "depth": DEPTH, "tokens": TOKENS, "vocab": VOCAB, "draws": DRAWS, "modules": {}, "models": {},
    }  # fmt: skip
    beyond = []
    for name, (code, width, *_) in TWINS.items():  # of base models of width 64 and 2 layers, where there are
        rows = kept_case(kept_folder, f"training codes {name} {DRAWS}", lambda name=name: beside(name))
        beyond += [(name, row) for row in rows if abs(row["ratio"] - 1) > max(0.05, 4 * row["sem"])]
        assert max(row["sem"] for row in rows) <= 0.015, name
        far = max(rows, key=lambda row: abs(row["ratio"] - 1))
        means = {
            of: float(np.mean([row["ratio"] for row in rows if row["of"] == of])) for of in {r["of"] for r in rows}
        }
        found["modules"][name] = {
            "code": code, "width": width, "numbers": len(rows), "largest deviation": far,
            "largest error": max(row["sem"] for row in rows), "stream": [
                row["ratio"] for row in rows if row["of"] == "hidden_energy"
            ], "mean ratios": dict(sorted(means.items())),
        }  # fmt: skip
    for model, code in MODELS.items():
        stack = stack_from_config(like=model, tokens=TOKENS, embeddings="untied", drawn_by=code)[0]
        found["models"][model] = {"code": code} | kept_case(
            kept_folder, f"training codes {model} {code}", lambda stack=stack: described(stack)
        )
    record("training-codes", rounded(found))
    assert not beyond
