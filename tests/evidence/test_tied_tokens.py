"""Tied embeddings by groups of tokens, beside networks."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from simulate import sample
from tests.helpers.evidence_file import kept_case, record
from theory import Stack, predict

pytestmark = pytest.mark.evidence

USUAL: dict[str, Any] = {
    "depth": 3, "tokens": 128, "vocab": 1024, "width": 512, "heads": 8, "mask": "causal", "placement": "pre",
    "output_projection": "random", "embeddings": "tied",
}  # fmt: skip
GPT = USUAL | {
    "query_key_scale": 0.77, "ffn_ratio": 4.0, "activation": "gelu", "init_std": 0.04, "depth_scaling": "depth",
    "embedding_scale": 0.04, "output_scale": 0.9, "positions": "learned", "norm_epsilon": 1e-5,
}  # fmt: skip
LLAMA = USUAL | {
    "query_key_scale": 1.0, "rotary": 1.0, "normalization": "rms", "ffn": "gated", "ffn_ratio": 2.75,
    "activation": "silu", "output_scale": 0.5,
}  # fmt: skip
POST = USUAL | {"query_key_scale": 1.0, "placement": "post", "depth": 2, "heads": 4}
NETWORKS = {
    "GPT-2's fields, d = 1024, n = 128": GPT | {"width": 1024, "heads": 16, "vocab": 512},
    "GPT-2's fields, d = 512, n = 128": GPT,
    "the same, untied": GPT | {"embeddings": "untied"},
    "GPT-2's fields, d = 256, n = 512": GPT | {"width": 256, "heads": 4, "tokens": 512, "vocab": 2048, "depth": 2},
    "Llama's fields, d = 512, n = 128": LLAMA,
    "the same, 4 heads for each key": LLAMA | {"kv_heads": 2},
    "Post-LN, d = 512, n = 64": POST | {"width": 512, "tokens": 64, "vocab": 256},
    "Post-LN, d = 256, n = 128": POST | {"width": 256, "vocab": 512},
}
ROLES = ("WQ", "WK", "WV", "WG", "W1", "W2")


def beside_networks(fields: dict[str, Any]) -> dict[str, Any]:
    """Squared gradients over those of 48 networks, 1 off, and standard errors."""
    stack = Stack(**fields)
    engine = "dense" if stack.heads == 4 else "conditioned"
    samples = sample(stack, draws=48, seed=12, engine=engine)
    prediction = predict(stack, grouped=True, patterns=48)
    found = {}
    for role in ROLES:
        if (name := f"grad_sq_{role}") in prediction:
            values = np.asarray(samples[name], dtype=float)
            mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
            errors = np.hypot(error, prediction.errors[name]) / mean
            over = prediction[name] / mean - 1.0
            found[role] = {"over networks": over.round(4).tolist(), "standard errors": errors.round(4).tolist()}
    return found


def test_tied_embeddings_beside_networks(kept_folder):
    """In Pre-LN no gradient but W^Q and W^K is beyond 5% and 4 standard errors."""
    found = {name: kept_case(kept_folder, name, partial(beside_networks, fields)) for name, fields in NETWORKS.items()}
    record("tied-tokens", {"draws": 48, "patterns": 48, "squared gradients": found})
    for name, of_roles in found.items():
        for role, of_role in of_roles.items():
            if not name.startswith("Post") and role not in ("WQ", "WK"):
                pairs = zip(of_role["over networks"], of_role["standard errors"], strict=True)
                assert all(abs(over) < max(0.05, 4 * error) for over, error in pairs), (name, role)
