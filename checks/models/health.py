"""What is wrong with single layers of a probed module: each is held against its neighbours in the same list.

The rules are factors, not tests: at initialization the layers of one list differ by a few percent, and smoothly.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

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
# The entries of a matrix that no other layer has, over the median of the list's matrices: CLIP's differ by sqrt(2 L).
_LONE = 12.0
# An energy that differs by so much from neighbours' that agree so well: those stand behind norms.
_NORMED, _EVEN = 1.1, 1.05
# A layer that multiplies the energy this many times more than its neighbours do, or less.
_ENERGY = 3.0
_NAMED = 3
# How often the norm of few entries is beyond its limit by chance, how near constants are, and how many are not few.
_BY_CHANCE, _ALIKE, _MANY = 1e-6, 1e-6, 1e6
# The gradient of a layer over the largest of its list, and the energy of one over the smallest.
_VANISHED, _EXPLODED = 1e-3, 1e6


def alarms(frame: pd.DataFrame, config: Mapping[str, Any] | None = None) -> list[Alarm]:
    """What is wrong in a probed module, each once, with the configurations in which it was seen.

    Args:
        frame: as `simulate.Probed` has it.
        config: of the module, which may say of what kind its layers are.
    """
    return merged([*_findings(frame, config or {}), *wrong_depth(frame)])


def _findings(frame: pd.DataFrame, config: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    for (width, depth), here in frame.groupby(["width", "depth"], sort=True):
        losses = here.loc[here["quantity"] == "loss", "value"]
        lost = "".join(f"the loss is {loss:g}" for loss in losses[~np.isfinite(losses)][:1])
        for part, finding in _garbage(here):
            yield (int(width), int(depth)), part, finding
        outside = [replace(of, what=f"{of.what}{'; ' * bool(lost)}{lost}") for of in _outside(here)]
        for finding in outside:
            yield (int(width), int(depth)), "", finding
        broken = bool(outside)
        for part, rows in here[here["layer"] > 0].groupby("part", sort=False):
            for finding in _of_list(rows, lost, config, outside=bool(outside)):
                broken = broken or finding.kind == "non-finite"
                yield (int(width), int(depth)), str(part), finding
        if lost and not broken:
            yield (int(width), int(depth)), "", Finding(WHOLE_MODEL, "non-finite", lost)


def _garbage(here: pd.DataFrame) -> Iterator[tuple[str, Finding]]:
    """Parameters with entries that no initialization draws, as of memory that nobody wrote to; one finding a layer."""
    rows = here[here["quantity"] == "far_entry"]
    for (part, layer), of in rows.groupby(["part", "layer"], sort=False):
        names = escaped(", ".join(of["parameter"].unique()[:_NAMED]))
        what = f"{names}: the largest entry is {{}} times the median one, which is no draw: was it initialized?"
        yield str(part), Finding(int(layer), "weight", what, (float(of["value"].max()),), digits=2)


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


def _of_list(rows: pd.DataFrame, lost: str, config: Mapping[str, Any], *, outside: bool) -> Iterator[Finding]:
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
    yield from _copies_to_stay(rows, layers)
    kinds = layer_kinds(rows, layers, config)
    yield from _structure(rows, layers, kinds)
    middle = rows.groupby(["quantity", "parameter", "layer"])["value"].median()
    causes = set[int]()
    for name in sorted(rows.loc[rows["quantity"] == "weight", "parameter"].unique()):
        for layer, factor in _weights_apart(middle, name, layers):
            what, number = _times(factor)
            causes.add(layer)
            yield Finding(layer, "weight", f"norm of {escaped(name)} is {what} its neighbours'", (number,))
    for finding in _lone_matrices(rows):
        causes.add(finding.layer)
        yield finding
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
        for layer, factor in _outliers(energies, layers, np.log(_ENERGY), kinds):
            what, number = _times(factor)
            yield Finding(layer, "energy", f"the energy of its output is {what} its neighbours'", (number,))
    steps = np.concatenate([[np.nan], np.diff(energies)])
    apart = () if alone else _steps_apart(steps, layers, [finding.layer for finding in residual], kinds)
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


def _copies_to_stay(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Parameters of most layers whose entries are equal along an axis and get equal gradients there."""
    alike = rows[rows["quantity"] == "alike"]
    if len(layers) > 1 and 2 * alike["layer"].nunique() > len(layers):
        names = escaped(", ".join(alike["parameter"].unique()[:_NAMED]))
        what = f"entries of {names} along an axis are equal and get equal gradients: no step tells them apart"
        yield Finding(WHOLE_MODEL, "copies", what)


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
    has, owns = _names(gradients, layers), _names(weights, layers)
    learned, owned = (Counter(name for names in every.values() for name in names) for every in (has, owns))
    for layer in layers:
        missing = [name for name in owns[layer] - has[layer] if 2 * learned[name] > owned[name]]
        if missing:
            yield Finding(int(layer), "no gradient", f"gets no gradient in {escaped(', '.join(sorted(missing)))}")


