"""The first step of networks with more classes than coordinates beside theory given their logits and labels."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from checks.trust import SPREAD, SQUARED, Trust
from simulate.curvature.first_step import direction, first_step_problem, gradients, measure_step
from tests.evidence.first_step.test_first_step import FAR, MEASURED, outputs_of, rounded
from tests.helpers.evidence_file import kept_case, record
from tests.helpers.given_outputs import first_step_given
from theory import Stack
from theory.stack.optimizers import Optimizer

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

BASE = {"width": 256, "depth": 2, "tokens": 8}
NETWORKS = 12
CLASSES = (4, 16, 64)
"""V/d."""
SETTINGS: dict[str, dict[str, Any]] = {
    "Post-LN": {},
    "Pre-LN": {"placement": "pre"},
    "Pre-LN, SwiGLU, W^O, RMSNorm": {
        "placement": "pre", "ffn": "gated", "activation": "silu", "output_projection": "random", "normalization": "rms",
    },
    "Post-LN, L = 1, two tokens": {"depth": 1, "tokens": 2},
}  # fmt: skip
OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "normalized", "adam", "polar", "muon")


def one_setting(fields: dict[str, Any]) -> dict[str, Any]:
    """Measured over theory, by optimizer and quantity: means and standard errors over networks."""
    torch.set_num_threads(1)
    stack = Stack(**(BASE | fields))
    ratios: dict[Optimizer, dict[str, list[float]]] = {name: {m: [] for m in MEASURED} for name in OPTIMIZERS}
    for seed in range(NETWORKS):
        problem = first_step_problem(stack, seed=seed)
        loss, gradient = gradients(problem)
        p, r = outputs_of(stack, problem)
        for optimizer, by_name in ratios.items():
            found = measure_step(problem, gradient, direction(gradient, optimizer), loss, ends=False)
            theory = first_step_given(stack, p, r, optimizer)
            for name, attribute in MEASURED.items():
                by_name[name].append(getattr(found, attribute) / float(theory[name][0]))
    return {
        optimizer: {
            name: [float(np.mean(values)), float(np.std(values, ddof=1) / NETWORKS**0.5)]
            for name, values in by_name.items()
        }
        for optimizer, by_name in ratios.items()
    }


def test_many_classes(kept_folder):
    """Within the error that finite width implies or 4 standard errors."""
    found: dict[str, Any] = {}
    for name, fields in SETTINGS.items():
        for count in CLASSES:
            sized = fields | {"vocab": count * BASE["width"]}
            case = f"many classes {name} {BASE | sized} {NETWORKS} {OPTIMIZERS}"
            found[f"{name}, V = {count}d"] = kept_case(kept_folder, case, partial(one_setting, sized))
    record("first-step-vocab", {"over theory": rounded(found)})
    for name, by_optimizer in found.items():
        fields = SETTINGS[name.rpartition(", V")[0]]
        stack = Stack(**(BASE | fields | {"vocab": 4 * BASE["width"]}))
        for optimizer, numbers in by_optimizer.items():
            margin = SQUARED * Trust.of(stack).error + SPREAD.get(optimizer, 0.0) * stack.rows / stack.width
            for quantity, (ratio, sem) in numbers.items():
                assert abs(ratio - 1) < max(margin, FAR * sem), (name, optimizer, quantity, ratio, sem, margin)
