"""The first step from modules of torch: the search for the break-even rate beside steps on a fine grid, and theory."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from checks.models.module_rates import module_rates
from simulate.curvature.module_step import MODULE_OPTIMIZERS, WHOLE, module_steps, one_step
from simulate.modules.catalogue import BUILTINS
from simulate.modules.factories import build, module_seed, seeded
from tests.helpers.evidence_file import kept_case, record
from tests.helpers.grid_of_steps import doubled, losses_of_steps
from tests.helpers.model_families import nano_gpt
from tests.helpers.probed_modules import as_a_stack
from theory import Stack

pytestmark = pytest.mark.evidence

MODULES = {
    "nn.TransformerEncoder, Post-LN": BUILTINS["encoder-post"].factory,
    "nn.TransformerEncoder, Pre-LN": BUILTINS["encoder-pre"].factory,
    "GPT": nano_gpt,
}
WIDTH, DEPTH, NETWORKS = 64, 3, 4
STEP, FIRST, LAST = 0.03, 1 / 10, 1.1
"""Of the grid: what lies between two rates, and its ends over the rate that the search found."""
STACK, STACK_NETWORKS = {"width": 448, "depth": 2, "tokens": 16, "vocab": 512}, 16


def on_a_grid(name: str, optimizer: str) -> dict[str, Any]:
    """The search over the first rate of the grid at which the loss is back, by network; and its forward passes."""
    torch.set_num_threads(1)
    factory = doubled(MODULES[name])
    ratios, passes, none = [], [], 0
    for number in range(NETWORKS):
        seed = module_seed(0, WIDTH, DEPTH, number)
        with seeded(seed):
            one = build(factory, WIDTH, DEPTH, seed, "cpu")
        one.module.eval()
        (row,) = (row for row in one_step(one, [optimizer], seed, depth=DEPTH) if row["group"] == WHOLE)
        rate = row["break_even_rate"]
        if not np.isfinite(rate):
            none += 1
            continue
        grid = rate * np.exp(np.arange(np.log(FIRST), np.log(LAST), STEP))
        above = np.array(losses_of_steps(one, optimizer, grid)) >= row["loss"]
        assert above.any(), (name, optimizer, number)
        ratios.append(rate / grid[above.argmax()])
        passes.append(row["passes"])
    found = {"networks": NETWORKS, "none": none, "passes": float(np.median(passes)) if passes else None}
    return found | {"search over grid": sorted(round(float(one), 3) for one in ratios)}


def beside_theory(placement: str) -> dict[str, float]:
    """The critical rate of SGD from a module that is a Stack, over theory."""
    torch.set_num_threads(1)
    sizes = {"widths": [STACK["width"]], "depths": [STACK["depth"]]}
    steps = module_steps(as_a_stack(placement), ["sgd"], seeds=STACK_NETWORKS, **sizes)
    table = module_rates(steps, lambda width, depth: Stack(placement=placement, **STACK)).table
    rate, sem, theory, error = table[["critical_rate", "critical_sem", "predicted", "predicted_sem"]].iloc[0]
    return {"ratio": rate / theory, "sem": float(np.hypot(sem / theory, error / theory))}


def test_modules(kept_folder):
    """Each search within 5% of the grid; critical rates within 3% or 4 standard errors."""
    grid = {
        name: {
            optimizer: kept_case(
                kept_folder,
                f"grid {name} {optimizer} {WIDTH} {DEPTH} {NETWORKS} {STEP} {FIRST}",
                partial(on_a_grid, name, optimizer),
            )
            for optimizer in MODULE_OPTIMIZERS
        }
        for name in MODULES
    }
    theory = {
        placement: kept_case(
            kept_folder, f"theory {placement} {STACK} {STACK_NETWORKS}", partial(beside_theory, placement)
        )
        for placement in ("post", "pre")
    }
    shown = {name: {key: round(value, 4) for key, value in one.items()} for name, one in theory.items()}
    record("first-step-modules", {"break-even": grid, "critical rate of SGD over theory": shown})
    for one in (of for module in grid.values() for of in module.values()):
        assert all(abs(ratio - 1) < 0.05 for ratio in one["search over grid"])
    for one in theory.values():
        assert abs(one["ratio"] - 1) < max(0.03, 4 * one["sem"])
