"""The conditioned engine in number: the dense engine's law with 20000 draws and more, and a thousand layers."""

import warnings
from typing import Any

import numpy as np
import pytest

from checks.statistics import estimate
from simulate import sample
from tests.helpers.evidence_file import record
from tests.helpers.same_law import FALSE_ALARM, differences, numbers
from theory import Stack, predict

pytestmark = pytest.mark.evidence

DRAWS = 20_000
LAWS = [
    (8, 3, 8, False), (8, 8, 2, False), (8, 12, 2, False), (16, 5, 8, True), (16, 16, 2, False), (16, 24, 2, False),
    (16, 4, 32, False), (64, 8, 4, False), (64, 64, 1, False),
]  # fmt: skip


def test_laws():
    """Both placements, n below, at and above d, equal rows, L to 32."""
    found = {}
    for placement in ("post", "pre"):
        for d, n, depth, repeat in LAWS:
            stack = Stack(placement=placement, width=d, depth=depth, tokens=n, vocab=6)
            dense, other = (numbers(stack, engine, DRAWS, 11, repeat=repeat) for engine in ("dense", "conditioned"))
            case = f"{placement}, d = {d}, n = {n}, L = {depth}{', equal rows' if repeat else ''}"
            found[case] = differences(dense, other)
    record("laws", {"draws of each engine": DRAWS, "false alarm per case": FALSE_ALARM, "differences": found})
    assert not any(found.values())


def test_a_thousand_layers():
    """L = 1000, d = 1024, n = 8, 64 draws: energies within 2.5% and last gradients within 8% of the prediction.

    The first layer's squared gradient is a product of a thousand random factors: its median and the variance of its
    logarithm stand beside those of narrower networks at the same L/d.
    """
    found: dict[str, Any] = {}
    for placement in ("post", "pre"):
        for d, depth in ((64, 62), (256, 250), (1024, 1000)):
            stack = Stack(placement=placement, width=d, depth=depth, tokens=8, vocab=64)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                samples = sample(stack, draws=64, seed=5, engine="conditioned")
            predicted = predict(stack)
            energy, last = (estimate(samples[name][:, -1].astype(float)) for name in ("hidden_energy", "grad_sq_W2"))
            first = samples["grad_sq_W2"][:, 0].astype(float)
            log = np.log(first)
            found[f"{placement}, d = {d}, L = {depth}"] = {
                "last hidden energy over predicted": float(energy.mean / predicted["hidden_energy"][-1]),
                "last gradient over predicted": float(last.mean / predicted["grad_sq_W2"][-1]),
                "first gradient over predicted, mean": float(first.mean() / predicted["grad_sq_W2"][0]),
                "first gradient over predicted, median": float(np.median(first)) / float(predicted["grad_sq_W2"][0]),
                "first gradient, variance of the logarithm": float(np.var(log, ddof=1)),
                "its standard error": float(estimate((log - log.mean()) ** 2).sem),
            }
    record("depth", {"draws": 64, "tokens": 8} | found)
    for placement in ("post", "pre"):
        case = found[f"{placement}, d = 1024, L = 1000"]
        assert abs(case["last hidden energy over predicted"] - 1) < 0.025
        assert abs(case["last gradient over predicted"] - 1) < 0.08
        assert np.isfinite(case["first gradient, variance of the logarithm"])
