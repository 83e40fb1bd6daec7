"""What is wrong with single layers of a probed module: each is held against its neighbours in the same list.

The rules are factors, not tests: at initialization the layers of one list differ by a few percent, and smoothly.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from checks.models.alarm import WHOLE_MODEL, Alarm, Finding, escaped, merged
from checks.models.streams import (
    behind_norms,
    detached,
    independent,
    never_learning,
    unreached,
    without_residual,
    wrong_depth,
)

# A layer is compared with so many that are nearest: fewer than half of them may be wrong themselves.
_NEAR = 4
# A weight this many times as large as its neighbours', or as small.
_WEIGHT = 3.0
# An energy that differs by so much from neighbours' that agree so well: those stand behind norms.
_NORMED, _EVEN = 1.1, 1.05
# A layer that multiplies the energy this many times more than its neighbours do, or less.
_ENERGY = 3.0
_NAMED = 3
# The gradient of a layer over the largest of its list, and the energy of one over the smallest.
_VANISHED, _EXPLODED = 1e-3, 1e6


def alarms(frame: pd.DataFrame) -> list[Alarm]:
    """What is wrong in a probed module, each once, with the configurations in which it was seen.

    Args:
        frame: as `simulate.Probed` has it.
    """
    return merged([*_findings(frame), *wrong_depth(frame)])


def _findings(frame: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    for (width, depth), here in frame.groupby(["width", "depth"], sort=True):
        losses = here.loc[here["quantity"] == "loss", "value"]
        lost = "".join(f"the loss is {loss:g}" for loss in losses[~np.isfinite(losses)][:1])
        outside = [replace(of, what=f"{of.what}{'; ' * bool(lost)}{lost}") for of in _outside(here)]
        for finding in outside:
            yield (int(width), int(depth)), "", finding
        broken = bool(outside)
        for part, rows in here[here["layer"] > 0].groupby("part", sort=False):
            for finding in _of_list(rows, lost, outside=bool(outside)):
                broken = broken or finding.kind == "non-finite"
                yield (int(width), int(depth)), str(part), finding
        if lost and not broken:
            yield (int(width), int(depth)), "", Finding(WHOLE_MODEL, "non-finite", lost)


def _outside(here: pd.DataFrame) -> list[Finding]:
    """Weights outside of layers that hold no numbers; or else the module there that is the first to give none."""
    rows = here[here["layer"] == 0]
    weights = rows[(rows["quantity"] == "weight") & ~np.isfinite(rows["value"])]["parameter"].unique()
    if len(weights):
        what = f"{escaped(', '.join(weights[:_NAMED]))} {'holds' if len(weights) == 1 else 'hold'} numbers that are not"
        return [Finding(WHOLE_MODEL, "non-finite", f"{what} finite")]
    if not np.isfinite(here.loc[here["quantity"] == "weight", "value"]).all():
        return []
    first = here[here["quantity"] == "not_finite"].drop_duplicates(["part", "layer", "parameter"])
    names = [
        (f"{row.parameter} of layer {row.layer} of {row.part}" if row.layer else row.parameter, row.value)
        for row in first.itertuples() if row.value or not row.layer
    ]  # fmt: skip
    return [Finding(WHOLE_MODEL, "non-finite", _first(name, given)) for name, given in names]


def _first(name: str, given: float) -> str:
    which = escaped(name) if name else "the whole"
    if given:
        return f"what goes into {which} is not finite, and no module's output before it"
    return f"the output of {which} is not finite, and no module's before it"


def _of_list(rows: pd.DataFrame, lost: str, *, outside: bool) -> Iterator[Finding]:
    """What is wrong in a list; behind a loss that is not finite, `lost` in words, no gradient says anything.

    What is not finite outside of layers makes what they give, and their gradients, no numbers.
    """
    layers = sorted(rows["layer"].unique())
    broken = list(_non_finite(rows, lost=bool(lost) or outside, outside=outside))
    if broken or lost or outside:
        # What is not a number makes everything after it, and every gradient, none.
        yield from (replace(finding, what=f"{finding.what}{'; ' * bool(lost)}{lost}") for finding in broken)
        return
    # One alarm says where the gradient stops; what does not get it then is no other.
    silent = unreached(rows, layers)
    yield from never_learning(rows)
    yield from _without_gradient(rows[~rows["layer"].isin(silent)], [k for k in layers if k not in silent])
    yield from _structure(rows, layers)
    middle = rows.groupby(["quantity", "parameter", "layer"])["value"].median()
    causes = set[int]()
    for name in sorted(rows.loc[rows["quantity"] == "weight", "parameter"].unique()):
        weights = middle["weight", name].reindex(layers).to_numpy()
        if (weights > 0).all():
            for layer, factor in _outliers(np.log(weights), layers, np.log(_WEIGHT)):
                what, number = _times(factor)
                causes.add(layer)
                yield Finding(layer, "weight", f"norm of {escaped(name)} is {what} its neighbours'", (number,))
    # A layer that gives no tensor has no energy, and one that gives zeros has no logarithm of it.
    energies = _profile(middle, "hidden_energy", layers)
    energies = np.log(energies, where=energies > 0, out=np.full(len(layers), np.nan))
    above = energies - min(energies[np.isfinite(energies)], default=0.0)
    for layer, height in zip(layers, above, strict=True):
        if height > np.log(_EXPLODED):
            what = "its energy is {} times the least layer's"
            yield Finding(int(layer), "exploding", what, (float(np.exp(height)),), digits=1)
    if behind_norms(rows):
        yield from _without_norm(energies, layers)
    residual = list(without_residual(rows, layers))
    if alone := independent(rows, layers):
        for layer, factor in _outliers(energies, layers, np.log(_ENERGY)):
            what, number = _times(factor)
            yield Finding(layer, "energy", f"the energy of its output is {what} its neighbours'", (number,))
    steps = np.concatenate([[np.nan], np.diff(energies)])
    apart = () if alone else _steps_apart(steps, layers, [finding.layer for finding in residual])
    for layer, reset, factor in apart:
        culprit = layer if layer in causes else reset
        what, number = _times(factor)
        behind = f"layer {layer} behind it " if culprit != layer else ""
        yield Finding(culprit, "energy", f"{behind}multiplies the energy by {what} what its neighbours do", (number,))
    yield from residual
    yield from detached(rows, layers)
    gradients = rows[rows["quantity"] == "gradient"]
    squares = np.square(gradients["value"]).groupby([gradients["seed"], gradients["layer"]]).sum()
    norms = np.sqrt(squares).groupby("layer").median().reindex(layers).to_numpy()
    largest = max(norms[np.isfinite(norms)], default=0.0)
    for layer, norm in zip(layers, norms, strict=True):
        if norm < _VANISHED * largest and layer not in silent:
            what = "its gradient is {} of the largest layer's"
            yield Finding(int(layer), "vanishing", what, (float(norm / largest),), digits=1)


def _non_finite(rows: pd.DataFrame, *, lost: bool, outside: bool) -> Iterator[Finding]:
    """The first layer whose output is not finite; or else the last whose gradient is not."""
    bad = rows[~np.isfinite(rows["value"])]
    forward = bad[bad["quantity"] == "hidden_energy"]["layer"]
    weights = bad[bad["quantity"] == "weight"]
    for row in weights.drop_duplicates(["layer", "parameter"]).itertuples():
        what = f"{escaped(row.parameter)} holds numbers that are not finite"
        yield Finding(int(row.layer), "non-finite", what)
    if not weights.empty or outside:
        return
    if not forward.empty:
        what, layer = "its output is not finite, and no layer's before it", int(forward.min())
        first = rows[(rows["quantity"] == "not_finite") & (rows["layer"] == layer) & (rows["parameter"] != "")]
        what += f": {_first(first['parameter'].iloc[0], first['value'].iloc[0])}" if len(first) else ""
        yield Finding(layer, "non-finite", what)
    elif not bad.empty and not lost:
        yield Finding(int(bad["layer"].max()), "non-finite", "its gradient is not finite, and no layer's after it")


def _without_gradient(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Parameters without a gradient in a layer, or a zero one, with one in most; frozen and idle ones are noted."""
    gradients = rows[(rows["quantity"] == "gradient") & (rows["value"] > 0)]
    weights, frozen = rows[rows["quantity"] == "weight"], rows[rows["quantity"].isin(["frozen", "idle"])]
    place = ["layer", "parameter"]
    weights = weights[~weights.set_index(place).index.isin(frozen.set_index(place).index)]
    yield from _lacking(gradients, layers, "no gradient", "gets no gradient in", weights)


