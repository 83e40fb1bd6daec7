"""Theory's critical rate of the first step over depths, widths, tokens and classes, with its exponents."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.evidence_file import record, rounded
from theory import Stack
from theory.first_step.prediction import first_step

pytestmark = pytest.mark.evidence

WIDE = 2**18
"""A width at which nothing is left of V/d."""
DEPTHS = (1, 2, 4, 8, 16, 32)
GRIDS: dict[str, tuple[str, Sequence[int]]] = {
    "d, 64 to 512": ("width", (64, 128, 256, 512)),
    "d, in the limit": ("width", (WIDE, 4 * WIDE)),
    "L, 1 to 8": ("depth", (1, 2, 4, 8)),
    "L, 16 to 32": ("depth", (16, 32)),
    "n, 2 to 16": ("tokens", (2, 4, 8, 16)),
    "V, 16 to 256": ("vocab", (16, 64, 256)),
}
LINES = {
    "SGD, Post-LN": ("sgd", "post"), "SGD, Pre-LN": ("sgd", "pre"), "SGD, Peri-LN": ("sgd", "peri"),
    "SGD, DeepNorm": ("sgd", "deepnorm"), "Muon, Post-LN": ("muon", "post"), "Muon, Pre-LN": ("muon", "pre"),
    "sign, Post-LN": ("adam", "post"), "sign, Pre-LN": ("adam", "pre"),
}  # fmt: skip


def rate(stack: Stack, optimizer: str = "sgd") -> float:
    return float(first_step(stack, optimizer).critical_rate)  # type: ignore[arg-type]


def exponent(stack: Stack, optimizer: str, field: str, values: Sequence[int]) -> float:
    """The slope of the logarithm of the rate in that of a field, by least squares."""
    rates = [rate(replace(stack, **{field: value}), optimizer) for value in values]
    return float(np.polyfit(np.log(values), np.log(rates), 1)[0])


def exponents(optimizer: str, placement: str) -> dict[str, float]:
    """Of signs those in the width alone: their rates at many layers are sampled less sharply."""
    stack = Stack(placement=placement, width=WIDE, depth=4, tokens=8, vocab=16)
    grids = {name: grid for name, grid in GRIDS.items() if optimizer != "adam" or grid[0] == "width"}
    return {name: exponent(stack, optimizer, *grid) for name, grid in grids.items()}


def test_theory():
    """Post-LN's rate of SGD falls with the depth like 1/L at last, and Pre-LN's more slowly."""
    rates: dict[str, list[float]] = {}
    for placement in ("post", "pre"):
        stacks = [Stack(placement=placement, width=WIDE, depth=depth, tokens=8, vocab=16) for depth in DEPTHS]
        rates[placement] = [WIDE * rate(stack) for stack in stacks]
    found: dict[str, Any] = {title: exponents(*line) for title, line in LINES.items()}
    content = {"depths": list(DEPTHS), "d times the critical rate of SGD": rates, "exponents": found}
    record("first-step-theory", rounded(content))
    assert found["SGD, Post-LN"]["L, 16 to 32"] < -0.9
    assert found["SGD, Pre-LN"]["L, 16 to 32"] > -0.6
    for title, line in found.items():
        limit = {"SGD": -1.0, "Muon": -0.5, "sign": -1.5}[title.partition(",")[0]]
        assert line["d, in the limit"] == pytest.approx(limit, abs=0.01)
