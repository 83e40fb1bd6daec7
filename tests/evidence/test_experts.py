"""Experts of 1024 coordinates, sampled here, against theory: routers, units and the stream.

Pre-LN, 8 experts of which each token has one or two, random attention, 8 tokens that differ, 2 and 4 layers. The
conditioned engine draws no matrix and is exact in law. Theory takes 8192 patterns of attention and choices.
"""

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from gradbounds.actions.first_line import COARSE, first_line, quick_sampling, scale_of_batch
from gradbounds.budget import Budget
from simulate import sample
from simulate.curvature.first_step import gradients
from tests.evidence.test_batch_steps import TEXT, TOKENS, problem, stack, words
from tests.helpers.evidence_file import kept_case, record, rounded
from theory import Stack, predict
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import TextLaw

pytestmark = pytest.mark.evidence

DRAWS, PATTERNS = 1600, 8192
_NETWORK: dict[str, Any] = {
    "placement": "pre", "width": 1024, "tokens": 8, "vocab": 512, "experts": 8, "mask": "causal", "heads": 8,
    "query_key_scale": 1.0, "output_projection": "random", "activation": "silu", "ffn": "gated",
}  # fmt: skip
# With one chosen its score is its weight, since over its sum it would be 1.
CASES: dict[str, dict[str, Any]] = {
    f"{depth} layers, {chosen} of 8": {"depth": depth, "experts_per_token": chosen, "router_norm": norm}
    for depth in (2, 4)
    for chosen, norm in ((1, "none"), (2, "sum"))
}


def over_predicted(over: np.ndarray, power: float = 0.5) -> dict[str, float]:
    """Return the mean over draws of samples over predicted numbers, to a power, and its standard error."""
    ratio = float(over.mean()) ** power
    error = float(over.std(ddof=1) / len(over) ** 0.5 / over.mean()) * power * ratio
    return {"ratio": ratio, "sem": error}


QUANTITIES = ("grad_sq_WR", "grad_sq_W1", "grad_sq_W2", "grad_sq_WG", "hidden_energy", "expert_load_max")


def beside(fields: dict[str, Any]) -> dict[str, Any]:
    """Means over layers and draws over predicted ones, of gradients the root; with standard errors of the samples."""
    stack = Stack(**_NETWORK | fields)
    samples = sample(stack, draws=DRAWS, seed=0, engine="conditioned")
    theory = predict(stack, patterns=PATTERNS)
    found: dict[str, Any] = {}
    for name in QUANTITIES:
        power = 0.5 if name.startswith("grad_sq_") else 1.0
        over = samples[name] / theory[name]
        found[name] = over_predicted(over.mean(1), power) | {"layers": list(over.mean(0) ** power)}
    return rounded(found)


BATCH = 48
# Sequences with positions in common.
_BATCH: dict[str, Any] = {
    "placement": "pre", "width": 256, "depth": 2, "tokens": 2, "vocab": 16, "mask": "causal", "positions": "learned",
    "experts": 4, "experts_per_token": 2, "shared_ratio": 1.0, "shared_gate": "sigmoid",
}  # fmt: skip


def of_batches() -> dict[str, Any]:
    """Norms of 48 sequences' gradients over predicted ones, by matrix, and the share of two sequences in a square."""
    stack = Stack(**_BATCH)
    theory = noise_scale(stack, patterns=PATTERNS)
    samples = sample(replace(stack, sequences=BATCH), draws=DRAWS, seed=0, engine="conditioned")
    found: dict[str, Any] = {}
    for role, square in theory.grad_sq(BATCH).items():
        over = (samples[f"grad_sq_{role}"] / square).reshape(DRAWS, -1).mean(1)
        found[role] = over_predicted(over) | {"shared": float((theory.product[role] / square).mean())}
    return rounded(found)


TIED_DRAWS = 600
# Pre-LN of 1024 coordinates, 64 words, 4 tokens and 2 layers, with one matrix for both ends.
TIED: dict[str, dict[str, Any]] = {
    "two of six": {"experts": 6, "experts_per_token": 2, "routed_scale": 3.0, "layout": "parallel"},
    "gated, with a shared one, random queries": {
        "experts": 4, "experts_per_token": 2, "ffn": "gated", "activation": "silu", "shared_ratio": 0.5,
        "shared_gate": "sigmoid", "query_key_scale": 1.0, "heads": 4, "mask": "causal",
    },
}  # fmt: skip


