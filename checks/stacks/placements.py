"""Placements of LayerNorm side by side: how gradients depend on the depth, and on the layer."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from checks.fits import LEAST_POINTS, power_law
from checks.statistics import estimate
from checks.theory_and_samples import cell_fields, prediction_of
from simulate import Samples
from theory.stack import TITLES


def layer_norms(cells: Sequence[Samples]) -> pd.DataFrame:
    """One row per cell and layer: its fields, layer, and norm, sem and predicted, the root mean squares of ‖∂L/∂W²‖."""
    parts = []
    for s in cells:
        norm = estimate(s["grad_sq_W2"].astype(float)).root()
        values = {"layer": np.arange(1, s.stack.depth + 1), "norm": norm.mean, "sem": norm.sem}
        predicted = {"predicted": np.sqrt(prediction_of(s)["grad_sq_W2"])}
        parts.append(pd.DataFrame(values | predicted).assign(**cell_fields(s)))
    return pd.concat(parts, ignore_index=True)


def depth_exponents(norms: pd.DataFrame) -> pd.DataFrame:
    """Per placement the exponents in L of the last and the first layer's norm, measured and predicted alike.

    Args:
        norms: `layer_norms` of cells that differ in placement and depth alone.

    Returns:
        Columns placement, layer ("last" or "first"), exponent, low, high (95%), predicted.

    Raises:
        ValueError: a placement has fewer than `LEAST_POINTS` depths.
    """
    rows = []
    for placement, here in norms.groupby("placement", sort=False):
        if here["depth"].nunique() < LEAST_POINTS:
            raise ValueError(
                f"depth must have at least {LEAST_POINTS} values to give an exponent, got {sorted(set(here['depth']))}."
            )
        for layer, chosen in (("last", here[here["layer"] == here["depth"]]), ("first", here[here["layer"] == 1])):
            depth, norm = chosen["depth"].to_numpy(float), chosen["norm"].to_numpy()
            relative = chosen["sem"].to_numpy() / norm
            fit = power_law(depth, norm, chosen["sem"])
            theory = chosen["predicted"].to_numpy()
            low, high = fit.interval()
            rows.append(
                (placement, layer, fit.exponent, low, high, power_law(depth, theory, relative * theory).exponent)
            )
    return pd.DataFrame(rows, columns=["placement", "layer", "exponent", "low", "high", "predicted"])


def exponent_lines(exponents: pd.DataFrame) -> list[str]:
    """A line per placement."""
    lines = [f"{'exponent in L of ||dL/dW2||':28} {'last layer':34} first layer"]
    for placement, rows in exponents.groupby("placement", sort=False):
        numbers = [
            f"{row.exponent:+.3f} [{row.low:+.3f}, {row.high:+.3f}] ({row.predicted:+.3f})" for row in rows.itertuples()
        ]
        lines.append(f"{TITLES[str(placement)]:28} {numbers[0]:34} {numbers[1]}")
    return [*lines, "samples with their 95% interval, and in parentheses large-width theory over the same depths"]
