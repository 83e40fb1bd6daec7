"""Theory's critical rate of the first step over depths, widths, tokens and classes, with its exponents.

And what theory leaves out, of published models: what norms remove of the gradients of queries and keys.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy import stats

from checks.trust import Trust
from tests.helpers.evidence_file import record, rounded
from theory import NoRuleError, Stack, predict
from theory.configurations import stack_from_config
from theory.configurations.published import PUBLISHED
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
    "SGD, DeepNorm": ("sgd", "deepnorm"), "polar, Post-LN": ("polar", "post"), "polar, Pre-LN": ("polar", "pre"),
    "sign, Post-LN": ("adam", "post"), "sign, Pre-LN": ("adam", "pre"),
}  # fmt: skip


SEEDS = range(3)
"""Of signs, whose rates are sampled to 1% or 2%; in the width a seed's samples are the same, and one will do."""


def rate(stack: Stack, optimizer: str = "sgd", **seed: int) -> float:
    return float(first_step(stack, optimizer, **seed).critical_rate)  # type: ignore[arg-type]


def exponent(stack: Stack, optimizer: str, field: str, values: Sequence[int], **seed: int) -> float:
    """The slope of the logarithm of the rate in that of a field, by least squares."""
    rates = [rate(replace(stack, **{field: value}), optimizer, **seed) for value in values]
    return float(np.polyfit(np.log(values), np.log(rates), 1)[0])


def exponents(optimizer: str, placement: str) -> tuple[dict[str, float], dict[str, float]]:
    """Of every grid; and standard errors of those that are means over seeds."""
    stack = Stack(placement=placement, width=WIDE, depth=4, tokens=8, vocab=16)
    means, errors = {}, {}
    for name, grid in GRIDS.items():
        if optimizer != "adam" or grid[0] == "width":
            means[name] = exponent(stack, optimizer, *grid)
            continue
        slopes = [exponent(stack, optimizer, *grid, seed=seed) for seed in SEEDS]
        means[name], errors[name] = float(np.mean(slopes)), float(stats.sem(slopes))
    return means, errors


def test_theory():
    """Post-LN's rate of SGD falls with the depth like 1/L at last, and Pre-LN's more slowly."""
    rates: dict[str, list[float]] = {}
    for placement in ("post", "pre"):
        stacks = [Stack(placement=placement, width=WIDE, depth=depth, tokens=8, vocab=16) for depth in DEPTHS]
        rates[placement] = [WIDE * rate(stack) for stack in stacks]
    both = {title: exponents(*line) for title, line in LINES.items()}
    found = {title: means for title, (means, _) in both.items()}
    content: dict[str, Any] = {
        "depths": list(DEPTHS),
        "d times the critical rate of SGD": rates,
        "exponents": found,
        "standard errors": {title: errors for title, (_, errors) in both.items() if errors},
    }
    record("first-step-theory", rounded(content))
    assert found["SGD, Post-LN"]["L, 16 to 32"] < -0.9
    assert found["SGD, Pre-LN"]["L, 16 to 32"] > -0.6
    for title, line in found.items():
        limit = {"SGD": -1.0, "polar": -0.5, "sign": -1.5}[title.partition(",")[0]]
        assert line["d, in the limit"] == pytest.approx(limit, abs=0.01)


def removed_by_norms(stack: Stack) -> dict[str, float]:
    """Shares of W^Q and W^K, what norms remove of their squared gradients, and what that makes of SGD's step.

    The same patterns are used with it and without. The kernel of a matrix whose gradients lose a relative e loses e, so
    that the gain loses e times its share, and the curvature, which is quadratic in the kernel, twice that.
    """
    step, energies = first_step(stack), []
    for tracked in (True, False):
        with mock.patch.multiple("theory.mean_field.sublayers", asks_for_overlaps=lambda *_, on=tracked: on):
            with mock.patch("theory.mean_field.recursion.asks_for_overlaps", lambda *_, on=tracked: on):
                found = predict(stack, patterns=4)
        energies.append({role: float(np.sum(found[f"grad_sq_{role}"])) for role in ("WQ", "WK")})
    most = max(1 - energies[0][role] / energies[1][role] for role in energies[0])
    gain, curvature = (
        sum(float(shares[role].sum()) for role in energies[0]) for shares in (step.gain_shares, step.curvature_shares)
    )
    return {
        "heads": stack.heads, "removed": most, "share of the gain": gain, "share of the curvature": curvature,
        "gain": most * gain, "curvature": 2 * most * curvature,
        "implied gain": Trust.of(stack, "gain").error, "implied curvature": Trust.of(stack, "curvature").error,
    }  # fmt: skip


def test_what_norms_remove():
    """No more than 1/h for each of two norms, and little beside what finite width does, in published models."""
    found, refused = {}, []
    for name, fields in PUBLISHED.items():
        try:
            # Words do not matter here, and their memory does.
            stack = replace(stack_from_config(dict(fields), tokens=8)[0], embeddings="untied", vocab=2048)
            if stack.query_key_scale:
                found[name] = removed_by_norms(stack)
        except NoRuleError:
            refused.append(name)
    record("first-step-norms", rounded({"models": found, "refused": refused}))
    assert all(0 <= one["removed"] <= 2 / one["heads"] for one in found.values())
    assert all(one[name] < 0.1 * one[f"implied {name}"] for one in found.values() for name in ("gain", "curvature"))
