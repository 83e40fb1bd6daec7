"""The exponents in the width or depth of module outputs and of their changes by optimizer steps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from checks.fits import LEAST_POINTS, pooled_contrast, pooled_weights
from checks.models.parametrizations import (
    Range,
    Role,
    crowded,
    own_change_exponents,
    passed_change_exponents,
    role_of,
    start_exponents,
)
from checks.statistics import Array
from simulate.modules.coordinates import Stepped
from simulate.modules.weight_places import Owner
from theory.stack.parametrizations import Parametrization

MARGIN = 0.25
"""The allowed distance of an exponent from its expected range: half of the smallest wrong power, 1/2."""
LEVEL = 0.999
"""The level of the interval that must lie outside the margin for a breach."""

BEND = 0.1
"""The change of an exponent above which a note is given: from the two smallest to the two largest sizes."""

Against = Literal["width", "depth"]
JUDGED = ("coordinates", "own", "passed")

Row = tuple[str, str, str, int, int, int, float]
"""Quantity, place, parameter, step, size, seed and value; tuples are faster than pandas for so few rows."""


class Exponent(NamedTuple):
    """The fitted exponent of a module's output, or of its change, in the width or the depth, with its expected range.

    Attributes:
        against: "width" or "depth".
        place: the module's name.
        parameter: the parameter's name in the module; "" for a number of the whole module.
        role: the parameter's role; "" for a module.
        quantity: "coordinates", "own" or "passed", as in `Stepped`.
        step: the step after which it was measured.
        exponent: the fitted exponent of the width or depth.
        low: lower end of the exponent's 95% interval.
        high: upper end of the exponent's 95% interval.
        asked_low: lower end of the expected range; NaN if nothing is expected.
        asked_high: upper end of the expected range.
        word: "agrees", "undecided", "breach" (outside the expected range), "zero" (the quantity is 0 at some size) or
            "not asked" (no expected range).
        off: distance of the exponent from the expected range.
        bend: exponent of the two largest sizes minus exponent of the two smallest.
        bend_half: half of the interval of `bend` at `LEVEL`.
    """

    against: Against
    place: str
    parameter: str
    role: Role | Literal[""]
    quantity: str
    step: int
    exponent: float
    low: float
    high: float
    asked_low: float
    asked_high: float
    word: str
    off: float
    bend: float
    bend_half: float


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """The measurements from which exponents in one variable, the width or the depth, are fitted.

    They cover all widths at the greatest depth, or all depths at the greatest width.

    Attributes:
        against: "width" or "depth".
        values: the widths or depths, in ascending order.
        rows: the measured numbers with their widths or depths; for depths, layer numbers in names become stars.
        owners: the uses of weights at the greatest size, with their roles.
        grows: whether a module's output grows with the width, by module name.
        first: means over seeds by quantity, place and size, in the first step in which they are above 0.
        attention: whether the modules have attention.
    """

    against: Against
    values: tuple[int, ...]
    rows: list[Row]
    owners: dict[tuple[str, str], tuple[Owner, Role]]
    grows: dict[str, bool]
    first: dict[tuple[str, str, int], float]
    attention: bool

    def power(self, quantity: str, place: str, base: str = "") -> float:
        """Return the exponent of a quantity without random error, from its values at the smallest and the largest size.

        Args:
            quantity: a quantity of `Stepped.rows`, taken in the first step in which it is above 0.
            place: the module's name.
            base: the quantity in which the exponent is taken; the width or depth itself if left out.
        """
        ends = [self.at(quantity, place, value) for value in (self.values[0], self.values[-1])]
        sizes = [self.at(base, place, value) if base else value for value in (self.values[0], self.values[-1])]
        if not all(np.isfinite(end) and end > 0 for end in (*ends, *sizes)) or sizes[0] == sizes[1]:
            return 0.0
        return float(np.log(ends[1] / ends[0]) / np.log(sizes[1] / sizes[0]))

    def at(self, quantity: str, place: str, size: int) -> float:
        """Return the mean of a module's quantity at one size, in the first optimizer step in which it is not 0.

        If the quantity was not measured, the result is 1 for a multiplier and NaN otherwise.
        """
        return self.first.get((quantity, place, size), 1.0 if quantity.endswith("multiplier") else float("nan"))


def probe_grid(stepped: Stepped, against: Against) -> Sizes:
    """Select the measurements from which exponents in the width, or in the depth, are fitted.

    Widths are compared at the greatest depth, and depths at the greatest width.
    """
    most_wide, deepest = (max(of) for of in zip(*stepped.owners, strict=True))
    rows = list[Row]()
    for width, depth, seed, step, place, parameter, quantity, value in stepped.rows:
        size, fits = (width, depth == deepest) if against == "width" else (depth, width == most_wide)
        if fits:
            rows.append((quantity, place, parameter, step, size, seed, value))
    values = tuple(sorted({size for _, _, _, _, size, _, _ in rows}))
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
        rows = _starred(rows)
        owners = {(_star(place), parameter): value for (place, parameter), value in owners.items()}
        grows = {_star(place): value for place, value in grows.items()}
    attention = any(quantity == "logit_scale" for quantity, *_ in rows)
    return Sizes(against, values, rows, owners, grows, _first_means(rows), attention)


def _first_means(rows: Sequence[Row]) -> dict[tuple[str, str, int], float]:
    """Average exact quantities, such as multipliers and learning rates, over seeds in their first step above 0."""
    steps, values = dict[tuple[str, str, int], int](), dict[tuple[str, str, int], list[float]]()
    for quantity, place, _, step, size, _, value in rows:
        if quantity in JUDGED or quantity == "inputs" or not value > 0:
            continue
        at = quantity, place, size
        if step < steps.get(at, step + 1):
            steps[at], values[at] = step, []
        if step == steps[at]:
            values[at].append(value)
    return {at: fmean(of) for at, of in values.items()}


def _star(name: str) -> str:
    """Replace the layer numbers in a module's name by stars.

    >>> _star("layers.3.up"), _star("norm1")
    ('layers.*.up', 'norm1')
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _starred(rows: Sequence[Row]) -> list[Row]:
    """Combine the rows of all layers into root mean squares over layers."""
    squares: dict[tuple[str, str, str, int, int, int], list[float]] = {}
    for quantity, place, parameter, step, size, seed, value in rows:
        squares.setdefault((quantity, _star(place), parameter, step, size, seed), []).append(value**2)
    return [(*key, fmean(of) ** 0.5) for key, of in squares.items()]


