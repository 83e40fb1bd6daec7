"""Whether the stream of a probed module is whole: residual connections, gradients that arrive, all its layers."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Finding

NORMED_RESPONSE = 0.1
"""The response of a layer's output to the scale of its input below which a norm stands behind it: there it is 0, and
the input's share of the output without a norm."""

# So often is a layer named by mistake, if what it adds has a random direction.
_MISTAKE = 1e-6
_SURE = float(stats.norm.isf(_MISTAKE))
# The part of its neighbours' coefficient that a residual connection has at least.
_KEPT = 0.5
_NEAR = 4


def coefficients(rows: pd.DataFrame, layers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """How much of its input every layer's output holds, and the error: means over seeds; nan where it has none."""
    values = []
    for quantity in ("stream_coefficient", "coefficient_error"):
        by_layer = rows[rows["quantity"] == quantity].groupby("layer")["value"]
        mean = (
            by_layer.mean()
            if quantity == "stream_coefficient"
            else by_layer.apply(lambda v: float(np.sqrt((v**2).sum())) / len(v))
        )
        values.append(mean.reindex(layers).to_numpy(dtype=float))
    return values[0], values[1]


def without_residual(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Layers whose output does not hold their input, though the nearest layers' do.

    c = <x, y>/<x, x> is 1 for y = x + b, whatever the size of b and of x, and that over the norm's scale behind a norm.
    Its error is b's, projected; weak embeddings make it large, and a layer is named only where its c is below half of
    its neighbours' by more than chance makes.
    """
    values, errors = coefficients(rows, layers)
    for k, value in enumerate(values):
        near = [j for j in sorted(range(len(values)), key=lambda j: abs(j - k)) if j != k and np.isfinite(values[j])]
        near = near[:_NEAR]
        if len(near) < 2 or not np.isfinite(value):
            continue
        # The lower of two in the middle: the first layer's input may have another size, and so another coefficient.
        usual = sorted(near, key=lambda j: float(values[j]))[(len(near) - 1) // 2]
        kept, error = _KEPT * values[usual], np.hypot(errors[k], _KEPT * errors[usual])
        if kept > _SURE * _KEPT * errors[usual] and kept - value > _SURE * error:
            what = "its output holds {} of its input, its neighbours' {}: is its residual connection there?"
            yield Finding(int(layers[k]), "residual", what, (float(value), float(values[usual])), digits=2)


def no_residual_anywhere(frame: pd.DataFrame) -> list[str]:
    """A line for every list of which no layer has a residual connection; that may be meant."""
    lines = []
    for part, rows in frame[frame["layer"] > 0].groupby("part", sort=False):
        layers = sorted(rows["layer"].unique())
        values, errors = coefficients(rows, layers)
        if len(layers) > 1 and np.isfinite(values).all() and (np.abs(values) < _SURE * errors).all():
            highest = float(np.abs(values).max())
            lines.append(
                f"no layer of {part} has a residual connection that can be seen (coefficients up to {highest:.2g})"
            )
    return lines


def detached(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Where the gradient stops on its way to the input, though parameters before would learn."""
    arrives = rows[rows["quantity"] == "gradient_sq"].groupby("layer")["value"].max().reindex(layers).to_numpy(float)
    reached = [k for k, value in enumerate(arrives) if value > 0]
    if not reached:
        return
    for k in range(reached[-1] + 1, len(layers)):
        if arrives[k] == 0:
            yield Finding(int(layers[k]), "detached", "no gradient arrives at its output: is that used?")
    first = reached[0]
    if first and learning(rows, layers[:first]):
        # An output that asks for a gradient and gets none is cut off by the next layer, another one by its own.
        cut = first if arrives[first - 1] == 0 else first - 1
        yield Finding(
            int(layers[cut]), "detached", "no gradient arrives at the layers before it: is it detached there?"
        )


def unreached(rows: pd.DataFrame, layers: list[int]) -> set[int]:
    """Layers at whose output no gradient arrives, while it does at others."""
    arrives = rows[rows["quantity"] == "gradient_sq"].groupby("layer")["value"].max().reindex(layers)
    return {int(layer) for layer, value in arrives.items() if not value > 0} if (arrives > 0).any() else set()


def learning(rows: pd.DataFrame, layers: list[int]) -> bool:
    """Whether a parameter of these layers is not frozen."""
    here = rows[rows["layer"].isin(layers)]
    return bool((here["quantity"] == "weight").sum() > (here["quantity"] == "frozen").sum())


def wrong_depth(frame: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    """Lists that have the same number of layers at every depth that was asked for."""
    counts = frame[frame["quantity"] == "layers"]
    for part, rows in counts.groupby("part", sort=False):
        if rows["depth"].nunique() > 1 and rows["value"].nunique() == 1:
            finding = Finding(WHOLE_MODEL, "depth", "has {} layers whatever the depth", (float(rows["value"].iloc[0]),))
            for where in rows[["width", "depth"]].drop_duplicates().itertuples(index=False):
                yield (int(where.width), int(where.depth)), str(part), finding


def other_depths(frame: pd.DataFrame) -> list[str]:
    """A line for every list and depth that has another number of layers than was asked for."""
    counts = frame[(frame["quantity"] == "layers") & (frame["value"] != frame["depth"])]
    unique = counts[["part", "depth", "value"]].drop_duplicates()
    return [f"{row.part} has {row.value:.0f} layers at depth {row.depth}" for row in unique.itertuples()]