def _names(rows: pd.DataFrame, layers: list[int]) -> dict[int, set[str]]:
    """The parameters that rows of a layer are about."""
    return {layer: set(rows.loc[rows["layer"] == layer, "parameter"]) for layer in layers}


def layer_kinds(rows: pd.DataFrame, layers: list[int], config: Mapping[str, Any]) -> NDArray[np.int64]:
    """A number for each layer; layers of one kind have the same.

    Layers are of two kinds where each has parameters that the other lacks. One that only lacks some is of the same
    kind, unless the configuration says that it is of another.
    """
    has, configured = _names(rows[rows["quantity"] == "weight"], layers), _said_kinds(config, layers)
    whole = [names for names in has.values() if not any(names < other for other in has.values())]
    labels, known = np.zeros(len(layers), int), dict[Any, int]()
    for k, names in enumerate(has.values()):
        kind = max((other for other in whole if names <= other), key=whole.count)
        full = [configured[j] for j, other in enumerate(has.values()) if other == kind]
        is_apart = names != kind and configured[k] not in full
        labels[k] = known.setdefault(frozenset(names if is_apart else kind), len(known))
    return labels


def _said_kinds(config: Mapping[str, Any], layers: list[int]) -> list[Any]:
    """The type of each layer by the configuration, "" if it names none, and whether the layer is said to be dense."""
    config = {**config, **(config.get("text_config") or {})}
    types, first = config.get("layer_types"), config.get("first_k_dense_replace")
    types = types if isinstance(types, list | tuple) and len(types) == len(layers) else [""] * len(layers)
    dense = set(range(first)) if isinstance(first, int) else set()
    dense |= set(config.get("mlp_only_layers") or ())
    return [(types[k], layer - 1 in dense) for k, layer in enumerate(layers)]


def kinds_of_layers(frame: pd.DataFrame, config: Mapping[str, Any] | None = None) -> list[str]:
    """A line for every list whose layers are of several kinds, with what is in each kind alone."""
    lines: dict[str, None] = {}
    for part, rows in frame[frame["layer"] > 0].groupby("part", sort=False):
        layers = sorted(rows["layer"].unique())
        labels, has = layer_kinds(rows, layers, config or {}), _names(rows[rows["quantity"] == "weight"], layers)
        texts = []
        for label in np.unique(labels):
            members = [layer for layer, kind in zip(layers, labels, strict=True) if kind == label]
            others = set().union(*(has[layer] for layer in layers if layer not in members))
            own_names = sorted(set().union(*(has[layer] for layer in members)) - others)
            texts.append(f"{', '.join(map(str, members))}" + f" (with {', '.join(own_names[:2])})" * bool(own_names))
        if len(texts) > 1:
            lines[f"layers of {part} are of {len(texts)} kinds, and compared within each: {'; '.join(texts)}"] = None
    return list(lines)


def _structure(rows: pd.DataFrame, layers: list[int], kinds: NDArray[np.int64]) -> Iterator[Finding]:
    """Parameters that a layer lacks and most of its kind have, and whether an Identity stands there."""
    identities, has = rows[rows["quantity"] == "identity"], _names(rows[rows["quantity"] == "weight"], layers)
    for label, layer in zip(kinds, layers, strict=True):
        family = [has[other] for other, kind in zip(layers, kinds, strict=True) if kind == label]
        counts = Counter(name for names in family for name in names)
        missing = sorted(name for name, count in counts.items() if 2 * count > len(family) and name not in has[layer])
        if missing:
            names = identities.loc[identities["layer"] == layer, "parameter"].unique()
            there = [escaped(name) for name in names if any(lost.startswith(f"{name}.") for lost in missing)]
            where = f": {', '.join(there)} is an Identity there" if there else ""
            yield Finding(int(layer), "structure", f"lacks {escaped(', '.join(missing))}{where}")


