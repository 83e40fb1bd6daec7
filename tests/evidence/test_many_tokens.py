"""Groups of tokens beside networks of up to twice as many tokens as coordinates."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from simulate import sample
from simulate.runs.cell import EngineName
from tests.helpers.agreement import deviations
from tests.helpers.evidence_file import kept_case, record
from theory import Stack, predict

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


def beside_networks(fields: dict[str, Any], draws: int, patterns: int, engine: EngineName = "auto") -> dict[str, Any]:
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
