"""Tables that compare placements of LayerNorm: gradient norms against the depth, and over the layers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from checks.fits import LEAST_POINTS, power_law
from checks.statistics import estimate
from checks.theory_and_samples import cell_fields, prediction_of
from simulate import Samples

FLAT = 1.1
"""The largest ratio of two layers' norms that is called flat."""


def layer_norms(cells: Sequence[Samples]) -> pd.DataFrame:
    """Return the root mean square gradient norms of W² in a table with one row for each sampled network and layer.

    Returns:
        The fields of the network, `layer`, `norm` (measured), `sem` (its standard error) and `predicted` (NaN without a
        rule).
    """
    parts = []
    for number, s in enumerate(cells):
        norm = estimate(s["grad_sq_W2"].astype(float)).root()
        values = {"layer": np.arange(1, s.stack.depth + 1), "norm": norm.mean, "sem": norm.sem}
        known = prediction_of(s)
        predicted = {"predicted": np.sqrt(known["grad_sq_W2"]) if known else np.full(s.stack.depth, np.nan)}
        parts.append(pd.DataFrame(values | predicted).assign(cell=number))
    # Fields join once: to set each of them in every cell's frame takes longer than the statistics.
    fields = pd.DataFrame([cell_fields(s) for s in cells])
    return pd.concat(parts, ignore_index=True).join(fields, on="cell").drop(columns="cell")


def depth_exponents(norms: pd.DataFrame) -> pd.DataFrame:
    """Return for each placement the exponents in L of the first and last layer's gradient norm, measured and predicted.

    Args:
        norms: table from `layer_norms` of networks that differ only in placement and depth.

    Returns:
        Columns placement, layer ("last" or "first"), exponent, low, high (95%), predicted (NaN without a rule).

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
            predicted = power_law(depth, theory, relative * theory).exponent if np.isfinite(theory).all() else np.nan
            rows.append((placement, layer, fit.exponent, low, high, predicted))
    return pd.DataFrame(rows, columns=["placement", "layer", "exponent", "low", "high", "predicted"])


def layer_spreads(norms: pd.DataFrame) -> pd.DataFrame:
    """Return for each placement the ratio of the largest to the smallest layer's gradient norm, at the greatest depth.

    Args:
        norms: table from `layer_norms` of networks that differ only in placement and depth.

    Returns:
        Columns placement, depth, spread (the measured ratio), sem, predicted (NaN without a rule), and flat: whether
        the ratio is below `FLAT`, in theory or, without a rule, in samples.
    """
    rows = []
    for placement, here in norms[norms["depth"] == norms["depth"].max()].groupby("placement", sort=False):
        most, least = (here.loc[getattr(here["norm"], end)()] for end in ("idxmax", "idxmin"))
        spread = most["norm"] / least["norm"]
        sem = spread * np.hypot(most["sem"] / most["norm"], least["sem"] / least["norm"]) if len(here) > 1 else 0.0
        predicted = here["predicted"].max() / here["predicted"].min()
        flat = bool((predicted if np.isfinite(predicted) else spread) < FLAT)
        rows.append((placement, int(most["depth"]), float(spread), float(sem), float(predicted), flat))
    return pd.DataFrame(rows, columns=["placement", "depth", "spread", "sem", "predicted", "flat"])
