"""The first step of networks beside theory given their logits and labels, by torch's own optimizers."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from simulate.curvature.first_step import sampled_steps
from tests.helpers.evidence_file import kept_case, record
from tests.helpers.given_outputs import NUMBERS, step_pairs
from theory import Stack

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

BASE = {"width": 400, "depth": 2, "tokens": 8, "vocab": 16}
NETWORKS = 48

SETTINGS: dict[str, dict[str, Any]] = {
    "Post-LN": {},
    "Pre-LN": {"placement": "pre"},
    "Peri-LN": {"placement": "peri"},
    "DeepNorm": {"placement": "deepnorm"},
    "Post-LN, V = d/4": {"width": 512, "vocab": 128},
    "Pre-LN, V = d/4": {"width": 512, "vocab": 128, "placement": "pre"},
    "Post-LN, one token": {"tokens": 1},
    "Pre-LN, 32 tokens": {"tokens": 32, "placement": "pre"},
    "Post-LN, causal, sinusoidal": {"mask": "causal", "positions": "sinusoidal"},
    "Pre-LN, SwiGLU": {"placement": "pre", "ffn": "gated", "activation": "silu"},
    "Post-LN, GELU, smoothed labels": {"activation": "gelu", "label_smoothing": 0.1},
    "Pre-LN, RMSNorm, W^O, two sequences": {
        "placement": "pre", "normalization": "rms", "output_projection": "random", "sequences": 2, "tokens": 4,
    },
    "Post-LN, L = 4": {"width": 800, "depth": 4},
}  # fmt: skip
MARGIN, FAR = 0.03, 4.0
OTHERS = ("adam", "muon")
"""By torch's class; what theory has of Muon is exact arithmetic, torch's is bfloat16."""
OTHER_SETTINGS = {
    "adam": ("Post-LN", "Pre-LN", "Peri-LN", "DeepNorm", "Post-LN, V = d/4", "Post-LN, one token"),
    "muon": ("Post-LN", "Pre-LN"),
}
OTHER_NETWORKS, OTHER_MARGIN = {"adam": 24, "muon": 8}, 0.05
RATES = {"width": 128, "depth": 2, "tokens": 8, "vocab": 16}
RATE_NETWORKS = 16


def one_setting(
    fields: dict[str, Any], optimizers: tuple[Any, ...] = ("sgd",), networks: int = NETWORKS
) -> dict[str, dict[str, list[float]]]:
    """Measured over theory given the network's own logits and labels: means and standard errors over networks."""
    stack = Stack(**(BASE | fields))
    pairs = [step_pairs(stack, optimizers, seed) for seed in range(networks)]
    found: dict[str, dict[str, list[float]]] = {optimizer: {} for optimizer in optimizers}
    for optimizer, numbers in found.items():
        for name in NUMBERS:
            ratios = [one[optimizer][name][0] / one[optimizer][name][1] for one in pairs]
            numbers[name] = [float(np.mean(ratios)), float(np.std(ratios, ddof=1) / networks**0.5)]
    return found


def test_first_step(kept_folder):
    """Within 3% or 4 standard errors; by both, 39 numbers raise a false alarm once in some 100 runs."""
    found = {
        name: kept_case(kept_folder, f"sgd {name} {BASE | fields} {NETWORKS}", partial(one_setting, fields))["sgd"]
        for name, fields in SETTINGS.items()
    }  # fmt: skip
    others = {
        optimizer: {
            name: kept_case(
                kept_folder, f"first step {optimizer} {name} {BASE | SETTINGS[name]} {OTHER_NETWORKS[optimizer]}",
                partial(one_setting, SETTINGS[name], (optimizer,), OTHER_NETWORKS[optimizer]),
            )[optimizer]
            for name in OTHER_SETTINGS[optimizer]
        }
        for optimizer in OTHERS
    }  # fmt: skip
    rates = {
        placement: kept_case(kept_folder, f"rates {placement} {RATES} {RATE_NETWORKS}", partial(three_rates, placement))
        for placement in ("post", "pre")
    }
    content = {"sgd": found} | others
    record("first-step", {"over theory": rounded(content), "over the critical rate": rounded(rates)})
    for optimizer, settings in content.items():
        margin = MARGIN if optimizer == "sgd" else OTHER_MARGIN
        for name, one in settings.items():
            for quantity, (ratio, sem) in one.items():
                assert abs(ratio - 1) < max(margin, FAR * sem), (optimizer, name, quantity, ratio, sem)
    for one in rates.values():
        assert all(of_optimizer["passes"] <= 8 for of_optimizer in one.values())


def three_rates(placement: str) -> dict[str, Any]:
    """Medians over networks of Hessian and break-even rate over the critical rate, and of the forward passes taken."""
    torch.set_num_threads(1)
    optimizers = ("sgd", "adam", "muon")
    stack = Stack(placement=placement, **RATES)
    steps = [sampled_steps(stack, optimizers, seed=seed) for seed in range(RATE_NETWORKS)]
    found = {}
    for optimizer in optimizers:
        own = [one[optimizer] for one in steps]
        ends = [one.break_even_rate / one.critical_rate for one in own]
        found[optimizer] = {
            "hessian": float(np.nanmedian([one.hessian_rate / one.critical_rate for one in own])),
            "break even": float(np.median(ends)),
            "least break even": min(ends),
            "most break even": max(ends),
            "passes": float(np.median([one.passes for one in own])),
        }
    return found


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else round(value, 4)
