"""How far along the first step the quadratic model with the Gauss-Newton matrix describes the loss."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from simulate.curvature.first_step import along, direction, first_step_problem, gradients, measure_step
from tests.helpers.evidence_file import kept_case, record
from theory import Stack

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

BASE = {"width": 128, "depth": 2, "tokens": 8, "vocab": 16}
SETTINGS: dict[str, dict[str, Any]] = {
    "Post-LN": {"placement": "post"},
    "Pre-LN": {"placement": "pre"},
    "Peri-LN": {"placement": "peri"},
    "DeepNorm": {"placement": "deepnorm"},
    "Post-LN, L = 8": {"placement": "post", "depth": 8},
    "Pre-LN, L = 8": {"placement": "pre", "depth": 8},
}
NETWORKS, WITHIN = 16, 0.1
GRID = np.geomspace(1e-3, 30, 90)
"""Rates over the critical rate, 12% apart."""


def ends_of(losses: np.ndarray, loss: float, gain: float, curvature: float, rates: np.ndarray) -> dict[str, float]:
    """The first rates at which the model is off: by 10% of the loss, and by 10% of η g·u, the first-order change."""
    off = np.abs(loss - rates * gain + 0.5 * rates**2 * curvature - losses)
    off[~np.isfinite(off)] = np.inf
    beyond = {"loss": off > WITHIN * losses, "change": off > WITHIN * rates * gain}
    return {name: float(rates[one.argmax()]) if one.any() else float("inf") for name, one in beyond.items()}


def one_setting(fields: dict[str, Any]) -> dict[str, Any]:
    """By optimizer: medians over networks of both ends, over the critical rate, and their ranges."""
    torch.set_num_threads(1)
    stack = Stack(**(BASE | fields))
    found: dict[str, dict[str, list[float]]] = {name: {"loss": [], "change": []} for name in ("sgd", "adam", "muon")}
    for seed in range(NETWORKS):
        problem = first_step_problem(stack, seed=seed)
        loss, gradient = gradients(problem)
        held = {name: p.detach() for name, p in problem.model.named_parameters()}
        for optimizer, ends in found.items():
            u = direction(gradient, optimizer)
            step = measure_step(problem, gradient, u, loss, ends=False)
            rates = step.critical_rate * GRID
            with torch.no_grad():
                losses = np.array(
                    [sum(float(problem.loss(*pair)) for pair in along(problem, held, u, rate)) for rate in rates]
                )
            for name, end in ends_of(losses, loss, step.gain, step.curvature, rates).items():
                ends[name].append(end / step.critical_rate)
    return {
        optimizer: {name: np.quantile(values, [0.5, 0, 1]).round(3).tolist() for name, values in ends.items()}
        for optimizer, ends in found.items()
    }


def test_range(kept_folder):
    """In the median the model ends before the rate at which it says that the loss is back at its start."""
    losses = np.array([1.0, 0.5, 0.2, 9.0])
    planted = ends_of(losses, 1.1, 1.0, 0.0, np.array([0.1, 0.6, 0.9, 1.0]))
    assert planted == {"loss": 1.0, "change": 1.0}
    found = {
        name: kept_case(
            kept_folder, f"range {name} {BASE | fields} {NETWORKS} {len(GRID)}", partial(one_setting, fields)
        )
        for name, fields in SETTINGS.items()
    }
    record("first-step-range", {"networks": NETWORKS, "median, least, most over the critical rate": found})
    for one in (ends for setting in found.values() for ends in setting.values()):
        assert all(GRID[0] < median < 1 for median, _, _ in one.values())
