"""Exponents of coordinates, of updates and of what is passed on, in width or depth, held against what is asked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from checks.fits import pooled_exponent
from checks.models.parametrizations import Range, Role, own_asked, passed_asked, role_of, start_asked
from checks.statistics import Array
from simulate.modules.coordinates import Stepped
from simulate.modules.weight_places import Owner
from theory.stack.parametrizations import Parametrization

MARGIN = 0.25
"""How far an exponent may be from what is asked: half of the least that a wrong power of a root makes."""
LEVEL = 0.999
"""Of the interval that must lie beyond the margin for a breach."""

Against = Literal["width", "depth"]
COLUMNS = ["against", "place", "parameter", "role", "quantity", "step", "exponent", "low", "high", "asked_low",
           "asked_high", "word", "off"]  # fmt: skip
JUDGED = ("coordinates", "own", "passed")
_KEYS = ["place", "parameter", "quantity", "step"]


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """The modules of one exponent: widths at the greatest depth, or depths at the greatest width.

    Attributes:
        against: which.
        values: of it, in order.
        frame: their rows, with a column `size`; names of layers of depths have stars for their numbers.
        owners: weights where they are used, of the greatest size, with their roles.
        grows: modules, by whether their output grows with the width.
        first: means over seeds by quantity, place and size, in the first step in which they are above 0.
    """

    against: Against
    values: tuple[int, ...]
    frame: pd.DataFrame
    owners: dict[tuple[str, str], tuple[Owner, Role]]
    grows: dict[str, bool]
    first: dict[tuple[str, str, int], float]

    def power(self, quantity: str, place: str, base: str = "") -> float:
        """The exponent of what is exact, from its ends: 0 of a scalar that is not there.

        Args:
            quantity: a row of `Stepped.frame` before the first step.
            place: of it.
            base: what it is an exponent in: another quantity; the size itself if left out.
        """
        ends = [self.at(quantity, place, value) for value in (self.values[0], self.values[-1])]
        sizes = [self.at(base, place, value) if base else value for value in (self.values[0], self.values[-1])]
        if not all(np.isfinite(end) and end > 0 for end in (*ends, *sizes)) or sizes[0] == sizes[1]:
            return 0.0
        return float(np.log(ends[1] / ends[0]) / np.log(sizes[1] / sizes[0]))

    def at(self, quantity: str, place: str, size: int) -> float:
        """The mean of a quantity at a size, in the first step in which it is above 0; 1 of a scalar that is missing."""
        missing = 1.0 if quantity.endswith("multiplier") else float("nan")
        return self.first.get((quantity, place, size), missing)


def sizes_of(stepped: Stepped, against: Against) -> Sizes:
    """The modules that an exponent is of."""
    other: Against = "depth" if against == "width" else "width"
    frame = stepped.frame[stepped.frame[other] == stepped.frame[other].max()]
    frame = frame.assign(size=frame[against])
    values = tuple(int(value) for value in sorted(frame[against].unique()))
    widths, depth = sorted({width for width, _ in stepped.owners}), max(depth for _, depth in stepped.owners)
    # Which lengths grow is known from two widths, at one depth.
    ends = [(width, depth) for width in (widths[0], widths[-1])]
    least = {(owner.place, owner.parameter): owner for owner in stepped.owners[ends[0]]}
    owners = {}
    for owner in stepped.owners[ends[1]]:
        if (small := least.get((owner.place, owner.parameter))) is None or len(small.shape) != len(owner.shape):
            continue
        growing = sum(a < b for a, b in zip(small.shape, owner.shape, strict=True))
        role = role_of(
            growing, len(owner.shape), input_grows=small.inputs < owner.inputs, output_grows=small.output < owner.output
        )
        if ends[0] == ends[1]:
            # Of one width nothing is seen to grow, and in the depth the same is asked of all.
            role = "vector" if len(owner.shape) < 2 else "hidden" if owner.inputs else "input"
        owners[owner.place, owner.parameter] = owner, role
    orders = [stepped.order[end] for end in ends]
    grows = {place: orders[0].get(place, length) < length or ends[0] == ends[1] for place, length in orders[1].items()}
    if against == "depth":
        frame = _starred(frame)
        owners = {(_star(place), parameter): value for (place, parameter), value in owners.items()}
        grows = {_star(place): value for place, value in grows.items()}
    return Sizes(against, values, frame, owners, grows, _first_means(frame))


def _first_means(frame: pd.DataFrame) -> dict[tuple[str, str, int], float]:
    """Of scalars, scales, rates, gradients and entries."""
    rows = frame[~frame["quantity"].isin([*JUDGED, "inputs"]) & (frame["value"] > 0)]
    keys = ["quantity", "place", "size"]
    rows = rows[rows["step"] == rows.groupby(keys)["step"].transform("min")]
    return {
        (str(q), str(p), int(size)): float(mean) for (q, p, size), mean in rows.groupby(keys)["value"].mean().items()
    }


def _star(name: str) -> str:
    """A name with stars for numbers of layers.

    >>> _star("layers.3.up"), _star("norm1")
    ('layers.*.up', 'norm1')
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _starred(frame: pd.DataFrame) -> pd.DataFrame:
    """Root mean squares over the layers."""
    frame = frame.assign(place=frame["place"].map(_star), value=frame["value"] ** 2)
    keys = ["width", "depth", "size", "seed", *_KEYS]
    return frame.groupby(keys, sort=False)["value"].mean().pow(0.5).reset_index()


