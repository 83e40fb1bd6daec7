"""What is wrong with single layers of a probed module: each is held against its neighbours in the same list.

The rules are factors, not tests: at initialization the layers of one list differ by a few percent, and smoothly.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# A layer is compared with so many that are nearest: fewer than half of them may be wrong themselves.
_NEAR = 4
# A weight this many times as large as its neighbours', or as small.
_WEIGHT = 3.0
# An energy that differs by so much from neighbours' that agree so well: those stand behind norms.
_NORMED, _EVEN = 1.1, 1.05
# A layer that multiplies the energy this many times more than its neighbours do, or less.
_ENERGY = 3.0
# The cosine of a token with itself a layer before: without a residual connection it is about 0.
_COSINE = 0.35
# The gradient of a layer over the largest of its list, and the energy of one over the smallest.
_VANISHED, _EXPLODED = 1e-3, 1e6


@dataclass(frozen=True, slots=True, order=True)
class Alarm:
    """Something that is wrong with a layer.

    Attributes:
        part: the list that it stands in.
        layer: its number, from 1.
        kind: "non-finite", "no gradient", "structure", "weight", "energy", "residual", "exploding" or "vanishing".
        what: in words, with the numbers of the first configuration.
        where: the widths and depths at which it was seen.
    """

    part: str
    layer: int
    kind: str
    what: str
    where: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        at = ", ".join(f"({width}, {depth})" for width, depth in self.where)
        return f"{self.kind}: layer {self.layer} of {self.part}: {self.what} [at (width, depth) = {at}]"


def alarms(frame: pd.DataFrame) -> list[Alarm]:
    """What is wrong in a probed module, each once, with the configurations in which it was seen.

    Args:
        frame: as `simulate.Probed` has it.
    """
    found: dict[tuple[str, int, str, str], list[tuple[int, int]]] = {}
    said: dict[tuple[str, int, str, str], str] = {}
    for (width, depth), here in frame[frame["layer"] > 0].groupby(["width", "depth"], sort=True):
        for part, rows in here.groupby("part", sort=False):
            for layer, kind, what in _of_list(rows):
                # The same with other numbers is the same.
                key = str(part), layer, kind, re.sub(r"[\d.]+", "#", what)
                said.setdefault(key, what)
                found.setdefault(key, []).append((int(width), int(depth)))
    return sorted(Alarm(*key[:3], what=said[key], where=tuple(where)) for key, where in found.items())


def _of_list(rows: pd.DataFrame) -> Iterator[tuple[int, str, str]]:
    layers = sorted(rows["layer"].unique())
    broken = list(_non_finite(rows))
    if broken:
        # What is not a number makes everything after it, and every gradient, none.
        yield from broken
        return
    yield from _without_gradient(rows, layers)
    yield from _structure(rows, layers)
    middle = rows.groupby(["quantity", "parameter", "layer"])["value"].median()
    for name in sorted(rows.loc[rows["quantity"] == "weight", "parameter"].unique()):
        weights = middle["weight", name].reindex(layers).to_numpy()
        if (weights > 0).all():
            for layer, factor in _outliers(np.log(weights), layers, np.log(_WEIGHT)):
                yield layer, "weight", f"norm of {name} is {_times(factor)} its neighbours'"
    # A layer that gives no tensor has no energy, and one that gives zeros has no logarithm of it.
    energies = _profile(middle, "hidden_energy", layers)
    energies = np.log(energies, where=energies > 0, out=np.full(len(layers), np.nan))
    above = energies - min(energies[np.isfinite(energies)], default=0.0)
    for layer, height in zip(layers, above, strict=True):
        if height > np.log(_EXPLODED):
            yield int(layer), "exploding", f"its energy is {np.exp(height):.1g} times the least layer's"
    yield from _without_norm(energies, layers)
    steps = np.concatenate([[np.nan], np.diff(energies)])
    for layer, factor in _outliers(steps, layers, np.log(_ENERGY)):
        yield layer, "energy", f"multiplies the energy by {_times(factor)} what its neighbours do"
    cosines = _profile(middle, "stream_cosine", layers)
    for layer, less in _outliers(cosines, layers, _COSINE):
        if less < 0:
            what = f"a token has cosine {cosines[layers.index(layer)]:.2f} with itself before"
            yield layer, "residual", f"{what}: is its residual connection there?"
    gradients = rows[rows["quantity"] == "gradient"]
    squares = np.square(gradients["value"]).groupby([gradients["seed"], gradients["layer"]]).sum()
    norms = np.sqrt(squares).groupby("layer").median().reindex(layers).to_numpy()
    shares = norms / max(norms[np.isfinite(norms)], default=1.0)
    for layer, share in zip(layers, shares, strict=True):
        if share < _VANISHED:
            yield int(layer), "vanishing", f"its gradient is {share:.1g} of the largest layer's"


def _non_finite(rows: pd.DataFrame) -> Iterator[tuple[int, str, str]]:
    """The first layer whose output is not finite; or else the last whose gradient is not."""
    bad = rows[~np.isfinite(rows["value"])]
    forward = bad[bad["quantity"] == "hidden_energy"]["layer"]
    weights = bad[bad["quantity"] == "weight"]
    for row in weights.drop_duplicates(["layer", "parameter"]).itertuples():
        yield int(row.layer), "non-finite", f"{row.parameter} holds numbers that are not finite"
    if not weights.empty:
        return
    if not forward.empty:
        yield int(forward.min()), "non-finite", "its output is not finite, and no layer's before it"
    elif not bad.empty:
        yield int(bad["layer"].max()), "non-finite", "its gradient is not finite, and no layer's after it"


def _without_gradient(rows: pd.DataFrame, layers: list[int]) -> Iterator[tuple[int, str, str]]:
    """Parameters that have no gradient in a layer, or a zero one, and have it in most others."""
    gradients = rows[(rows["quantity"] == "gradient") & (rows["value"] > 0)]
    weights = rows[rows["quantity"] == "weight"]
    yield from _lacking(gradients, layers, "no gradient", "gets no gradient in", weights)


def _structure(rows: pd.DataFrame, layers: list[int]) -> Iterator[tuple[int, str, str]]:
    """Parameters that a layer lacks and most others have."""
    yield from _lacking(rows[rows["quantity"] == "weight"], layers, "structure", "lacks", None)


def _lacking(
    rows: pd.DataFrame, layers: list[int], kind: str, words: str, among: pd.DataFrame | None
) -> Iterator[tuple[int, str, str]]:
    has = {layer: set(rows.loc[rows["layer"] == layer, "parameter"]) for layer in layers}
    usual = {name for name in set().union(*has.values()) if sum(name in h for h in has.values()) > len(layers) / 2}
    for layer in layers:
        missing = usual - has[layer]
        if among is not None:
            missing &= set(among.loc[among["layer"] == layer, "parameter"])
        if missing:
            yield int(layer), kind, f"{words} {', '.join(sorted(missing))}"


def _nearest(values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """The finite values of the layers that are nearest to one."""
    order = sorted((j for j in range(len(values)) if j != k), key=lambda j: abs(j - k))[:_NEAR]
    near = values[order]
    return near[np.isfinite(near)]


def _outliers(values: NDArray[np.float64], layers: list[int], limit: float) -> Iterator[tuple[int, float]]:
    """Layers that differ from the median of their neighbours by more than a limit, and by how much."""
    for k, own in enumerate(values):
        near = _nearest(values, k)
        if len(near) >= 2 and np.isfinite(own) and abs(own - np.median(near)) > limit:
            yield int(layers[k]), float(own - np.median(near))


def _without_norm(energies: NDArray[np.float64], layers: list[int]) -> Iterator[tuple[int, str, str]]:
    """Layers whose output has another energy than their neighbours', which have the same."""
    for k, own in enumerate(energies):
        near = _nearest(energies, k)
        even = len(near) >= 2 and near.max() - near.min() < np.log(_EVEN)
        if even and abs(own - np.median(near)) > np.log(_NORMED):
            what = f"its output has the energy {np.exp(own):.3g}, and its neighbours' {np.exp(np.median(near)):.3g}"
            yield int(layers[k]), "energy", f"{what}: is its norm there?"


def _profile(middle: pd.Series, quantity: str, layers: list[int]) -> NDArray[np.float64]:
    if quantity not in middle.index.get_level_values("quantity"):
        return np.full(len(layers), np.nan)
    return middle[quantity, ""].reindex(layers).to_numpy(dtype=float)


def _times(log_factor: float) -> str:
    factor = float(np.exp(log_factor))
    return f"{factor:.3g} times" if factor >= 1 else f"1/{1 / factor:.3g} of"
