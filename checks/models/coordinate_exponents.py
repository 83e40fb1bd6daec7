"""Exponents of coordinates, of updates and of what is passed on, in width or depth, held against what is asked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from checks.fits import LEAST_POINTS, pooled_contrast, pooled_weights
from checks.models.parametrizations import Range, Role, own_asked, passed_asked, role_of, start_asked
from checks.statistics import Array
from simulate.modules.coordinates import Stepped
from simulate.modules.weight_places import Owner
from theory.stack.parametrizations import Parametrization

MARGIN = 0.25
"""How far an exponent may be from what is asked: half of the least that a wrong power of a root makes."""
LEVEL = 0.999
"""Of the interval that must lie beyond the margin for a breach."""

BEND = 0.1
"""A change of the power that is said: from the two least sizes to the two largest, where it is beyond its interval; or
from those that there are to `FARTHER`."""
FARTHER = 4.0
"""How many times as large the sizes are for which a power is said beside that of those that there are."""

Against = Literal["width", "depth"]
COLUMNS = ["against", "place", "parameter", "role", "quantity", "step", "exponent", "low", "high", "asked_low",
           "asked_high", "word", "off", "ahead", "bend", "bend_half"]  # fmt: skip
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
    columns = (rows[name].tolist() for name in ("quantity", "place", "size", "step", "value"))
    steps, values = dict[tuple[str, str, int], int](), dict[tuple[str, str, int], list[float]]()
    for *key, step, value in zip(*columns, strict=True):
        at = (key[0], key[1], key[2])
        if step < steps.get(at, step + 1):
            steps[at], values[at] = step, []
        if step == steps[at]:
            values[at].append(value)
    return {at: fmean(of) for at, of in values.items()}


def farther(exponent: float, asked: Range) -> float:
    """The power at sizes `FARTHER` times as large, if parts with the two powers that are asked add up in squares.

    As in mu-P: of a product with random weights or inputs n^-1/2 is left, and what was learned is of order 1.

    Args:
        exponent: at the sizes that there are; above the range by less than that is long.
        asked: the range that it may be in.

    >>> round(farther(-0.25, (-0.5, 0.0)), 3)
    -0.1
    """
    low, high = asked
    share = (high - exponent) / (high - low)
    less = share * FARTHER ** (2.0 * (low - high))
    return high - (high - low) * less / (less + 1.0 - share)


def ahead(exponent: float, half: float, asked: Range, wider: float) -> tuple[float, float]:
    """The power that is said of sizes `FARTHER` times as large, with half of its 95% interval.

    It is that of a sum where the exponent is inside the range and its interval of `LEVEL` leaves out the lower end.
    There what may be one power alone would be stretched, and its error, up to `FARTHER` times; towards the upper end
    both shrink, so that nothing is to be ruled out.

    Args:
        exponent: at the sizes that there are.
        half: of its 95% interval.
        asked: the range that it may be in; of one number every power stays.
        wider: the interval of `LEVEL` over the 95% one.
    """
    if not asked[0] < exponent - wider * half < exponent < asked[1]:
        return exponent, half
    return farther(exponent, asked), (farther(exponent + half, asked) - farther(exponent - half, asked)) / 2


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
        (at a size), "not asked"; off, how far the exponent is from what is asked; ahead, the power at sizes `FARTHER`
        times as large (the function `ahead`; NaN where nothing is asked); and bend, how far the power of the two
        largest sizes is above that of the two least, with half of its interval of `LEVEL`.
    """
    frame = sizes.frame[sizes.frame["quantity"].isin(JUDGED)]
    frame = frame[frame["place"] != ""]
    if sizes.against == "width":
        scalars, where = sizes.frame[sizes.frame["quantity"] == "multiplier"], ["place", "size", "seed"]
        factors = {key: abs(float(scalars["value"].iloc[at[0]])) for key, at in places_of(scalars, where).items()}
        each = zip(*(frame[name].tolist() for name in where), strict=True)
        frame = frame.assign(value=frame["value"].to_numpy() * [factors.get(key, 1.0) for key in each])
    common = _common_rate(sizes)
    readouts = {place for (place, _), (_, role) in sizes.owners.items() if role == "output"}
    first = _first_moves(frame)
    values, of_size = frame["value"].to_numpy(), frame["size"].to_numpy()
    keys, rows = list[tuple[Any, ...]](), list[tuple[Array, Array, Range | None]]()
    for (place, parameter, quantity, step), at in places_of(frame, _KEYS).items():
        if len({*of_size[at].tolist()}) < len(sizes.values):
            continue
        _, role = sizes.owners.get((place, parameter), (None, ""))
        asked = _asked(parametrization, sizes, stepped, place, parameter, quantity, step, first, common, readouts)
        keys.append((sizes.against, place, parameter, role, quantity, step))
        rows.append((values[at], of_size[at], asked))
    return pd.DataFrame([(*key, *row) for key, row in zip(keys, judged_rows(rows), strict=True)], columns=COLUMNS)


def places_of(frame: pd.DataFrame, names: Sequence[str]) -> dict[Any, list[int]]:
    """Positions of rows with the same values in columns, as they come: pandas takes longer for few rows each."""
    places: dict[Any, list[int]] = {}
    for at, key in enumerate(zip(*(frame[name].tolist() for name in names), strict=True)):
        places.setdefault(key, []).append(at)
    return places


