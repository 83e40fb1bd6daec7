"""The alarms about a probed PyTorch module, one sentence for each fault."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

WHOLE_MODEL = 0
"""The layer number of an alarm about all layers of a list, or about the whole model."""

# What comes first is most likely the cause of what comes after.
_ORDER = ("non-finite", "copies", "norm", "bias", "attention", "leak", "weight", "structure", "depth", "theory",
          "residual", "detached", "no gradient", "dtype", "loss", "units", "energy", "exploding", "growth",
          "vanishing", "reference")  # fmt: skip
_FOLDED = 4
_SHOWN = 12


@dataclass(frozen=True, slots=True, order=True)
class Alarm:
    """A fault of one layer, of a list of layers, or of the whole module, as one sentence of a report.

    Attributes:
        part: the name of the list of layers with the fault; "" for a fault outside of all lists.
        layer: the layer's number, from 1; `WHOLE_MODEL` for the whole list or model.
        kind: "non-finite", "no gradient", "structure", "weight", "energy", "residual", "exploding", "vanishing",
            "detached", "depth", "theory" or "reference"; from exact tests "leak", "norm", "copies", "bias",
            "attention" or "units"; for one module "loss", "growth", "dtype" or "optimizer"; for steps "optimizer",
            "non-finite" and the kinds of `checks.models.coordinate_causes.Cause`.
        what: the fault in words, with its numbers or their range over the configurations.
        where: the pairs (width, depth) at which the fault was seen; empty for one module.
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
    """A fault of a layer or a list of layers in a module of one width and depth, which may become part of an alarm.

    Attributes:
        layer: the layer's number, or `WHOLE_MODEL`.
        kind: the kind of alarm.
        what: the fault in words, with a placeholder {} for every number; findings that differ only in numbers become
            one alarm.
        numbers: the numbers for the placeholders.
        digits: the number of significant digits shown.
    """

    layer: int
    kind: str
    what: str
    numbers: tuple[float, ...] = ()
    digits: int = field(default=3, compare=False)


def of_weights(kind: str, names: Sequence[str], what: str, where: tuple[tuple[int, int], ...] = ()) -> Alarm:
    """Return an alarm about weights, which names their parameters."""
    few = ", ".join(names[:_FOLDED]) + (f", ... ({len(names)} in all)" if len(names) > _FOLDED else "")
    return Alarm(few, WHOLE_MODEL, kind, what, where)


def merged(findings: Iterable[tuple[tuple[int, int], str, Finding]]) -> list[Alarm]:
    """Merge the faults found in modules of several sizes into alarms; numbers that differ become ranges.

    >>> wide = ((64, 4), "h", Finding(2, "weight", "{} times", (980.0,)))
    >>> print(*merged([wide, ((128, 4), "h", Finding(2, "weight", "{} times", (1030.0,)))]))
    weight: layer 2 of h: 980 to 1.03e+03 times [at (width, depth) = (64, 4), (128, 4)]
    """
    seen: dict[tuple[str, int, str, str], list[tuple[tuple[int, int], Finding]]] = {}
    for where, part, finding in findings:
        seen.setdefault((part, finding.layer, finding.kind, finding.what), []).append((where, finding))
    alarms = []
    for (part, layer, kind, what), alike in seen.items():
        columns = zip(*(finding.numbers for _, finding in alike), strict=True)
        text = what.format(*(value_range(column, alike[0][1].digits) for column in columns))
        alarms.append(Alarm(part, layer, kind, text, tuple(dict.fromkeys(where for where, _ in alike))))
    return sorted(alarms)


def alarms_by_cause(raised: Iterable[Alarm]) -> list[Alarm]:
    """Order alarms by the most likely cause, and join alarms about the same layer into one alarm.

    >>> wide, late = ((64, 4),), ((64, 4), (64, 8))
    >>> print(*alarms_by_cause([Alarm("h", 2, "energy", "rises", late), Alarm("h", 2, "weight", "is large", wide)]))
    weight: layer 2 of h: is large; also energy: rises [at (width, depth) = (64, 4)]
    """
    causes: list[Alarm] = []
    known: dict[tuple[str, int], int] = {}
    for alarm in sorted(raised, key=_likely):
        at = alarm.part, alarm.layer
        if alarm.part and (alarm.part, WHOLE_MODEL) in known:
            at = alarm.part, WHOLE_MODEL
        elif alarm.kind == "growth":
            at = next((place for place in known if place[0] == alarm.part), at)
        cause = causes[known[at]] if at in known else None
        if cause is None or alarm.kind == "reference" or alarm.kind == cause.kind == "theory":
            known.setdefault(at, len(causes))
            causes.append(alarm)
            continue
        also = ", " if "; also " in cause.what else "; also "
        layer = f" of layer {alarm.layer}" if alarm.layer not in (WHOLE_MODEL, at[1]) else ""
        causes[known[at]] = replace(cause, what=f"{cause.what}{also}{alarm.kind}{layer}: {alarm.what}")
    return causes


def _likely(alarm: Alarm) -> tuple[int, str, int]:
    """Return the sort key of an alarm, likely causes first; differences from a reference keep their order."""
    at = ("", WHOLE_MODEL) if alarm.kind == "reference" else (alarm.part, alarm.layer)
    return (_ORDER.index(alarm.kind), *at)


def escaped(name: str) -> str:
    """Escape the braces in a name, so that the name can be part of a format string."""
    return name.replace("{", "{{").replace("}", "}}")


def ratio_words(log_factor: float) -> tuple[str, float]:
    """Return a ratio in words, with a placeholder for its number, and the number, from the ratio's logarithm."""
    return ("{} times", math.exp(log_factor)) if log_factor >= 0 else ("1/{} of", math.exp(-log_factor))


def value_range(values: Sequence[float], digits: int) -> str:
    """Format the smallest and the largest of several numbers, as one number if both look the same."""
    low, high = (f"{end:.{digits}g}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def alarm_lines(raised: Sequence[Alarm]) -> list[str]:
    """Return alarms as lines of a report; of many differences from a reference module, only the first are listed."""
    first = [alarm for alarm in raised if alarm.kind != "reference"]
    others = [alarm for alarm in raised if alarm.kind == "reference"]
    lines = [f"ALARM {alarm}" for alarm in first + others[:_SHOWN]]
    if len(others) > _SHOWN:
        lines.append(f"... and {len(others) - _SHOWN} more differences from the reference")
    return lines


def folded(notes: Sequence[str]) -> list[str]:
    """Return the first few notes as lines of a report, followed by the number of further notes."""
    lines = [f"note: {note}" for note in notes[:_FOLDED]]
    return [*lines, f"... and {len(notes) - _FOLDED} more notes (see `notes`)"] if len(notes) > _FOLDED else lines