def exponent_table(stepped: Stepped, sizes: Sizes, parametrization: Parametrization) -> pd.DataFrame:
    """Every exponent with its 95% interval and what is asked of it.

    Outputs and changes of them are taken with the scalars that multiply them at once (of widths; of depths these are
    judged by themselves). Values are fitted as geometric means over seeds.

    Returns:
        Columns against, place, parameter, role ("" of a module), quantity ("coordinates", "own" or "passed"), step,
        exponent, low, high, asked_low, asked_high (NaN where nothing is), word: "agrees", "undecided", "breach", "zero"
        (at a size), "not asked"; and off, how far the exponent is from what is asked.
    """
    frame = sizes.frame[sizes.frame["quantity"].isin(JUDGED)]
    frame = frame[frame["place"] != ""]
    if sizes.against == "width":
        scalars = sizes.frame[sizes.frame["quantity"] == "multiplier"]
        factors = scalars.set_index(["place", "size", "seed"])["value"].abs()
        factors = factors[~factors.index.duplicated()]
        keys = pd.MultiIndex.from_frame(frame[["place", "size", "seed"]])
        frame = frame.assign(value=frame["value"].to_numpy() * factors.reindex(keys).fillna(1.0).to_numpy())
    common = _common_rate(sizes)
    first = _first_moves(frame)
    values, of_size, rows = frame["value"].to_numpy(), frame["size"].to_numpy(), []
    for (place, parameter, quantity, step), at in places_of(frame, _KEYS).items():
        if len({*of_size[at].tolist()}) < len(sizes.values):
            continue
        _, role = sizes.owners.get((place, parameter), (None, ""))
        asked = _asked(parametrization, sizes, stepped, place, parameter, quantity, step, first, common)
        rows.append((sizes.against, place, parameter, role, quantity, step, *judged(values[at], of_size[at], asked)))
    return pd.DataFrame(rows, columns=COLUMNS)


def places_of(frame: pd.DataFrame, names: Sequence[str]) -> dict[Any, list[int]]:
    """Positions of rows with the same values in columns, as they come: pandas takes longer for few rows each."""
    places: dict[Any, list[int]] = {}
    for at, key in enumerate(zip(*(frame[name].tolist() for name in names), strict=True)):
        places.setdefault(key, []).append(at)
    return places


def _first_moves(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The first step after which a weight has moved, in all modules."""
    updates = frame[frame["quantity"] == "own"]
    least = updates.groupby(["place", "parameter", "step"], sort=False)["value"].min()
    moved = least[least > 0].reset_index()
    return {
        (str(place), str(parameter)): int(group["step"].min())
        for (place, parameter), group in moved.groupby(["place", "parameter"], sort=False)
    }


def _common_rate(sizes: Sizes) -> float:
    """The exponent of the rate that most weights have."""
    powers = [sizes.power("rate", owner.weight) for owner, _ in sizes.owners.values()]
    return float(np.median(powers)) if powers else 0.0


def _asked(
    parametrization: Parametrization, sizes: Sizes, stepped: Stepped, place: str, parameter: str, quantity: str,
    step: int, first: dict[tuple[str, str], int], common: float,
) -> Range | None:  # fmt: skip
    grows = sizes.grows.get(place, False)
    matrices = [role for (where, _), (_, role) in sizes.owners.items() if where == place]
    if sizes.against == "depth":
        return (0.0, 0.0) if grows or "output" in matrices else None
    if quantity == "coordinates":
        if not grows and "output" not in matrices:
            return None
        # Logits move with the steps, which standard ones do as they like.
        return start_asked(parametrization, grows=grows) if not step or parametrization != "sp" else None
    if quantity == "passed":
        return passed_asked(parametrization) if grows or "output" in matrices else None
    owner, role = sizes.owners.get((place, parameter), (None, None))
    if owner is None or role is None or (parametrization == "sp" and step != first.get((place, parameter))):
        return None
    return own_asked(parametrization, role, stepped.steppers.get(owner.weight, ""), common)


def _wider(freedom: int) -> float:
    """The interval of `LEVEL` over the 95% one."""
    return float(stdtrit(freedom, 0.5 + LEVEL / 2) / stdtrit(freedom, 0.975))


def judged(values: Array, sizes: Array, asked: Range | None) -> tuple[float, float, float, float, float, str, float]:
    """Exponent, interval, what is asked, word and how far off, of values and the size of each."""
    ends = (float("nan"), float("nan")) if asked is None else asked
    missing = float("nan")
    if not (values > 0).all() or not np.isfinite(values).all():
        return missing, missing, missing, *ends, "zero", missing
    x, at = np.unique(sizes, return_inverse=True)
    count, logs, fit = np.bincount(at).astype(float), np.log(values), None
    if count.min() > 1:
        means = np.bincount(at, logs) / count
        variances = np.bincount(at, (logs - means[at]) ** 2) / (count - 1)
        fit = pooled_exponent(x, np.exp(means), count, variances)
    if fit is None:
        return missing, missing, missing, *ends, "undecided", missing
    exponent, low, high = fit
    if asked is None:
        return exponent, low, high, *ends, "not asked", missing
    off = exponent - min(max(exponent, asked[0]), asked[1])
    freedom = int((count - 1).sum())
    half = (high - low) / 2
    word = "undecided"
    if abs(off) - half * _wider(freedom) > MARGIN:
        word = "breach"
    elif low >= asked[0] - MARGIN and high <= asked[1] + MARGIN:
        word = "agrees"
    return exponent, low, high, *ends, word, off
