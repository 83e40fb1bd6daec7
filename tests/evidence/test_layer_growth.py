"""Growth of gradients towards the input in gated Post-LN stacks: dense networks, and deep ones by conditioning."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from checks.fits import log_contrast
from simulate import sample
from tests.helpers.agreement import deviations
from tests.helpers.evidence_file import kept_case, record
from theory import Stack, predict
from theory.paper.layer_growth import layer_factor

pytestmark = pytest.mark.evidence

GATED = {"ffn": "gated", "vocab": 64, "tokens": 8}
DENSE = {
    "SiLU, gains 1": {"activation": "silu"},
    "GELU, gains 1": {"activation": "gelu"},
    "SiLU, He": {"activation": "silu", "initialization": "he"},
    "SiLU, r = 2.5, W^O, causal, RMSNorm": {
        "activation": "silu", "ffn_ratio": 2.5, "output_projection": "random", "mask": "causal", "normalization": "rms",
    },
}  # fmt: skip
DEEP = {
    "SiLU, gains 1": {"activation": "silu"},
    "GELU, gains 1": {"activation": "gelu"},
    "SiLU, dropout 0.1": {"activation": "silu", "dropout": 0.1},
}


def case(stack: Stack, engine: Any, draws: int) -> dict[str, Any]:
    """Every number's deviation, and the first layer's gradient over the last's with its error."""
    drawn, predicted = sample(stack, draws=draws, seed=7, engine=engine), predict(stack, patterns=4096)
    ends, middle = np.zeros(stack.depth), np.zeros(stack.depth)
    ends[0], ends[-1] = 0.5, -0.5
    middle[stack.depth // 2], middle[-1] = -0.5, 0.5
    ratio, slope = (log_contrast(drawn["grad_sq_W2"], weights) for weights in (ends, middle))
    norms = np.sqrt(predicted["grad_sq_W2"])
    layers = stack.depth - 1 - stack.depth // 2
    rows = deviations(drawn, predicted)
    return {
        "draws": draws,
        "numbers": len(rows),
        "beyond": [row for row in rows if row["of what is allowed"] > 1],
        "widest": max(rows, key=lambda row: row["of what is allowed"]),
        "median deviation": float(np.median([row["relative"] for row in rows])),
        "first over last": float(np.exp(ratio.mean)),
        "its relative error": float(ratio.sem),
        "first over last, theory": float(norms[0] / norms[-1]),
        "factor per layer, upper half": float(np.exp(slope.mean / layers)),
        "error of the factor": float(slope.sem / layers),
        "factor, closed form": layer_factor(stack),
    }


def test_growth(kept_folder):
    """Within 3% or 4 standard errors, where a number is off by chance with at most 6e-5."""
    found: dict[str, Any] = {}
    # L/d is 1/200 in the dense engine, 1/341 in the other.
    settings = {"dense": (DENSE, 1600, 8, 48), "conditioned": (DEEP, 8192, 24, 48)}
    for engine, (cases, width, depth, draws) in settings.items():
        for name, fields in cases.items():
            stack = Stack(**GATED, **fields, width=width, depth=depth)
            label = f"{engine}, d = {width}, L = {depth}: {name}"
            found[label] = kept_case(kept_folder, label, partial(case, stack, engine, draws))
    record("layer-growth", found)
    assert [one for one in found.values() if one["beyond"]] == []
