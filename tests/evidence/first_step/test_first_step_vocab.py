"""The first step of networks with more classes than coordinates beside theory given their logits and labels."""

from functools import partial
from typing import Any

import pytest

from checks.trust import SPREAD, SQUARED, Trust
from tests.evidence.first_step.test_first_step import FAR, one_setting, rounded
from tests.helpers.evidence_file import kept_case, record
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


def test_many_classes(kept_folder):
    """Within the error that finite width implies or 4 standard errors."""
    found: dict[str, Any] = {}
    for name, fields in SETTINGS.items():
        for count in CLASSES:
            sized = fields | {"vocab": count * BASE["width"]}
            case = f"many classes {name} {BASE | sized} {NETWORKS} {OPTIMIZERS}"
            found[f"{name}, V = {count}d"] = kept_case(
                kept_folder, case, partial(one_setting, BASE | sized, OPTIMIZERS, NETWORKS)
            )
    record("first-step-vocab", {"over theory": rounded(found)})
    for name, by_optimizer in found.items():
        fields = SETTINGS[name.rpartition(", V")[0]]
        stack = Stack(**(BASE | fields | {"vocab": 4 * BASE["width"]}))
        for optimizer, numbers in by_optimizer.items():
            margin = SQUARED * Trust.of(stack).error + SPREAD.get(optimizer, 0.0) * stack.rows / stack.width
            for quantity, (ratio, sem) in numbers.items():
                assert abs(ratio - 1) < max(margin, FAR * sem), (name, optimizer, quantity, ratio, sem, margin)
