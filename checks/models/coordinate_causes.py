"""The causes of wrong scaling exponents: initial scale, multiplier or learning rate, each with its correction."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checks.models.coordinate_exponents import MARGIN, OFF, Exponent, Sizes, judged_rows
from checks.models.parametrizations import Range, Role, logit_exponent
from checks.statistics import Array
from simulate.modules.weight_places import Owner
from theory.stack.parametrizations import Parametrization

# The largest difference between exact exponents that count as equal; factors such as a base width do not enter
# exponents.
_EXACT = 0.1
# The step between possible exponents; a measured exponent is at most this far from its own.
_NEAR = 0.5
# The share of a step that epsilon takes above which epsilon is reported as the cause of a step that is too small.
_HELD_BACK = 0.3


@dataclass(frozen=True, slots=True)
class Cause:
    """A fault in the scaling of weights with the width, with its correction in words.

    Attributes:
        kind: "initial scale", "multiplier", "learning rate", "epsilon", "tied readout", "attention" or "unexplained".
        names: the names of the weights or modules.
        what: the fault in words, with its correction.
    """

    kind: str
    names: tuple[str, ...]
    what: str


def causes(sizes: Sizes, rows: Sequence[Exponent], parametrization: Parametrization) -> list[Cause]:
    """Find the causes of wrong scaling exponents, the likely origin first; weights with the same fault share a cause.

    Args:
        sizes: the measured modules, all widths or all depths.
        rows: the result of `checks.models.coordinate_exponents.exponents` for these modules.
        parametrization: the expected parametrization.
    """
    one_by_one = list(_Judge(sizes, rows, parametrization).causes())
    breaches = [row for row in rows if row.word == "breach"]
    if not one_by_one and breaches:
        first = min(breaches, key=lambda row: row.step)
        what = (
            f"{first.quantity} in step {first.step} scale like {sizes.against}^{first.exponent:.2f}, and no "
            "initial scale, multiplier, learning rate or epsilon explains it"
        )
        one_by_one.append(Cause("unexplained", (f"{first.place}.{first.parameter}".rstrip("."),), what))
    alike: dict[tuple[str, str], list[str]] = {}
    for cause in one_by_one:
        alike.setdefault((cause.kind, cause.what), []).extend(cause.names)
    return [Cause(kind, tuple(dict.fromkeys(names)), what) for (kind, what), names in alike.items()]


class _Judge:
    def __init__(self, sizes: Sizes, rows: Sequence[Exponent], parametrization: Parametrization) -> None:
        self._sizes, self._rows, self._parametrization = sizes, rows, parametrization
        self._letter = sizes.against
        # Where seeds are too few to tell, what is exact may: `_beginnings` asks for it.
        self._starts = [
            row for row in rows
            if row.quantity == "coordinates" and row.step == 0 and (row.word == "breach" or abs(row.off) > MARGIN)
        ]  # fmt: skip
        first: dict[tuple[str, str], Exponent] = {}
        for row in rows:
            at = row.place, row.parameter
            if row.quantity == "own" and row.word != "zero" and (at not in first or row.step < first[at].step):
                first[at] = row
        self._updates = [row for row in first.values() if row.word == "breach"]
        self._own = {at: row.exponent for at, row in first.items()}
        self._off_updates = {at for at, row in first.items() if abs(row.off) > MARGIN}
        self._matrices: dict[str, list[tuple[Owner, Role]]] = {}
        for (place, _), (owner, role) in sizes.owners.items():
            if len(owner.shape) >= 2 and role in ("input", "hidden", "output"):
                self._matrices.setdefault(place, []).append((owner, role))
        uses = Counter(owner.weight for owner, _ in sizes.owners.values())
        self._tied = {weight for weight, count in uses.items() if count > 1} if sizes.against == "width" else set()
        self._damped: set[str] = set()
        self._places: dict[str, dict[str, None]] = {}
        inputs: dict[str, list[tuple[float, int]]] = {}
        for quantity, place, _, _, size, _, value in sizes.rows:
            if quantity in ("logit_scale", "multiplier"):
                self._places.setdefault(quantity, {})[place] = None
            elif quantity == "damping":
                self._damped.add(place)
            elif quantity == "inputs":
                inputs.setdefault(place, []).append((value, size))
        self._inputs = self._inputs_off(inputs)

    def causes(self) -> Iterator[Cause]:
        if self._letter == "depth":
            yield from self._branches()
        else:
            yield from self._attention()
        output = list(self._readouts())
        named = {name for cause in output for name in cause.names}
        beginnings = [cause for cause in self._beginnings() if not set(cause.names) & named]
        yield from beginnings
        yield from output
        rates = list(self._rates({name for cause in (*output, *beginnings) for name in cause.names}))
        yield from rates
        yield from self._exact_rates({name for cause in (*output, *beginnings, *rates) for name in cause.names})

    def _power(self, place: str) -> float:
        return self._sizes.power("multiplier", place) + self._sizes.power("input_multiplier", place)

    def _times(self, off: float) -> str:
        """Describe how many times too large or small a quantity is at the largest size, relative to the smallest."""
        low, high = self._sizes.values[0], self._sizes.values[-1]
        times = (high / low) ** abs(off)
        size = "large" if off > 0 else "small"
        return f"at {self._letter} {high} it is {times:.1f} times too {size} relative to {self._letter} {low}"

    def _inputs_off(self, inputs: Mapping[str, Sequence[tuple[float, int]]]) -> dict[str, float]:
        """Return the deviations of the exponents of modules' inputs before the first step, apart from multipliers."""
        places, rows = list[str](), list[tuple[Array, Array, Range | None]]()
        for place, of in inputs.items():
            values, sizes = np.array(of).T
            if len(set(sizes)) == len(self._sizes.values):
                power = self._sizes.power("input_multiplier", place)
                places.append(place)
                rows.append((values, sizes, (power, power)))
        offs = (row[OFF] for row in judged_rows(rows))
        return {place: off for place, off in zip(places, offs, strict=True) if abs(off) > MARGIN}

    def _attention(self) -> Iterator[Cause]:
        asked = logit_exponent(self._parametrization)
        for place in self._places.get("logit_scale", {}):
            ends = self._sizes.values[0], self._sizes.values[-1]
            low, high = (self._sizes.at("key_size", place, size) for size in ends)
            if low == high:
                continue
            power = self._sizes.power("logit_scale", place, "key_size")
            if abs(power - asked) > _EXACT:
                scale = self._sizes.at("logit_scale", place, self._sizes.values[-1])
                times = (high / low) ** abs(power - asked)
                size = "large" if power > asked else "small"
                yield Cause(
                    "attention", (place,),
                    f"logits are q.k times {scale:.3g}, which scales like d_k^{power:.2f} and must scale like d_k^"
                    f"{asked:g}: at d_k = {high:.0f} it is {times:.1f} times too {size} relative to d_k = {low:.0f}",
                )  # fmt: skip

    def _branches(self) -> Iterator[Cause]:
        """Find branch multipliers that are missing or do not scale like 1/depth, as CompleteP requires."""
        places = self._places.get("multiplier", {})
        powers = {place: self._sizes.power("multiplier", place) for place in places if "*" in place}
        breaches = [row for row in self._rows if row.word == "breach" and "*" in row.place and row.off > 0]
        growing = [row for row in breaches if row.quantity != "own"]
        if growing and not any(abs(power) > _EXACT for power in powers.values()):
            row = growing[0]
            what = {"coordinates": "mean |y|", "passed": "the passed-on change"}[row.quantity]
            yield Cause(
                "multiplier", (row.place,),
                f"no multiplier falls with the depth, and {what} scales like depth^{row.exponent:.2f}: branches "
                f"must be multiplied by depth^-1: {self._times(1)}",
            )  # fmt: skip
        yield from (
            Cause(
                "multiplier", (place,),
                f"branches are multiplied by depth^{power:.2f} and must be multiplied by depth^-1: "
                f"{self._times(_rounded(power + 1))}",
            )
            for place, power in powers.items()
            if abs(power) > _EXACT and abs(power + 1) > _EXACT
        )  # fmt: skip

    def _readouts(self) -> Iterator[Cause]:
        """Find output matrices without the multiplier that mu-P requires."""
        if self._parametrization == "sp" or self._letter == "depth":
            return
        off = {row.place: row.off for row in reversed(self._updates) if row.role == "output"}
        for place, matrices in self._matrices.items():
            if off.get(place, 0.0) > 0 and place not in self._inputs:
                yield from self._without_multiplier(place, matrices)

    def _without_multiplier(self, place: str, matrices: list[tuple[Owner, Role]]) -> Iterator[Cause]:
        """Find an output matrix without a width-dependent multiplier, and the power that its learning rate requires.

        At width n, the matrix's update changes logits by n times the learning rate times the multiplier. If steps are
        proportional to the gradient, the multiplier enters once more.
        """
        owner, role = matrices[0]
        if role != "output" or abs(self._power(place)) > _EXACT or self._parametrization == "sp":
            return
        times = (1 + self._sizes.power("rate", owner.weight)) / (1 if self._divides(owner.weight) else 2)
        if _rounded(times) <= 0:
            return
        tied = owner.weight in self._tied
        text = "it is also the output matrix, and" if tied else "it is the output matrix, and"
        what = (
            f"{text} logits must be multiplied by {_powers('width', -_rounded(times))}: {self._times(_rounded(times))}"
        )
        yield Cause("tied readout" if tied else "multiplier", (owner.weight,), what)

    def _beginnings(self) -> Iterator[Cause]:
        """Find matrices whose output has the wrong exponent before training although their input has the right one."""
        any_matrix = False
        for row in self._starts:
            matrices = self._matrices.get(row.place, [])
            before = self._inputs.get(row.place, 0.0)
            off = row.off - before
            if not matrices or abs(off) <= MARGIN:
                continue
            cause, exact = self._beginning(row.place, matrices, off)
            if exact or (row.word == "breach" and not before):
                any_matrix = True
                yield cause
        breaches = [row for row in self._starts if row.word == "breach"]
        if breaches and not any_matrix and self._letter == "width":
            power = f"width^{breaches[0].exponent:.2f}"
            yield Cause("unexplained", (breaches[0].place,), f"outputs scale like {power} at the start")

    def _beginning(self, place: str, matrices: list[tuple[Owner, Role]], off: float) -> tuple[Cause, bool]:
        """Return the cause of an output's wrong exponent before training, and whether exact numbers explain it."""
        letter, scalar = self._letter, self._power(place)
        missing = list(self._without_multiplier(place, matrices)) if off > 0 else []
        deviations = []
        for owner, role in matrices:
            usual = 0.0 if role == "input" or letter == "depth" else -0.5
            power = self._weight_power(owner)
            # Logits of mu-P may be smaller at the start.
            least = usual - 0.5 if role == "output" and self._parametrization != "sp" else usual
            excess = power + scalar - min(max(power + scalar, least), usual)
            deviations.append((abs(power - usual), power, excess, owner.weight))
        distance, power, excess, weight = max(deviations)
        name = weight if letter == "width" else f"{place}.{matrices[0][0].parameter}"
        exact = abs(excess - off) < MARGIN and abs(excess) > MARGIN
        if missing:
            return missing[0], exact
        # An update that divides by a gradient's size has the scalar, and not the entries of the start.
        fits = self._divides(weight)
        fits &= not any((place, owner.parameter) in self._off_updates for owner, _ in matrices)
        if abs(scalar) > _EXACT and not fits and abs(scalar - off) < abs(excess - scalar - off) + _EXACT:
            asked = _powers(letter, _rounded(scalar - off))
            what = f"it is multiplied by {letter}^{scalar:.2f} and must be multiplied by {asked}"
            return Cause("multiplier", (name,), f"{what}: {self._times(_rounded(off))}"), exact
        asked = _powers(letter, _rounded(power - off))
        what = f"its entries scale like {letter}^{round(power, 1) + 0.0:g} and must scale like {asked}"
        if distance <= _EXACT and abs(scalar) <= _EXACT:
            what = f"its output scales like {letter}^{off:.2f} at the start"
        return Cause("initial scale", (name,), f"{what}: {self._times(_rounded(off))}"), exact

    def _weight_power(self, owner: Owner) -> float:
        if self._letter == "width":
            return self._sizes.power("weight", owner.weight)
        starred = [key for key, (other, _) in self._sizes.owners.items() if other is owner]
        return self._sizes.power("weight", ".".join(starred[0])) if starred else 0.0

    def _rates(self, started: set[str]) -> Iterator[Cause]:
        """Find weights whose own update changes their module's output too much or too little.

        Args:
            started: names of weights that are causes already. Deviations of other weights in the same modules, and
                deviations measured through other modules, follow from them.
        """
        letter, rows = self._letter, self._updates
        names = {
            key: ".".join(key) if letter == "depth" else owner.weight for key, (owner, _) in self._sizes.owners.items()
        }
        places = {place for (place, _), name in names.items() if name in started}
        inner = [row for row in rows if row.role == "inner"]
        direct, held_back = [row for row in rows if row.role != "inner"], list[str]()
        for row in direct if direct or started else inner:
            place, parameter, off = row.place, row.parameter, row.off
            _, role = self._sizes.owners[place, parameter]
            name = names[place, parameter]
            # Updates are judged on the inputs of the start.
            at_other_inputs = role in ("input", "hidden", "output") and place in self._inputs
            if place in places or name in started or at_other_inputs:
                continue
            # Without division by a gradient's size every update follows from what is wrong at the start.
            if started and not self._divides(name):
                continue
            if off < 0 and self._sizes.at("damping", name, self._sizes.values[-1]) > _HELD_BACK:
                held_back.append(name)
                continue
            power = self._sizes.power("rate", name)
            clear = self._clear_power(place, role, name, power, off, (row.high - row.low) / 2)
            what = f"its learning rate scales like {letter}^{power:.2f} and must {'fall' if off > 0 else 'rise'} faster"
            what += f" with the {letter}, by a power that is not clear"
            if clear is not None:
                off = clear
                asked = _powers(letter, power - off)
                scales = f"scales like {letter}^{power:.2f} and must scale like {asked}"
                what = f"its learning rate {scales}: {self._times(off)}"
            yield Cause("learning rate", (name,), what)

        if held_back:
            ends = self._sizes.values[-1], self._sizes.values[0]
            most = [max(self._sizes.at("damping", name, size) for name in held_back) for size in ends]
            least = min(self._sizes.at("gradient", name, ends[0]) for name in held_back)
            yield Cause(
                "epsilon", tuple(held_back),
                f"epsilon takes up to {most[0]:.0%} of the step at {letter} {ends[0]} and {most[1]:.0%} at {letter} "
                f"{ends[1]}: it must be far below {least:.1g}, the size of the smallest gradient",
            )  # fmt: skip

    def _exact_rates(self, named: set[str]) -> Iterator[Cause]:
        """Find matrices whose learning rate has another exponent than mu-P requires, from exact numbers only.

        If the optimizer divides by the gradient's size, the contributions of all entries of a matrix's input add up
        with one sign, so the required exponent is known exactly. The measured exponent must be equal to it, or up to
        1/2 smaller if the batch has many vectors; otherwise a multiplier was missed.

        Args:
            named: weights that are causes already; deviations of other weights in the same modules follow from them.
        """
        if self._letter == "depth" or self._parametrization == "sp":
            return
        places = {place for (place, _), (owner, _) in self._sizes.owners.items() if owner.weight in named}
        largest = self._sizes.values[-1]
        for at, (owner, role) in self._sizes.owners.items():
            weight, place = owner.weight, owner.place
            if (
                place in places | {*self._inputs}
                or weight in self._tied
                or not self._divides(weight)
                or at not in self._own
                or len(owner.shape) < 2
                or role not in ("input", "hidden", "output")
            ):
                continue
            power = self._sizes.power("rate", weight)
            off = _rounded(power + (role != "input") + self._power(place))
            seen = off - _NEAR - MARGIN <= self._own[at] <= off + MARGIN
            if off and seen and self._sizes.at("damping", weight, largest) <= _HELD_BACK:
                asked = _powers("width", power - off)
                what = f"its learning rate scales like width^{power:.2f} and must scale like {asked}: "
                yield Cause("learning rate", (weight,), what + self._times(off))

    def _clear_power(self, place: str, role: Role, name: str, power: float, off: float, error: float) -> float | None:
        """Return the error of a learning rate's exponent if it is clear, or None.

        The error is relative to the exponent of the weight's role, or to the only multiple of 1/2 within the
        statistical error. If the optimizer divides by the gradient's size, the contributions of the n input entries of
        a hidden matrix, each of order 1, add up with one sign.
        """
        if role == "hidden" and self._letter == "width" and self._parametrization != "sp" and self._divides(name):
            asked = power + 1 + self._power(place)
            if abs(asked) > _EXACT and abs(asked - off) <= _NEAR:
                return asked
        nearest = _rounded(power - off)
        return power - nearest if (abs(power - off - nearest) <= error + _EXACT < _NEAR / 2) else None

    def _divides(self, weight: str) -> bool:
        return weight in self._damped


def _rounded(power: float) -> float:
    """Round an exponent to the nearest multiple of 1/2."""
    return round(2 * power) / 2


def _powers(letter: str, power: float) -> str:
    return f"{letter}^{round(power, 2) + 0.0:g}"
