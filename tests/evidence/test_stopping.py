"""Sweeps to a precision in number: coverage, bias and cost, over 2000 synthetic experiments each."""

from typing import Any

import numpy as np
import pytest

from checks.fits import power_law
from simulate.runs.precision import Goal
from tests.helpers.evidence_file import record
from tests.simulate.test_precision import LOG_WIDTHS, oracle, stopped

pytestmark = pytest.mark.evidence

EXPERIMENTS = 2000
SPREADS = [0.9, 0.7, 0.5, 0.4]


def test_what_stopping_does():
    """95% intervals cover 93 to 97%: for a true 95% outside with probability 5e-5 each."""
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for spread, target in ((0.3, 0.01), (0.8, 0.02), (0.8, 0.04), (1.2, 0.02)):
        goals = [Goal("norm", (0,), (), target)]
        all_counts, all_means, all_variances = zip(
            *(stopped(generator, goals, [spread]) for _ in range(EXPERIMENTS)), strict=True
        )
        counts, means, variances = (np.concatenate(one) for one in (all_counts, all_means, all_variances))
        error, deviation = np.sqrt(variances / 4 / counts), np.sqrt(means) - 1
        found[f"norm, log-normal of spread {spread}, target {target}"] = {
            "coverage": round(float((np.abs(deviation) < 1.96 * error).mean()), 4),
            "bias over target": round(float(deviation.mean() / target), 3),
            "draws over the oracle's": round(float(counts.mean() / oracle(goals, [spread])[0]), 3),
        }
    goals = [Goal("exponent", (0, 1, 2, 3), tuple(LOG_WIDTHS), 0.01)]
    covered, deviations, spent = [], [], []
    for _ in range(EXPERIMENTS):
        counts, means, variances = stopped(generator, goals, SPREADS)
        norm = np.sqrt(means)
        fit = power_law(np.exp(LOG_WIDTHS), norm, norm * np.sqrt(variances / 4 / counts))
        covered.append(abs(fit.exponent) < 1.96 * fit.sem)
        deviations.append(fit.exponent)
        spent.append(counts.sum())
    found["exponent over four widths, target 0.01"] = {
        "coverage": round(float(np.mean(covered)), 4),
        "bias over target": round(float(np.mean(deviations) / 0.01), 3),
        "draws over the oracle's": round(float(np.mean(spent) / oracle(goals, SPREADS).sum()), 3),
    }
    record("stopping", {"experiments": EXPERIMENTS} | found)
    for case in found.values():
        assert 0.93 <= case["coverage"] <= 0.97
        assert case["draws over the oracle's"] < 1.3