def _weights_apart(middle: pd.Series, name: str, layers: list[int]) -> Iterator[tuple[int, float]]:
    """Layers in which a parameter's norm is unlike that of as many entries in their neighbours, and by how much.

    The norm of few entries scatters like the root of chi-squared, unless its neighbours' are all the same.
    """
    weights = middle["weight", name].reindex(layers).to_numpy(float)
    entries = middle.get(("entries", name), pd.Series(_MANY, layers)).reindex(layers).to_numpy(float)
    entries = np.where(np.isnan(weights), np.nan, entries)
    for count in np.unique(entries[np.isfinite(entries)]):
        alike = entries == count
        if (weights[alike] > 0).all():
            values = np.log(weights, where=alike, out=np.full(len(layers), np.nan))
            yield from _outliers(values, layers, np.log(_WEIGHT), scatter=_norm_scatter(float(count)))


@cache
def _norm_scatter(entries: float) -> float:
    """The most that ln of the norms of two draws of so many entries differ, but by chance."""
    high, low = stats.chi2.ppf([1 - _BY_CHANCE, _BY_CHANCE], entries)
    return float(np.log(high / low)) / 2


def _lone_matrices(rows: pd.DataFrame) -> Iterator[Finding]:
    """Matrices that fewer than three layers have, and whose entries are far larger than those of the list's others."""
    table = rows[rows["parameter"] != ""].pivot_table("value", ["layer", "parameter"], "quantity")
    if not {"shortest", "weight", "entries"} <= {*table.columns}:
        return
    table = table[table["shortest"].notna() & (table["weight"] > 0)]
    sizes = table["weight"] * np.sqrt(table["shortest"] / table["entries"])
    for (layer, name), size in (sizes / sizes.median()).items():
        if size > _LONE and (table.index.get_level_values("parameter") == name).sum() < 3:
            what = (
                f"entries of {escaped(name)} are {{}} times those of the list's other matrices, times the root of a row"
            )
            yield Finding(int(layer), "weight", what, (float(size),))


def _nearest(values: NDArray[np.float64], k: int, kinds: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """The finite values of the layers that are nearest to one: of its kind, where there are two more, or of all."""
    known = [j for j in range(len(values)) if j != k and np.isfinite(values[j])]
    if kinds is not None and len(alike := [j for j in known if kinds[j] == kinds[k]]) > 1:
        known = alike
    return values[sorted(known, key=lambda j: abs(j - k))[:_NEAR]]


def _outliers(
    values: NDArray[np.float64], layers: list[int], limit: float, kinds: NDArray[np.int64] | None = None,
    scatter: float = 0.0,
) -> Iterator[tuple[int, float]]:  # fmt: skip
    """Layers that differ from the median of their neighbours by more than a limit, and by how much."""
    for k, value in enumerate(values):
        near = _nearest(values, k, kinds)
        if len(near) < 2 or not np.isfinite(value):
            continue
        # Of two that differ one may be wrong itself: the one that is more like it counts.
        usual = np.median(near) if len(near) > 2 else near[np.argmin(np.abs(near - value))]
        if abs(value - usual) > max(limit, scatter * bool(np.ptp(near) > _ALIKE)):
            yield int(layers[k]), float(value - usual)


def _steps_apart(
    steps: NDArray[np.float64], layers: list[int], residual: list[int], kinds: NDArray[np.int64]
) -> Iterator[tuple[int, int, float]]:
    """Layers that multiply the energy otherwise than their neighbours, with the layer to blame, and by how much.

    A stream that begins anew behind a layer without residual connection grows faster there: that is to blame for layers
    behind it, and those before it are held against one another.
    """
    first = min(residual, default=max(layers, default=0) + 1)
    numbers = np.array(layers)
    for layer, factor in _outliers(np.where(numbers < first, steps, np.nan), layers, np.log(_ENERGY), kinds):
        yield layer, layer, factor
    if residual:
        for layer, factor in _outliers(steps, layers, np.log(_ENERGY), kinds):
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