def exponents(stepped: Stepped, sizes: Sizes, parametrization: Parametrization) -> list[Exponent]:
    """Fit the scaling exponent of every module's output and of its changes, and compare it with its expected range.

    For widths, outputs and their changes include a multiplier that is applied directly afterwards; for depths,
    multipliers are judged separately. Fits use geometric means over seeds. Each exponent has a 95% interval.
    """
    factors = dict[tuple[str, int, int], float]()
    if sizes.against == "width":
        for quantity, place, _, _, size, seed, value in sizes.rows:
            if quantity == "multiplier":
                factors.setdefault((place, size, seed), abs(value))
    alike: dict[tuple[str, str, str, int], list[tuple[float, int]]] = {}
    for quantity, place, parameter, step, size, seed, value in sizes.rows:
        if quantity in JUDGED:
            factor = factors.get((place, size, seed), 1.0)
            alike.setdefault((place, parameter, quantity, step), []).append((value * factor, size))
    rates = [sizes.power("rate", owner.weight) for owner, _ in sizes.owners.values()]
    common = float(np.median(rates)) if rates else 0.0
    readouts = {place for (place, _), (_, role) in sizes.owners.items() if role == "output"}
    first = _first_moves(sizes.rows)
    keys = list[tuple[str, str, Role | Literal[""], str, int]]()
    rows = list[tuple[Array, Array, Range | None]]()
    for (place, parameter, quantity, step), pairs in alike.items():
        values, of_size = np.array(pairs).T
        if len(set(of_size)) < len(sizes.values):
            continue
        role: Role | Literal[""] = sizes.owners[place, parameter][1] if (place, parameter) in sizes.owners else ""
        asked = _asked(parametrization, sizes, stepped, place, parameter, quantity, step, first, common, readouts)
        keys.append((place, parameter, role, quantity, step))
        rows.append((values, of_size, asked))
    return [
        Exponent(sizes.against, place, parameter, role, quantity, step, *row)
        for (place, parameter, role, quantity, step), row in zip(keys, judged_rows(rows), strict=True)
    ]


