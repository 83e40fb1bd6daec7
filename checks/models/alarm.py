"""What is wrong with a probed module, in words, each thing once."""

from collections.abc import Iterable
from dataclasses import dataclass, field

WHOLE_MODEL = 0
"""Stands for the number of a layer where something is wrong with all of them, or with none alone."""


@dataclass(frozen=True, slots=True, order=True)
class Alarm:
    """Something that is wrong with a layer, or with the whole.

    Attributes:
        part: the list that it stands in; "" for what stands in none.
        layer: its number, from 1; `WHOLE_MODEL` of the whole list, or model.
        kind: "non-finite", "no gradient", "structure", "weight", "energy", "residual", "exploding", "vanishing",
            "detached", "depth", "theory", "reference" or "rate"; of exact tests "leak", "norm", "copies", "bias",
            "attention" or "units"; of one module "loss", "growth" or "dtype"; of steps "optimizer", "non-finite" and
            those of `checks.models.coordinate_causes.Cause`.
        what: in words, with its numbers, or their range over the configurations.
        where: the widths and depths at which it was seen; none of one module.
    """

    part: str
    layer: int
    kind: str
    what: str
    where: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        at = ", ".join(f"({width}, {depth})" for width, depth in self.where)
        whole = self.part or "the whole model"
        subject = whole if self.layer == WHOLE_MODEL else f"layer {self.layer} of {self.part}"
        return f"{self.kind}: {subject}: {self.what}" + (f" [at (width, depth) = {at}]" if at else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one configuration says against a layer.

    Attributes:
        layer: its number, or `WHOLE_MODEL`.
        kind: of the alarm.
        what: in words, with a place {} for every number: findings that differ in numbers alone are one alarm.
        numbers: for these places.
        digits: how many significant ones are shown.
    """

    layer: int
    kind: str
    what: str
    numbers: tuple[float, ...] = ()
    digits: int = field(default=3, compare=False)


def merged(findings: Iterable[tuple[tuple[int, int], str, Finding]]) -> list[Alarm]:
    """Alarms of findings, which come with their (width, depth) and list; numbers become ranges.

    >>> wide = ((64, 4), "h", Finding(2, "weight", "{} times", (980.0,)))
    >>> print(*merged([wide, ((128, 4), "h", Finding(2, "weight", "{} times", (1030.0,)))]))
    weight: layer 2 of h: 980 to 1.03e+03 times [at (width, depth) = (64, 4), (128, 4)]
    """
    seen: dict[tuple[str, int, str, str], tuple[list[tuple[int, int]], list[Finding]]] = {}
    for where, part, finding in findings:
        places, same = seen.setdefault((part, finding.layer, finding.kind, finding.what), ([], []))
        if where not in places:
            places.append(where)
        same.append(finding)
    alarms = []
    for (part, layer, kind, what), (places, same) in seen.items():
        columns = zip(*(member.numbers for member in same), strict=True)
        text = what.format(*(_range(column, same[0].digits) for column in columns))
        alarms.append(Alarm(part, layer, kind, text, tuple(places)))
    return sorted(alarms)


def escaped(name: str) -> str:
    """A name among words that have places for numbers."""
    return name.replace("{", "{{").replace("}", "}}")


def _range(values: Iterable[float], digits: int) -> str:
    low, high = (f"{end:.{digits}g}" for end in _ends(list(values)))
    return low if low == high else f"{low} to {high}"


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)
