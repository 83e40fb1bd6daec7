"""The largest stable rates of gradient descent beside statistics of initialization, network by network."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import gradbounds as gb
from gradbounds.studies.initial_statistics import initial_statistics
from gradbounds.studies.stable_rate.predictors import UNBOUNDED
from simulate.curvature.stable_rate import LOSSES, Loss, largest_stable_rates
from tests.helpers.evidence_file import kept_case, record
from theory import Stack

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

BASE = {"tokens": 8, "vocab": 16}
PLACEMENTS = ("post", "pre", "peri", "deepnorm")
DEPTHS = (1, 2, 4, 8, 16)
STEPS = 100
PARTS: dict[str, dict[str, Any]] = {
    "narrow-cross-entropy": {"widths": (32, 64, 128), "depths": DEPTHS, "losses": LOSSES[:1], "networks": 16},
    "narrow-squared": {"widths": (32, 64, 128), "depths": DEPTHS, "losses": LOSSES[1:], "networks": 16},
    # Fewer networks: each takes four times as long at twice the width.
    "wide-cross-entropy": {"widths": (256,), "depths": DEPTHS, "losses": LOSSES[:1], "networks": 6},
    "wide-squared": {"widths": (256,), "depths": DEPTHS, "losses": LOSSES[1:], "networks": 6},
    "widest-cross-entropy": {"widths": (512,), "depths": DEPTHS[:4], "losses": LOSSES[:1], "networks": 4},
    "widest-squared": {"widths": (512,), "depths": DEPTHS[:4], "losses": LOSSES[1:], "networks": 4},
}


def one_stack(fields: dict[str, Any], loss: Loss, networks: int) -> dict[str, list[Any]]:
    """Columns of the search's answers and of statistics, one entry for each network, to four digits."""
    torch.set_num_threads(1)
    stack = Stack(**(BASE | fields))
    start = 4 * float(gb.first_step(stack).critical_rate)
    rows = []
    # Few at once: side by side they share calls, and large ones would only fill memory.
    at_once = max(1, min(networks, 2**27 // (stack.depth * stack.width**2 * 3)))
    for first in range(0, networks, at_once):
        seeds = range(first, min(first + at_once, networks))
        found = largest_stable_rates(stack, seeds, start, loss=loss, steps=STEPS)
        for seed, rate in zip(seeds, found, strict=True):
            statistics = initial_statistics(stack, seed=seed, loss=loss)
            rows.append({"eta_max": rate.rate, "failure": rate.failure} | statistics.rates(stack.width))
    return {
        name: [one[name] if isinstance(one[name], str) else float(f"{one[name]:.4g}") for one in rows]
        for name in rows[0]
    }


@pytest.mark.parametrize("part", PARTS)
def test_stable_rates(part, kept_folder):
    """A bracket was found for every network, and every statistic but the Hessian rate is a positive number.

    A network without a largest rate, which learns its labels in one leap, may have no break-even rate: NaN.
    """
    asked = PARTS[part]
    found = []
    for width in asked["widths"]:
        for depth in asked["depths"]:
            for placement in PLACEMENTS:
                for loss in asked["losses"]:
                    fields = {"placement": placement, "width": width, "depth": depth}
                    name = f"stable rate {fields} {loss} {asked['networks']} {STEPS}"
                    of_stack = kept_case(kept_folder, name, partial(one_stack, fields, loss, asked["networks"]))
                    found.append(fields | {"loss": loss} | of_stack)
    record(f"stable-rate-{part}", {"base": BASE | {"steps": STEPS}, "stacks": found}, short=True)
    for one in found:
        bounded = np.array(one["eta_max"]) <= UNBOUNDED * np.array(one["critical rate"])
        for name, values in one.items():
            if isinstance(values, list) and name not in ("failure", "Hessian rate"):
                may_be_none = ~bounded & np.isnan(values) & (name == "break-even rate")
                stack = one["placement"], one["width"], one["depth"], name
                assert ((np.array(values) > 0) | may_be_none).all(), stack
