"""The alarms about single layers of a module: each layer is compared with the nearest layers in its list.

The limits are factors, not statistical tests: at initialization the layers of one list differ by a few percent, and
smoothly.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from checks.models.alarm import WHOLE_MODEL, Alarm, Finding, escaped, merged, ratio_words
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
# A smaller share of the input's energy is that of layers behind norms, whose output hardly follows the input's scale.
_KEPT = 0.05
_NAMED = 3
# How often the norm of few entries is beyond its limit by chance, how near constants are, and how many are not few.
_BY_CHANCE, _ALIKE, _MANY = 1e-6, 1e-6, 1e6
# The gradient of a layer over the largest of its list, and the energy of one over the smallest.
_VANISHED, _EXPLODED = 1e-3, 1e6


def alarms(frame: pd.DataFrame, config: Mapping[str, Any] | None = None) -> list[Alarm]:
    """Return the alarms about single layers of modules, one for each fault, with the module sizes that have the fault.

    Args:
        frame: the measured numbers, as in `simulate.Probed.frame`.
        config: the module's configuration, which may name the kind of each layer.
    """
    return merged([*_findings(frame, config or {}), *wrong_depth(frame)])


def _findings(frame: pd.DataFrame, config: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], str, Finding]]:
    for (width, depth), here in frame.groupby(["width", "depth"], sort=True):
        losses = here.loc[here["quantity"] == "loss", "value"]
        lost = "".join(f"the loss is {loss:g}" for loss in losses[~np.isfinite(losses)][:1])
        size = int(width), int(depth)
        yield from [(size, part, finding) for part, finding in chain(_garbage(here), _without_input(here))]
        outside = [replace(finding, what=f"{finding.what}{'; ' * bool(lost)}{lost}") for finding in _outside(here)]
        yield from [(size, "", finding) for finding in outside]
        broken = bool(outside)
        for part, rows in here[here["layer"] > 0].groupby("part", sort=False):
            for finding in _of_list(rows, lost, config, outside=bool(outside)):
                broken = broken or finding.kind == "non-finite"
                yield size, str(part), finding
        if lost and not broken:
            yield size, "", Finding(WHOLE_MODEL, "non-finite", lost)


def _garbage(here: pd.DataFrame) -> Iterator[tuple[str, Finding]]:
    """Find parameters with entries that no initialization gives, such as unwritten memory; one finding per layer."""
    rows = here[here["quantity"] == "far_entry"]
    for (part, layer), of in rows.groupby(["part", "layer"], sort=False):
        names = escaped(", ".join(of["parameter"].unique()[:_NAMED]))
        what = f"the largest entry of {names} is {{}} times its median entry: was it initialized?"
        yield str(part), Finding(int(layer), "weight", what, (float(of["value"].max()),), digits=2)


def _without_input(here: pd.DataFrame) -> Iterator[tuple[str, Finding]]:
    """Find models without a list of layers whose input differs from 0, if matrices of zeros without a gradient are why.

    A decoder's layers alone may begin with zeros, as those of detectors of objects do.
    """
    outside, energies = here[(here["layer"] == 0) & (here["value"] == 0)], here[here["quantity"] == "input_energy"]
    still = set(outside.loc[outside["quantity"] == "gradient", "parameter"])
    zeros = [name for name in outside.loc[outside["quantity"] == "weight", "parameter"].unique() if name in still]
    names = escaped(", ".join([name for name in zeros if not name.endswith("bias")][:_NAMED]))
    for part in energies["part"].unique() if names and (energies["value"] == 0).all() else []:
        yield str(part), Finding(WHOLE_MODEL, "weight", f"the input of its layers is 0 everywhere: {names} are 0")


def _outside(here: pd.DataFrame) -> list[Finding]:
    """Find non-finite weights outside of layers, or else the first module there with a non-finite output."""
    rows = here[here["layer"] == 0]
    weights = rows[(rows["quantity"] == "weight") & ~np.isfinite(rows["value"])]["parameter"].unique()
    if len(weights):
        what = f"{escaped(', '.join(weights[:_NAMED]))} {'has' if len(weights) == 1 else 'have'} entries that are not"
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
    which = escaped(name) if name else "the whole model"
    if given:
        return f"the input of {which} is not finite, although all earlier outputs are"
    return f"the output of {which} is the first output that is not finite"


def _of_list(rows: pd.DataFrame, lost: str, config: Mapping[str, Any], *, outside: bool) -> Iterator[Finding]:
    """Find the faults of the layers of one list, or only non-finite numbers if the loss is not finite."""
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
            what, number = ratio_words(factor)
            causes.add(layer)
            yield Finding(layer, "weight", f"norm of {escaped(name)} is {what} the nearest layers'", (number,))
    for finding in _lone_matrices(rows):
        causes.add(finding.layer)
        yield finding
    # A layer that gives no tensor has no energy, and one that gives zeros has no logarithm of it.
    energies = _profile(middle, "hidden_energy", layers)
    energies = np.log(energies, where=energies > 0, out=np.full(len(layers), np.nan))
    above = energies - min(energies[np.isfinite(energies)], default=0.0)
    for layer, height in zip(layers, above, strict=True):
        if height > np.log(_EXPLODED):
            what = "the mean squared activation of its output is {} times the smallest layer's"
            yield Finding(int(layer), "exploding", what, (float(np.exp(height)),), digits=1)
    if behind_norms(rows):
        yield from _without_norm(energies, layers)
    residual = list(without_residual(rows, layers))
    if alone := independent(rows, layers):
        for layer, factor in _outliers(energies, layers, np.log(_ENERGY), kinds):
            what, number = ratio_words(factor)
            what = f"the mean squared activation of its output is {what} the nearest layers'"
            yield Finding(layer, "energy", what, (number,))
    starts = [finding.layer for finding in residual]
    apart = () if alone else _steps_apart(energies, middle, layers, starts, kinds)
    for layer, reset, factor in apart:
        culprit = layer if layer in causes else reset
        what, number = ratio_words(factor)
        after = f"layer {layer} after it " if culprit != layer else ""
        what = f"{after}multiplies the mean squared activation by {what} the nearest layers' factor"
        yield Finding(culprit, "energy", what, (number,))
    yield from residual
    yield from detached(rows, layers)
    gradients = rows[rows["quantity"] == "gradient"]
    squares = np.square(gradients["value"]).groupby([gradients["seed"], gradients["layer"]]).sum()
    norms = np.sqrt(squares).groupby("layer").median().reindex(layers).to_numpy()
    largest = max(norms[np.isfinite(norms)], default=0.0)
    for layer, norm in zip(layers, norms, strict=True):
        if norm < _VANISHED * largest and layer not in silent:
            share = (float(norm / largest),)
            yield Finding(int(layer), "vanishing", "its gradient norm is {} of the largest layer's", share, digits=1)


def _copies_to_stay(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Find parameters of most layers whose entries along an axis are equal and get equal gradients."""
    alike = rows[rows["quantity"] == "alike"]
    if len(layers) > 1 and 2 * alike["layer"].nunique() > len(layers):
        names = escaped(", ".join(alike["parameter"].unique()[:_NAMED]))
        what = f"entries of {names} along an axis are equal and get equal gradients, so they stay equal in every step"
        yield Finding(WHOLE_MODEL, "copies", what)


