"""Exponents of theory's critical rate in the depth, by placement and optimizer, of stacks with random queries."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.helpers.evidence_file import record, rounded
from theory import Stack
from theory.first_step.prediction import first_step

pytestmark = pytest.mark.evidence

STACK = Stack(
    width=2**18, tokens=8, vocab=16, heads=8, query_key_scale=1.0, mask="causal", output_projection="random"
)  # fmt: skip
"""So wide that nothing is left of V/d."""
NETWORKS: dict[str, tuple[str, float]] = {
    "Post-LN": ("post", 0.0), "Pre-LN": ("pre", 0.0), "scaled": ("scaled", 0.0), "DeepNorm": ("deepnorm", 0.0),
    "Keel": ("keel", 0.0), "Pre-LN, branches times $L^{-1/2}$": ("pre", 0.5),
    "Pre-LN, branches times $1/L$": ("pre", 1.0),
}  # fmt: skip
"""Placement, and the power of 1/L that branches are multiplied by."""
RANGES = {"L, 2 to 8": (2, 4, 8), "L, 8 to 32": (8, 16, 32)}
SEEDS, PATTERNS = range(3), 2


def rates(placement: str, power: float, optimizer: str, seed: int) -> dict[int, float]:
    """Critical rates by depth."""
    found = {}
    for depth in sorted({depth for depths in RANGES.values() for depth in depths}):
        scale = depth**-power if power else None
        stack = replace(STACK, placement=placement, depth=depth, branch_scale=scale)
        found[depth] = first_step(stack, optimizer, seed=1000 * seed, patterns=PATTERNS).critical_rate
    return found


def test_depth():
    """Branches times L^-1/2 keep SGD's rate and times 1/L that of signs; errors over three seeds are at most 0.05.

    Tangent kernels of SGD add up over the layers' branches squared, moves of signs over the branches.
    """
    found: dict[str, Any] = {}
    for optimizer in ("sgd", "adam", "polar"):
        for title, network in NETWORKS.items():
            each = [rates(*network, optimizer, seed) for seed in SEEDS]
            row = {}
            for name, depths in RANGES.items():
                slopes = [np.polyfit(np.log(depths), np.log([one[depth] for depth in depths]), 1)[0] for one in each]
                row[name] = [float(np.mean(slopes)), float(stats.sem(slopes))]
            found.setdefault(optimizer, {})[title] = row
    record("first-step-depth", rounded({"exponents and standard errors": found}), short=True)
    assert all(row[name][1] < 0.05 for lines in found.values() for row in lines.values() for name in RANGES)
    deep, root, whole = "L, 8 to 32", "Pre-LN, branches times $L^{-1/2}$", "Pre-LN, branches times $1/L$"
    assert abs(found["sgd"][root][deep][0]) < 0.1
    for optimizer in ("adam", "polar"):
        assert abs(found[optimizer][root][deep][0] + 0.5) < 0.1
        assert abs(found[optimizer][whole][deep][0]) < 0.1
