"""The leading finite-width coefficient of every family of stacks, which says where predictions are judged."""

import json
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
from scipy.optimize import curve_fit

from checks.statistics import estimate
from checks.trust import COEFFICIENTS, BiasClass, class_of
from simulate import sample
from simulate.runs.files import write_whole
from tests.helpers.evidence_file import kept_case
from tests.helpers.width_families import reference_stacks
from theory import Stack, predict

pytestmark = pytest.mark.evidence

WIDTHS = (128, 256)
DRAWS = {"uniform": 4096, "queries": 1024}
# Standard errors that the size of a coefficient is taken less, so that the largest of many is not one of noise.
SHOWN = 2.0


def deviations(stack: Stack) -> dict[str, list[tuple[float, float]]]:
    """By quantity and layer, mean over prediction less 1 and its standard error, that of the prediction included."""
    samples = sample(
        stack, engine="conditioned", draws=DRAWS["queries" if stack.query_key_scale else "uniform"], seed=9
    )
    prediction, found = predict(stack, patterns=max(512, 16384 // stack.heads)), {}
    for name, predicted in prediction.items():
        measured = estimate(samples[name])
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.atleast_1d(measured.mean / predicted - 1)
            error = np.atleast_1d(np.hypot(measured.sem, prediction.errors.get(name, 0.0)) / np.abs(predicted))
        found |= {
            f"{name} {layer}": (float(off[layer]), float(error[layer]))
            for layer in range(len(off))
            if np.isfinite(off[layer]) and error[layer] > 1e-6
        }
    return found


def coefficient(widths: list[int], points: list[tuple[float, float]]) -> tuple[float, float]:
    """C of deviation = c/d, by weighted least squares, and its standard error."""
    off, error = zip(*points, strict=True)
    best, covariance = curve_fit(lambda d, c: c / d, widths, off, p0=[1.0], sigma=error, absolute_sigma=True)
    return float(best[0]), float(covariance[0, 0] ** 0.5)


def family_row(stacks: list[Stack]) -> dict[str, Any]:
    """Per class the quantity of the largest coefficient, by its size less two standard errors."""
    measured, row = [deviations(stack) for stack in stacks], {}
    for kind in get_args(BiasClass):
        fits = {}
        for name in measured[0]:
            if class_of(name.split()[0]) == kind:
                fits[name] = coefficient([one.width for one in stacks], [one[name] for one in measured])
        if fits:
            name, (c, error) = max(fits.items(), key=lambda one: abs(one[1][0]) - SHOWN * one[1][1])
            row[kind] = {"c": round(c, 2), "error": round(error, 2), "quantity": name.split()[0],
                         "layer": int(name.split()[1]) + 1}  # fmt: skip
    return row


def test_families(kept_folder):
    """Writes the table that `checks.trust` reads; a family that cannot be measured fails."""
    families = {name: [] for name, _ in reference_stacks(WIDTHS[0])}
    for width in WIDTHS:
        for name, stack in reference_stacks(width):
            families[name].append(stack)
    rows = {name: kept_case(kept_folder, name, partial(family_row, stacks)) for name, stacks in families.items()}
    content = {"widths": WIDTHS, "draws": DRAWS, "families": rows}
    write_whole(COEFFICIENTS, (json.dumps(content, indent=1) + "\n").encode())
    assert all(rows.values())