def _non_finite(rows: pd.DataFrame, *, lost: bool, outside: bool) -> Iterator[Finding]:
    """Find the first layer whose output is not finite, or else the last layer whose gradient is not finite."""
    bad = rows[~np.isfinite(rows["value"])]
    forward = bad[bad["quantity"] == "hidden_energy"]["layer"]
    weights = bad[bad["quantity"] == "weight"]
    for row in weights.drop_duplicates(["layer", "parameter"]).itertuples():
        yield Finding(int(row.layer), "non-finite", f"{escaped(row.parameter)} has entries that are not finite")
    if not weights.empty or outside:
        return
    if not forward.empty:
        layer = int(forward.min())
        first = rows[(rows["quantity"] == "not_finite") & (rows["layer"] == layer) & (rows["parameter"] != "")]
        what = "its output is the first layer output that is not finite"
        if len(first):
            what = f"its output is not finite: {_first(first['parameter'].iloc[0], first['value'].iloc[0])}"
        yield Finding(layer, "non-finite", what)
    elif not bad.empty and not lost:
        what = "its gradient is not finite, although the gradients of all later layers are"
        yield Finding(int(bad["layer"].max()), "non-finite", what)


def _without_gradient(rows: pd.DataFrame, layers: list[int]) -> Iterator[Finding]:
    """Find parameters whose gradient is missing or 0 in a layer but not in most layers.

    Frozen and idle parameters do not count.
    """
    gradients = rows[(rows["quantity"] == "gradient") & (rows["value"] > 0)]
    weights, frozen = rows[rows["quantity"] == "weight"], rows[rows["quantity"].isin(["frozen", "idle"])]
    place = ["layer", "parameter"]
    weights = weights[~weights.set_index(place).index.isin(frozen.set_index(place).index)]
    has, owns = _names(gradients, layers), _names(weights, layers)
    learned, owned = (Counter(name for names in every.values() for name in names) for every in (has, owns))
    for layer in layers:
        missing = [name for name in owns[layer] - has[layer] if 2 * learned[name] > owned[name]]
        if missing:
            what = f"gets no gradient in {escaped(', '.join(sorted(missing)))}, unlike most layers"
            yield Finding(int(layer), "no gradient", what)


