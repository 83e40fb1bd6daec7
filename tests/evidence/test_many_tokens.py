"""Groups of tokens beside networks of up to twice as many tokens as coordinates, and published models over n."""

import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulate import sample
from simulate.runs.cell import EngineName
from tests.helpers.agreement import deviations
from tests.helpers.evidence_file import kept_case, record
from theory import Stack, predict
from theory.configurations import published, stack_from_config

pytestmark = pytest.mark.evidence

USUAL: dict[str, Any] = {
    "width": 512, "depth": 4, "vocab": 64, "heads": 8, "query_key_scale": 1.0, "mask": "causal",
    "output_projection": "random",
}  # fmt: skip
NETWORKS = {
    "Pre-LN": {"placement": "pre"},
    "Post-LN": {"placement": "post"},
    "Peri-LN": {"placement": "peri"},
    "Pre-LN, rotary": {"placement": "pre", "rotary": 1.0},
}
DRAWS = {16: 384, 64: 256, 256: 128, 1024: 32}
PATTERNS = {16: 512, 64: 256, 256: 128, 1024: 96}
TOKENS = (16, 64, 256, 1024, 4096)
MODELS = {"llama-3-8b": (1, 4, *TOKENS, 8192), "qwen3-8b": TOKENS, "pythia-1.4b": TOKENS}
ROLES = ("WQ", "WK", "WV", "WG", "W1", "W2")
LONG = {"Pre-LN": 256, "Pre-LN, rotary": 256, "Post-LN": 256, "Peri-LN": 448}
"""Draws of 1024 tokens that leave errors of a percent, with as many words: with V = 64 what labels leave to chance, of
relative size (2/V)^1/2, would take twenty times as many."""
LONGEST = 4096
SHORTER = {
    "gpt2": 1024, "gpt2-xl": 1024, "gpt-j-6b": 2048, "pythia-1.4b": 2048, "gpt-neox-20b": 2048, "phi-2": 2048,
    "olmo-1b": 2048, "bert-base": 512, "roberta-base": 512,
}  # fmt: skip
"""Models whose own length, as their configurations have it, is less."""


def beside_networks(fields: dict[str, Any], draws: int, patterns: int, engine: EngineName = "auto") -> dict[str, Any]:
    """Every number of one case."""
    stack = Stack(**USUAL | fields)
    samples = sample(stack, draws=draws, seed=12, engine=engine)
    prediction = predict(stack, grouped=True, patterns=patterns, max_time=600.0)
    gradients: dict[str, Any] = {}
    for role in ("WQ", "WK", "WV", "W1"):
        values = np.asarray(samples[f"grad_sq_{role}"], dtype=float)
        mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
        errors = np.hypot(error, prediction.errors[f"grad_sq_{role}"]) / mean
        over = prediction[f"grad_sq_{role}"] / mean - 1.0
        gradients[role] = {"over networks": over.round(4).tolist(), "standard errors": errors.round(4).tolist()}
    return {"deviations": deviations(samples, prediction), "squared gradients": gradients}


def test_beside_networks(kept_folder):
    """Of squared gradients and energies at n/d = 1/32 to 2 what is beyond 3% and 4 standard errors is recorded."""
    found: dict[str, Any] = {}
    beyond, numbers = [], 0
    for name, fields in NETWORKS.items():
        for tokens in DRAWS:
            label = f"{name}, n = {tokens}"
            asked = partial(beside_networks, fields | {"tokens": tokens}, DRAWS[tokens], PATTERNS[tokens])
            row = kept_case(kept_folder, label, asked)
            numbers += len(row["deviations"])
            beyond += [{"case": label} | one for one in row["deviations"] if one["of what is allowed"] > 1]
            widest = max(row["deviations"], key=lambda one: one["of what is allowed"])
            found[label] = {"widest": widest, "squared gradients": row["squared gradients"]}
    record("many-tokens", {"draws": DRAWS, "numbers": numbers, "beyond": beyond, "of each case": found})
    assert numbers > 500
    assert len(beyond) <= 0.02 * numbers, beyond


def beside_long(folder: Path, name: str, networks: Sequence[str], off: Collection[str] = ()) -> None:
    """At 1024 tokens, with matrices drawn: numbers are within 3%, or 4 standard errors of at most 1.5%.

    Of some quantities that is expected to fail (docs/report.md).
    """
    fields = {"tokens": 1024, "vocab": 1024}
    found: dict[str, Any] = {}
    for network in networks:
        asked = partial(beside_networks, NETWORKS[network] | fields, LONG[network], 512, "dense")
        row = kept_case(folder, network, asked)
        beyond = [one for one in row["deviations"] if one["of what is allowed"] > 1]
        wide = [one for one in row["deviations"] if one["relative"] > 0.03]
        errors = [error for one in row["squared gradients"].values() for error in one["standard errors"]]
        found[network] = {"draws": LONG[network], "numbers": len(row["deviations"]), "beyond": beyond, "over 3%": wide}
        found[network] |= {"largest error": max(errors), "squared gradients": row["squared gradients"]}
    record(name, {"fields": USUAL | fields, "networks": found}, short=True)
    for network, row in found.items():
        assert row["largest error"] < 0.015, network
        others = [one for one in row["beyond"] if one["quantity"] not in off]
        assert len(others) <= 0.02 * row["numbers"], (network, others)
    if failed := [network for network, row in found.items() if len(row["beyond"]) > 0.02 * row["numbers"]]:
        pytest.xfail(f"{', '.join(off)} of {', '.join(failed)} are beyond it (docs/report.md)")


def over_tokens(model: str, tokens: int) -> dict[str, Any]:
    """Norms of the first layer's gradients over the last's, with standard errors, and CPU seconds of it all."""
    stack, _ = stack_from_config(published(model), tokens=tokens, embeddings="untied")
    before = time.process_time()
    prediction = predict(stack, grouped=True, patterns=8, max_time=600.0)
    seconds = time.process_time() - before
    row: dict[str, Any] = {}
    for role in ROLES:
        # One token has no gradient at queries and keys.
        if (name := f"grad_sq_{role}") in prediction and prediction[name].all():
            squares, errors = prediction[name], prediction.errors[name] / prediction[name]
            ratio = float((squares[0] / squares[-1]) ** 0.5)
            row[role] = [round(ratio, 2), round(float(ratio * np.hypot(errors[0], errors[-1]) / 2), 2)]
    return {"tokens": tokens, "first over last": row, "CPU seconds": round(seconds, 1)}