def _first_moves(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    """Return for each weight the first step after which it has moved in all modules."""
    still, moved = set[tuple[str, str, int]](), dict[tuple[str, str], set[int]]()
    for quantity, place, parameter, step, _, _, value in rows:
        if quantity == "own":
            moved.setdefault((place, parameter), set()).add(step)
            if not value > 0:
                still.add((place, parameter, step))
    steps = {key: [step for step in of if (*key, step) not in still] for key, of in moved.items()}
    return {key: min(of) for key, of in steps.items() if of}


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
        return start_exponents(parametrization, grows=grows) if not step or parametrization != "sp" else None
    if quantity == "passed":
        return passed_change_exponents(parametrization) if grows or place in readouts else None
    owner, role = sizes.owners.get((place, parameter), (None, None))
    if owner is None or role is None or (parametrization == "sp" and step != first.get((place, parameter))):
        return None
    # At the middle of the sizes, as lengths that grow are known of the largest.
    inputs = owner.inputs * (sizes.values[0] / sizes.values[-1]) ** 0.5
    return own_change_exponents(
        parametrization, role, stepped.steppers.get(owner.weight, ""), common, crowd=crowded(owner.vectors, inputs),
        attention=sizes.attention,
    )  # fmt: skip


def wider_by(freedom: int) -> float:
    """Return the factor by which a stricter Student t interval is longer than the 95% interval."""
    return float(stdtrit(freedom, 0.5 + LEVEL / 2) / stdtrit(freedom, 0.975))


OFF: Final = 6
"""The index of `off` in a judged row."""
Judged = tuple[float, float, float, float, float, str, float, float, float]


def judged_rows(rows: Sequence[tuple[Array, Array, Range | None]]) -> list[Judged]:
    """Fit exponents to rows of values and compare them with their expected ranges; each row has its own sizes."""
    alike: dict[bytes, list[int]] = {}
    for k, (_, sizes, _) in enumerate(rows):
        alike.setdefault(sizes.tobytes(), []).append(k)
    words = dict[int, Judged]()
    for at in alike.values():
        values, each, asked = zip(*(rows[k] for k in at), strict=True)
        words |= zip(at, judged(np.array(values), each[0], asked), strict=True)
    return [words[k] for k in range(len(rows))]


def judged(values: Array, sizes: Array, asked: Sequence[Range | None]) -> list[Judged]:
    """Fit exponents to rows of values at the same sizes, and compare them with their expected ranges."""
    missing = float("nan")
    x, at = np.unique(sizes, return_inverse=True)
    count = np.bincount(at).astype(float)
    fine = [bool(row.all()) for row in (values > 0) & np.isfinite(values)]

    def unknown(ask: Range | None, word: str) -> Judged:
        ends = (missing, missing) if ask is None else ask
        return missing, missing, missing, *ends, word, missing, missing, missing

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
) -> tuple[float, float, float, float, float, str, float]:
    """Compare an exponent and its 95% interval with the expected range, and return the fields of `Exponent`."""
    low, high, missing = exponent - half, exponent + half, float("nan")
    if asked is None:
        return exponent, low, high, missing, missing, "not asked", missing
    off = exponent - min(max(exponent, asked[0]), asked[1])
    word = "undecided"
    if abs(off) - half * wider > MARGIN:
        word = "breach"
    elif low >= asked[0] - MARGIN and high <= asked[1] + MARGIN:
        word = "agrees"
    return exponent, low, high, *asked, word, off