def _first_moves(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The first step after which a weight has moved, in all modules."""
    updates = frame[frame["quantity"] == "own"]
    columns = (updates[name].tolist() for name in ("place", "parameter", "step", "value"))
    still, moved = set[tuple[str, str, int]](), dict[tuple[str, str], set[int]]()
    for place, parameter, step, value in zip(*columns, strict=True):
        moved.setdefault((place, parameter), set()).add(step)
        if not value > 0:
            still.add((place, parameter, step))
    steps = {key: [step for step in of if (*key, step) not in still] for key, of in moved.items()}
    return {key: min(of) for key, of in steps.items() if of}


def _common_rate(sizes: Sizes) -> float:
    """The exponent of the rate that most weights have."""
    powers = [sizes.power("rate", owner.weight) for owner, _ in sizes.owners.values()]
    return float(np.median(powers)) if powers else 0.0


def _asked(
    parametrization: Parametrization, sizes: Sizes, stepped: Stepped, place: str, parameter: str, quantity: str,
    step: int, first: dict[tuple[str, str], int], common: float, readouts: set[str],
) -> Range | None:  # fmt: skip
    grows = sizes.grows.get(place, False)
    if sizes.against == "depth":
        return (0.0, 0.0) if grows or place in readouts else None
    if quantity == "coordinates":
        if not grows and place not in readouts:
            return None
        # Logits move with the steps, which standard ones do as they like.
        return start_asked(parametrization, grows=grows) if not step or parametrization != "sp" else None
    if quantity == "passed":
        return passed_asked(parametrization) if grows or place in readouts else None
    owner, role = sizes.owners.get((place, parameter), (None, None))
    if owner is None or role is None or (parametrization == "sp" and step != first.get((place, parameter))):
        return None
    return own_asked(parametrization, role, stepped.steppers.get(owner.weight, ""), common)


def wider_by(freedom: int) -> float:
    """The interval of `LEVEL` over the 95% one."""
    return float(stdtrit(freedom, 0.5 + LEVEL / 2) / stdtrit(freedom, 0.975))


OFF: Final = 6
"""Where it stands in a row that is judged."""
Judged = tuple[float, float, float, float, float, str, float, float, float, float]


def judged_rows(rows: Sequence[tuple[Array, Array, Range | None]]) -> list[Judged]:
    """What `judged` says of rows of values, their sizes and what is asked; those with the same sizes are one call."""
    alike: dict[bytes, list[int]] = {}
    for k, (_, sizes, _) in enumerate(rows):
        alike.setdefault(sizes.tobytes(), []).append(k)
    words = dict[int, Judged]()
    for at in alike.values():
        values, each, asked = zip(*(rows[k] for k in at), strict=True)
        words |= zip(at, judged(np.array(values), each[0], asked), strict=True)
    return [words[k] for k in range(len(rows))]


def judged(values: Array, sizes: Array, asked: Sequence[Range | None]) -> list[Judged]:
    """Exponent, interval, what is asked, word, off, ahead and bend, of rows of values with the same sizes."""
    missing = float("nan")
    x, at = np.unique(sizes, return_inverse=True)
    count = np.bincount(at).astype(float)
    fine = [bool(row.all()) for row in (values > 0) & np.isfinite(values)]

    def unknown(ask: Range | None, word: str) -> Judged:
        ends = (missing, missing) if ask is None else ask
        return missing, missing, missing, *ends, word, missing, missing, missing, missing

    if count.min() < 2 or len(x) < LEAST_POINTS:
        return [unknown(ask, "undecided" if positive else "zero") for ask, positive in zip(asked, fine, strict=True)]
    logs = np.log(np.where(np.array(fine)[:, None], values, 1.0))
    each = (at == np.arange(len(x))[:, None]).astype(float)
    means = logs @ each.T / count
    variances = (logs - means[:, at]) ** 2 @ each.T / (count - 1)
    exponents, bends = (pooled_contrast(of, means, count, variances) for of in pooled_weights(x, count))
    wider, rows = wider_by(int((count - 1).sum())), list[Judged]()
    for k, (exponent, half, bend, bend_half) in enumerate(zip(*exponents, *bends, strict=True)):
        if not fine[k]:
            rows.append(unknown(asked[k], "zero"))
            continue
        rows.append((*_held(float(exponent), float(half), asked[k], wider), float(bend), float(bend_half) * wider))
    return rows


def _held(
    exponent: float, half: float, asked: Range | None, wider: float
) -> tuple[float, float, float, float, float, str, float, float]:
    """An exponent and its interval against what is asked."""
    low, high, missing = exponent - half, exponent + half, float("nan")
    if asked is None:
        return exponent, low, high, missing, missing, "not asked", missing, missing
    off = exponent - min(max(exponent, asked[0]), asked[1])
    word = "undecided"
    if abs(off) - half * wider > MARGIN:
        word = "breach"
    elif low >= asked[0] - MARGIN and high <= asked[1] + MARGIN:
        word = "agrees"
    return exponent, low, high, *asked, word, off, ahead(exponent, half, asked, wider)[0]
