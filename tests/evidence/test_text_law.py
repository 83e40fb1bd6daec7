"""Batches of random text by its law, beside networks that are given texts of it."""

import hashlib
from functools import partial
from typing import Any

import numpy as np
import pytest

from simulate import sample
from simulate.text import TextWindows
from tests.helpers.evidence_file import kept_case, record
from theory import Stack
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import TextLaw

pytestmark = pytest.mark.evidence

USUAL: dict[str, Any] = {
    "depth": 4, "tokens": 64, "vocab": 512, "width": 256, "heads": 8, "mask": "causal", "placement": "pre",
    "output_projection": "random", "query_key_scale": 1.0, "sequences": 16,
}  # fmt: skip
NETWORKS = {
    "LayerNorm, GELU": USUAL | {"activation": "gelu", "ffn_ratio": 4.0},
    "RMSNorm, SwiGLU": USUAL | {"normalization": "rms", "ffn": "gated", "activation": "silu", "ffn_ratio": 2.0},
}
DRAWS = 60


def beside_networks(fields: dict[str, Any]) -> dict[str, Any]:
    """Norms of gradients, of all matrices and of each over its layers, over those of networks, and standard errors."""
    stack, law = Stack(**fields), TextLaw.zipf(1.0, fields["vocab"])
    ids = law.windows(stack.sequences * DRAWS, stack.tokens, np.random.default_rng(5))
    text = TextWindows(ids=ids, digest=hashlib.sha256(ids.tobytes()).hexdigest(), source="Zipf's law")
    samples = sample(stack, draws=DRAWS, seed=12, text=text)
    squares = noise_scale(stack, text=law, patterns=16).grad_sq(stack.sequences)
    sampled = {role: np.asarray(samples[f"grad_sq_{role}"], dtype=float).reshape(DRAWS, -1).sum(1) for role in squares}
    found = {}
    for role, square in ({"all": sum(value.sum() for value in squares.values())} | squares).items():
        values = sum(sampled.values()) if role == "all" else sampled[role]
        over = float((np.sum(square) / values.mean()) ** 0.5)
        error = values.std(ddof=1) / DRAWS**0.5 / values.mean() / 2
        found[role] = {"over networks": round(over - 1, 4), "standard error": round(float(error), 4)}
    return found


def test_batches_of_text_beside_networks(kept_folder):
    """Norms are within 5%, of all and of every matrix; of single matrices that is expected to fail."""
    found = {name: kept_case(kept_folder, name, partial(beside_networks, fields)) for name, fields in NETWORKS.items()}
    record("text-law", {"draws": DRAWS, "sequences": USUAL["sequences"], "norms": found})
    for name, of_roles in found.items():
        assert of_roles["all"]["standard error"] < 0.015, name
        assert abs(of_roles["all"]["over networks"]) < 0.05, name
    if beyond := [
        (name, role) for name, row in found.items() for role, one in row.items() if abs(one["over networks"]) >= 0.05
    ]:
        pytest.xfail(f"not within 5% are {beyond} (docs/first_step.md)")