def _names(rows: pd.DataFrame, layers: list[int]) -> dict[int, set[str]]:
    return {layer: set(rows.loc[rows["layer"] == layer, "parameter"]) for layer in layers}


def layer_kinds(rows: pd.DataFrame, layers: list[int], config: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return a number for each layer that is equal for layers of one kind, such as dense layers or expert layers.

    Two layers are of different kinds if each has parameters that the other lacks. A layer that only lacks some
    parameters is of the same kind, unless the configuration names another kind or at most half of the layers have these
    parameters.
    """
    has, configured = _names(rows[rows["quantity"] == "weight"], layers), _configured_kinds(config, layers)
    whole = [names for names in has.values() if not any(names < other for other in has.values())]
    labels, known = np.zeros(len(layers), int), dict[Any, int]()
    owned = Counter(name for names in has.values() for name in names)
    for k, names in enumerate(has.values()):
        kind = max((other for other in whole if names <= other), key=whole.count)
        family = sum(other <= kind for other in has.values())
        usual = all(2 * owned[name] > family for name in kind - names)
        full = [configured[j] for j, other in enumerate(has.values()) if other == kind]
        is_apart = names != kind and (configured[k] not in full or not usual)
        labels[k] = known.setdefault(frozenset(names if is_apart else kind), len(known))
    return labels


def _configured_kinds(config: Mapping[str, Any], layers: list[int]) -> list[Any]:
    """Return each layer's type by the module's configuration ("" without one), and whether it is declared dense."""
    config = {**config, **(config.get("text_config") or {})}
    types, first = config.get("layer_types"), config.get("first_k_dense_replace")
    types = types if isinstance(types, list | tuple) and len(types) == len(layers) else [""] * len(layers)
    dense = {*range(first if isinstance(first, int) else 0), *(config.get("mlp_only_layers") or ())}
    return [(types[k], layer - 1 in dense) for k, layer in enumerate(layers)]


def kinds_of_layers(frame: pd.DataFrame, config: Mapping[str, Any] | None = None) -> list[str]:
    """Return a note for each list of layers that contains several kinds of layers, with the parameters of each kind."""
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
            kinds = f"layers of {part} are of {len(texts)} kinds"
            lines[f"{kinds}; each layer is compared with layers of its kind: {'; '.join(texts)}"] = None
    return list(lines)


def _structure(rows: pd.DataFrame, layers: list[int], kinds: NDArray[np.int64]) -> Iterator[Finding]:
    """Find parameters that a layer lacks but most layers of its kind have, and an Identity in their place."""
    identities, has = rows[rows["quantity"] == "identity"], _names(rows[rows["quantity"] == "weight"], layers)
    for label, layer in zip(kinds, layers, strict=True):
        family = [has[other] for other, kind in zip(layers, kinds, strict=True) if kind == label]
        counts = Counter(name for names in family for name in names)
        missing = sorted(name for name, count in counts.items() if 2 * count > len(family) and name not in has[layer])
        if missing:
            names = identities.loc[identities["layer"] == layer, "parameter"].unique()
            there = [escaped(name) for name in names if any(lost.startswith(f"{name}.") for lost in missing)]
            where = f": {', '.join(there)} is an Identity in this layer" if there else ""
            yield Finding(int(layer), "structure", f"lacks {escaped(', '.join(missing))}{where}")


def _weights_apart(middle: pd.Series, name: str, layers: list[int]) -> Iterator[tuple[int, float]]:
    """Find layers in which a parameter's norm differs from the nearest layers', with the logarithm of the ratio.

    Only parameters with the same number of entries are compared. The norm of few entries varies like the square root
    of a chi-squared variable, unless the nearest layers all have the same norm.
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
    """Return the largest difference of ln(norm) that chance explains, for two random tensors of a size."""
    high, low = stats.chi2.ppf([1 - _BY_CHANCE, _BY_CHANCE], entries)
    return float(np.log(high / low)) / 2


def _lone_matrices(rows: pd.DataFrame) -> Iterator[Finding]:
    """Find matrices that fewer than three layers have and whose entries are far larger than in the other matrices.

    A matrix with equal rows, such as the decay rates of a state-space layer, is not a random draw and is left out.
    """
    table = rows[rows["parameter"] != ""].pivot_table("value", ["layer", "parameter"], "quantity")
    if not {"shortest", "weight", "entries"} <= {*table.columns}:
        return
    drawn = table["one_row"].isna() if "one_row" in table else True
    table = table[table["shortest"].notna() & (table["weight"] > 0) & drawn]
    sizes = table["weight"] * np.sqrt(table["shortest"] / table["entries"])
    for (layer, name), size in (sizes / sizes.median()).items():
        if size > _LONE and (table.index.get_level_values("parameter") == name).sum() < 3:
            what = f"entries of {escaped(name)} times sqrt(shorter side) are {{}} times the median of its list"
            yield Finding(int(layer), "weight", what, (float(size),))


def _nearest(values: NDArray[np.float64], k: int, kinds: NDArray[np.int64] | None = None) -> list[int]:
    """Return the indices of the layers nearest to layer k with finite values, of its kind if there are at least two."""
    known = [j for j in range(len(values)) if j != k and np.isfinite(values[j])]
    if kinds is not None and len(alike := [j for j in known if kinds[j] == kinds[k]]) > 1:
        known = alike
    return sorted(known, key=lambda j: abs(j - k))[:_NEAR]


def _outliers(
    values: NDArray[np.float64], layers: list[int], limit: float, kinds: NDArray[np.int64] | None = None,
    scatter: float = 0.0, *, steps: bool = False,
) -> Iterator[tuple[int, float]]:  # fmt: skip
    """Find layers whose value differs from the nearest layers' median by more than a limit, and by how much.

    Steps of a stream that settles go on changing in one direction, so the first is far from the median of the next.
    A layer is part of such a trend if its value and the nearest layers' are in order. Five random values are in order
    once in 60 times. The value must also lie no further from their range than this range is wide.
    """
    for k, value in enumerate(values):
        around = _nearest(values, k, kinds)
        near, order = values[around], np.diff(values[sorted([k, *around])])
        if len(near) < 2 or not np.isfinite(value):
            continue
        # Of two that differ one may be wrong itself: the one that is more like it counts.
        usual = np.median(near) if len(near) > 2 else near[np.argmin(np.abs(near - value))]
        ordered = (order > 0).all() or (order < 0).all()
        trend = steps and ordered and max(value - near.max(), near.min() - value) <= np.ptp(near)
        if abs(value - usual) > max(limit, scatter * bool(np.ptp(near) > _ALIKE)) and not trend:
            yield int(layers[k]), float(value - usual)


def _streams(middle: pd.Series, energies: NDArray[np.float64], layers: list[int]) -> NDArray[np.bool_]:
    """Return where a layer's input is the output of the layer before it, and has the shape of the layer's output.

    A layer multiplies the mean square by (coefficient / cosine)^2 of its input and output. Where the outputs of two
    layers differ otherwise, code between them changes the stream, as a U-Net's skip connections do.
    """
    same, cosines = (_profile(middle, name, layers) for name in ("stream_coefficient", "stream_cosine"))
    # The ratio is not known well enough where input and output have a small cosine.
    rise = 2.0 * np.log(np.divide(same, cosines, where=(cosines > 0.5) & (same > 0), out=np.full(len(layers), np.nan)))
    return np.isfinite(same) & ~(np.abs(np.diff(energies, prepend=np.nan) - rise) > np.log(_ENERGY))


def _steps_apart(
    energies: NDArray[np.float64], middle: pd.Series, layers: list[int], residual: list[int], kinds: NDArray[np.int64]
) -> Iterator[tuple[int, int, float]]:
    """Find layers that multiply the mean squared activation by another factor than the nearest layers.

    After a layer without a residual connection, the residual stream starts again and grows faster. Such a layer causes
    the faults of the layers after it; the layers before it are compared with one another. Branches after norms add
    equal amounts, so their factor is large where the stream is small: a larger factor counts if the added amount is
    larger too. A factor on the stream keeps only a share of the input's energy, and this share follows the input's
    scale. The added amount is then the excess over the nearest layers' share. A larger factor counts as well if the
    share itself is larger than the nearest layers'. An output of another shape than its input (not `same`), as where a
    pyramid widens, is another stream. Each item is the layer, the layer to blame, and the logarithm of the ratio of
    factors.
    """
    same, responses = _streams(middle, energies, layers), _profile(middle, "scale_response", layers)
    steps, inputs = np.concatenate([[np.nan], np.diff(energies)]), np.concatenate([[np.nan], np.exp(energies[:-1])])
    kept = np.where(np.isnan(responses), 1.0, np.clip(responses, 0.0, 1.0) * np.exp(steps))
    steps = np.where(same | ~same.any(), steps, np.nan)
    first, limit = min(residual, default=max(layers, default=0) + 1), np.log(_ENERGY)
    earlier = _outliers(np.where(np.array(layers) < first, steps, np.nan), layers, limit, kinds, steps=True)
    later = [outlier for outlier in _outliers(steps, layers, limit, kinds, steps=True) if outlier[0] >= first]
    for layer, factor in (*earlier, *later):
        k = layers.index(layer)
        near = _nearest(steps, k, kinds)
        share = float(np.median(kept[near]))
        added = np.exp(energies) - min(share, 1.0) * inputs
        # Two layers of a kind of their own that give equal energies are as the kind is.
        twins = (
            len(kin := energies[(kinds == kinds[k]) & (np.array(layers) != layer)]) == 1
            and abs(energies[k] - kin[0]) <= limit
        )
        larger = added[k] > _ENERGY * np.median(added[near]) or kept[k] > _ENERGY * max(share, _KEPT)
        if not twins and (factor < 0 or larger):
            yield layer, max((start for start in residual if start <= layer), default=layer), factor


def _without_norm(energies: NDArray[np.float64], layers: list[int]) -> Iterator[Finding]:
    """Find layers whose mean squared activation differs from that of the nearest layers, which all agree."""
    for k, energy in enumerate(energies):
        near = energies[_nearest(energies, k)]
        even = len(near) >= 2 and near.max() - near.min() < np.log(_EVEN)
        if even and abs(energy - np.median(near)) > np.log(_NORMED):
            what = "the mean squared activation of its output is {}, the nearest layers' is {}: is its norm missing?"
            yield Finding(int(layers[k]), "energy", what, (float(np.exp(energy)), float(np.exp(np.median(near)))))


def _profile(middle: pd.Series, quantity: str, layers: list[int]) -> NDArray[np.float64]:
    if quantity not in middle.index.get_level_values("quantity"):
        return np.full(len(layers), np.nan)
    return middle[quantity, ""].reindex(layers).to_numpy(dtype=float)
