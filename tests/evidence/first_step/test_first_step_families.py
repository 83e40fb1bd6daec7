"""How far finite width takes first steps from theory: coefficients of every family, for errors stated beforehand."""

import json
from typing import Any

import numpy as np
import pytest

from checks.trust import DEPTH, MEASURED, NUMBERS, STEP_COEFFICIENTS, TOKENS, VOCAB, step_family
from simulate.runs.files import write_whole
from tests.helpers.evidence_file import kept_case
from tests.helpers.given_outputs import step_pairs
from tests.helpers.width_families import step_references
from theory import Stack

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

WIDTH, SEED = 96, 70_000
NETWORKS = {"sgd": 64, "adam": 16, "polar": 16}
MOST, ERROR = 384, 4.0
"""SGD's networks are doubled up to so many, until the coefficient of the curvature has at most this error."""


def row(stack: Stack) -> dict[str, dict[str, list[float]]]:
    """By optimizer and number d times what networks are off theory by, which is given their outputs, and its error."""
    pairs: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in MEASURED}
    count, wanted = 0, NETWORKS["sgd"]
    while count < wanted:
        chosen = [name for name in MEASURED if name == "sgd" or count < NETWORKS[name]]
        for optimizer, numbers in step_pairs(stack, chosen, SEED + count).items():
            pairs[optimizer].append([*numbers.values()])
        count += 1
        found = {name: coefficients(*np.moveaxis(of, 2, 0), stack.width) for name, of in pairs.items()}
        if count == wanted < MOST and found["sgd"]["curvature"][1] > ERROR:
            wanted = min(MOST, 2 * wanted)
    return found


def coefficients(measured: Any, predicted: Any, width: int) -> dict[str, list[float]]:
    """Of gain, curvature, their ratio, which is the rate's, and change."""
    means = predicted.mean(0)
    ratio, off = measured.mean(0) / means, (measured - measured.mean(0) / means * predicted) / means
    found = dict(zip(("gain", "curvature", "logit_change_sq"), zip(ratio, off.T, strict=True), strict=True))
    (gain, of_gain), (curvature, of_curvature) = found["gain"], found["curvature"]
    rate = gain / curvature
    found["critical_rate"] = rate, rate * (of_gain / gain - of_curvature / curvature)
    return {
        name: [
            round(width * float(value) - width, 2),
            round(width * float(each.std(ddof=1) / len(measured) ** 0.5), 2),
        ]
        for name, (value, each) in ((name, found[name]) for name in NUMBERS)
    }


def test_families(kept_folder):
    """Writes the table that `checks.trust` reads; a family that cannot be measured fails."""
    rows = {
        step_family(stack): kept_case(kept_folder, f"{step_family(stack)} {stack!r}", lambda stack=stack: row(stack))
        for stack in step_references(WIDTH)
    }
    content = {"width": WIDTH, "depth": DEPTH, "tokens": TOKENS, "vocab": VOCAB, "families": rows}
    write_whole(STEP_COEFFICIENTS, (json.dumps(content) + "\n").encode())
    assert len(rows) == 12
    assert all(np.isfinite(list(of.values())).all() for row in rows.values() for of in row.values())