def _structure(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Parameters that a layer lacks and most others have, and whether an Identity stands there, as one may choose."""
    identities = rows[rows["quantity"] == "identity"]
    for finding in _lacking(rows[rows["quantity"] == "weight"], layers, "structure", "lacks", None):
        names = identities.loc[identities["layer"] == finding.layer, "parameter"].unique()
        there = [escaped(name) for name in names if f"{escaped(name)}." in finding.what]
        yield replace(finding, what=finding.what + f": {', '.join(there)} is an Identity there") if there else finding


def _lacking(
    rows: pd.DataFrame, layers: list[int], kind: str, words: str, among: pd.DataFrame | None
) -> Iterator[Finding]:
    has = {layer: set(rows.loc[rows["layer"] == layer, "parameter"]) for layer in layers}
    usual = {name for name in set().union(*has.values()) if sum(name in h for h in has.values()) > len(layers) / 2}
    for layer in layers:
        missing = usual - has[layer]
        if among is not None:
            missing &= set(among.loc[among["layer"] == layer, "parameter"])
        if missing:
            yield Finding(int(layer), kind, f"{words} {escaped(', '.join(sorted(missing)))}")


def _nearest(values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """The finite values of the layers that are nearest to one."""
    order = sorted((j for j in range(len(values)) if j != k), key=lambda j: abs(j - k))[:_NEAR]
    near = values[order]
    return near[np.isfinite(near)]


def _outliers(values: NDArray[np.float64], layers: list[int], limit: float) -> Iterator[tuple[int, float]]:
    """Layers that differ from the median of their neighbours by more than a limit, and by how much."""
    for k, value in enumerate(values):
        near = _nearest(values, k)
        if len(near) < 2 or not np.isfinite(value):
            continue
        # Of two that differ one may be wrong itself: the one that is more like it counts.
        usual = np.median(near) if len(near) > 2 else near[np.argmin(np.abs(near - value))]
        if abs(value - usual) > limit:
            yield int(layers[k]), float(value - usual)


def _steps_apart(
    steps: NDArray[np.float64], layers: list[int], residual: list[int]
) -> Iterator[tuple[int, int, float]]:
    """Layers that multiply the energy otherwise than their neighbours, with the layer to blame, and by how much.

    A stream that begins anew behind a layer without residual connection grows faster there: that is to blame for layers
    behind it, and those before it are held against one another.
    """
    first = min(residual, default=max(layers, default=0) + 1)
    numbers = np.array(layers)
    for layer, factor in _outliers(np.where(numbers < first, steps, np.nan), layers, np.log(_ENERGY)):
        yield layer, layer, factor
    if residual:
        for layer, factor in _outliers(steps, layers, np.log(_ENERGY)):
            if layer >= first:
                yield layer, max(k for k in residual if k <= layer), factor


def _without_norm(energies: NDArray[np.float64], layers: list[int]) -> Iterator[Finding]:
    """Layers whose output has another energy than their neighbours', which have the same."""
    for k, energy in enumerate(energies):
        near = _nearest(energies, k)
        even = len(near) >= 2 and near.max() - near.min() < np.log(_EVEN)
        if even and abs(energy - np.median(near)) > np.log(_NORMED):
            what = "its output has the energy {}, and its neighbours' {}: is its norm there?"
            yield Finding(int(layers[k]), "energy", what, (float(np.exp(energy)), float(np.exp(np.median(near)))))


def _profile(middle: pd.Series, quantity: str, layers: list[int]) -> NDArray[np.float64]:
    if quantity not in middle.index.get_level_values("quantity"):
        return np.full(len(layers), np.nan)
    return middle[quantity, ""].reindex(layers).to_numpy(dtype=float)


def _times(log_factor: float) -> tuple[str, float]:
    """Words with a place for a number, and the number."""
    return ("{} times", float(np.exp(log_factor))) if log_factor >= 0 else ("1/{} of", float(np.exp(-log_factor)))