def with_tied_ends(fields: dict[str, Any]) -> dict[str, Any]:
    """Norms of gradients over predicted ones, by matrix, over layers and draws."""
    stack = Stack(placement="pre", width=1024, depth=2, tokens=4, vocab=64, embeddings="tied", **fields)
    theory, samples = predict(stack, patterns=4096), sample(stack, draws=TIED_DRAWS, seed=0)
    found: dict[str, Any] = {}
    for name in theory:
        if name.startswith("grad_sq_"):
            over = (samples[name] / theory[name]).reshape(TIED_DRAWS, -1).mean(1)
            found[name.removeprefix("grad_sq_")] = over_predicted(over)
    return rounded(found)


def test_experts_beside_theory(kept_folder):
    """Every norm within 3% of theory, of batches within 5%, with errors of at most 1%."""
    found = {
        name: kept_case(kept_folder, f"experts at 1024, {name}", lambda fields=fields: beside(fields))
        for name, fields in CASES.items()
    }
    batches = kept_case(kept_folder, "experts, batches", of_batches)
    about = {"width": 1024, "draws": DRAWS, "patterns": PATTERNS}
    tied = {
        name: kept_case(kept_folder, f"experts, tied, {name}", lambda fields=fields: with_tied_ends(fields))
        for name, fields in TIED.items()
    }
    record("experts", about | {"networks": found, "sequences": BATCH, "batches": batches, "tied": tied})
    rows = [one for network in found.values() for one in network.values()]
    assert max(row["sem"] for row in [*rows, *batches.values()]) <= 0.01
    assert np.abs(np.array([row["ratio"] for row in rows]) - 1).max() <= 0.03
    ends = [row for network in tied.values() for row in network.values()]
    assert max(row["sem"] for row in ends) <= 0.03
    assert all(abs(row["ratio"] - 1) <= max(0.03, 4 * row["sem"]) for row in ends)
    # Of 256 coordinates; without what two sequences share the router's would be 10% off, and others more.
    assert np.abs(np.array([row["ratio"] for row in batches.values()]) - 1).max() <= 0.05
    assert min(row["shared"] for row in batches.values()) > 0.19


# Step 1 of 24 networks with experts on windows of a text, fixed before any was drawn: width, depth, kind, sequences.
RANGES = [
    (width, depth, f"experts {scale} {experts} text", (16, 64)[k % 2])
    for k, (width, depth, scale, experts) in enumerate(
        itertools.product((256, 512), (2, 4), ("qwen", "unit"), ("8 2", "16 4", "32 1"))
    )
]


def in_ranges(width: int, depth: int, kind: str, sequences: int, seed: int) -> dict[str, Any]:
    """Loss and gradient norm of one network, with the ranges that the card prints for a text whose law is known."""
    network, law = stack(width, depth, kind), TextLaw.of_text(words(), TOKENS)
    patterns, coarse = quick_sampling(network, law, None)
    line = first_line(scale_of_batch(network, law, patterns, Budget.of(None, None), coarse=coarse), sequences, (), law)
    line = replace(line, quick=COARSE * bool(coarse))
    loss, gradient = gradients(problem(network, sequences, seed, kind))
    norm = sum(float(part.square().sum()) for part in gradient.values()) ** 0.5
    low, high = line.loss - 2.0 * line.loss_deviation, line.loss + 2.0 * line.loss_deviation
    return {"loss": [low, loss, high], "norm": [line.norm_range[0], norm, line.norm_range[1]], "predicted": line.norm}


@pytest.mark.skipif(not TEXT, reason="TEXT must name a file of English text")
def test_ranges_of_step_1(kept_folder):
    """Loss and gradient norm are in their ranges in at least 21 of 24 networks: two standard deviations each way."""
    found = {
        " ".join(map(str, case)): kept_case(kept_folder, f"{case} range", partial(in_ranges, *case, 40000 + k))
        for k, case in enumerate(RANGES)
    }
    inside = {
        name: sum(low <= value <= high for row in found.values() for low, value, high in [row[name]])
        for name in ("loss", "norm")
    }
    record("expert-ranges", {"inside": inside, "networks": rounded(found)}, short=True)
    assert min(inside.values()) >= 21
