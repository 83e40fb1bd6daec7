"""Sections of `paper_checks.md`: a claim's rows, and its notes with what several of them say said once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from string import Formatter
from typing import Any

import numpy as np

from checks.experiment import PAPER_WIDTH
from checks.results import Results
from checks.statistics import agreement_text
from checks.verdict import Sentence, Subject, Verdict, significant
from theory import CLAIMS, Stack, predict
from theory.paper.theorem1 import bound_value
from theory.stack import PAPER, TITLES

# Of a beginning that is not said again in the next row.
_LONG = 30


_HEADS = ("part", "number", "setting", "paper", "theory", "samples", "verdict", "note")


@dataclass(frozen=True, slots=True)
class Shown:
    """A row of a claim's table: a verdict, the command behind it, and others that say the same of smaller settings."""

    verdict: Verdict
    command: str
    smaller: Sequence[tuple[Verdict, str]] = ()


def every_row(rows: Sequence[tuple[Verdict, str]]) -> list[Shown]:
    """Each verdict in a row of its own, of each kind the largest first."""
    return [Shown(v, command) for v, command in largest_first(rows)]


def largest_rows(rows: Sequence[tuple[Verdict, str]]) -> list[Shown]:
    """Of verdicts of one kind, of equal words also in their notes, the largest, with the others behind it.

    Bounds that are loose by other factors do not say the same.
    """
    kinds: dict[object, list[tuple[Verdict, str]]] = {}
    for v, command in largest_first(rows):
        loose = v.loose if v.subject.kind == "bound" else None
        kinds.setdefault((_kind(v), v.verdict, loose, v.note.words), []).append((v, command))
    return [Shown(*these[0], these[1:]) for these in kinds.values()]


def section(
    rows: Sequence[Shown], *, settings: dict[str, int], commands: dict[str, int], digits: int
) -> dict[str, Any]:
    """A claim's rows and its notes, as a template shows them.

    Args:
        rows: in the order in which they are shown.
        settings: numbers by the texts of the page; new ones are added.
        commands: likewise.
        digits: of numbers.

    Returns:
        The rows' cells by column; the table of them, without columns in which rows do not differ; the notes, and
        whether rows differ in them.
    """
    marks, notes = merged([shown.verdict.note for shown in rows])
    cells = [
        _cells(shown, _setting_numbers(shown, settings, commands), digits) | {"note": mark}
        for shown, mark in zip(rows, marks, strict=True)
    ]
    noted, has_theory = len(notes) > 1 or len(set(marks)) > 1, any(np.isfinite(s.verdict.predicted) for s in rows)
    differ = {name: len({each[name] for each in cells}) > 1 for name in ("number", "setting")}
    heads = [head for head in _HEADS if ({"note": noted, "theory": has_theory} | differ).get(head, True)]
    below = [
        each | {name: after(above[name], each[name]) for name in ("part", "number")}
        for above, each in pairwise([dict.fromkeys(_HEADS, ""), *cells])
    ]  # fmt: skip
    table = [heads, *([each[head] + each["others"] * (head == "part") for head in heads] for each in below)]
    return {"rows": cells, "table": table, "notes": notes, "noted": noted}


def _cells(shown: Shown, number: str, digits: int) -> dict[str, str]:
    """What a row says, by column; "others" are smaller settings that its part does not name."""
    v, part = shown.verdict, shown.verdict.short_part
    others = {other.short_part for other, _ in shown.smaller} - {part}
    return {
        "part": part,
        "others": f", and {len(others)} smaller" if others else "",
        "number": CLAIMS[v.claim].measured_in(part),
        "setting": number,
        "paper": str(v.claimed),
        "theory": _theory(v, digits),
        "samples": _samples(v, digits),
        "verdict": v.words + " (bound over norm)" * (v.loose is not None and v.subject.kind == "exponent"),
    }


def with_links(text: str) -> str:
    """The text with a link for each page that it names by its path."""
    return re.sub(r"docs/\w+\.md", r"[\g<0>](\g<0>)", text)


def _setting_numbers(shown: Shown, settings: dict[str, int], commands: dict[str, int]) -> str:
    """The numbers of a row's setting and of those behind it."""
    numbers = []
    for v, command in [(shown.verdict, shown.command), *shown.smaller]:
        made_by = commands.setdefault(shown_command(command), len(commands) + 1)
        text = _beside(v) + (f" (command {made_by})" if made_by > 1 else "")
        numbers.append(settings.setdefault(text, len(settings) + 1))
    return ", ".join(dict.fromkeys(map(str, numbers)))


def merged(notes: Sequence[Sentence]) -> tuple[list[str], list[str]]:
    """Notes of equal words as one, in which values that differ stand apart by slashes.

    Returns:
        For each note its mark, the number of the merged one and a letter for the place between its slashes if it has
        any; and the merged notes.

    >>> merged([Sentence("{} of 20 draws", (1,)), Sentence("all draws"), Sentence("{} of 20 draws", (3,))])
    (['1a', '2', '1b'], ['1 / 3 of 20 draws.', 'All draws.'])
    """
    kinds: dict[str, list[Sentence]] = {}
    for note in dict.fromkeys(notes):
        kinds.setdefault(note.words, []).append(note)
    marks, texts = {}, []
    for number, same in enumerate(kinds.values(), start=1):
        for letter, note in zip("abcdefghijklmnopqrstuvwxyz", same, strict=False):
            marks[note] = f"{number}{letter if len(same) > 1 else ''}"
        texts.append(f"{capital(_together(same))}.")
    return [marks[note] for note in notes], texts


def _together(notes: Sequence[Sentence]) -> str:
    """Notes of equal words as one."""
    columns, text = zip(*(note.values for note in notes), strict=True), ""
    for words, field, form, _ in Formatter().parse(notes[0].words):
        text += words
        if field is not None:
            values = [format(value, form or "") for value in next(columns)]
            text += " / ".join(values[:1] if len(set(values)) == 1 else values)
    return text


def shown_command(command: str) -> str:
    """A command as it is shown, without the folders of texts, which are another machine's."""
    return f"`{re.sub(r'(?<= )(?:[.]{0,2}/)[^ ]*/(?=[^ /]+)', '', command)}`"


def largest_first(rows: Sequence[tuple[Verdict, str]]) -> list[tuple[Verdict, str]]:
    """Rows of one kind together, in the order in which the kinds come; of each the widest and deepest first."""
    kinds = list(dict.fromkeys(_kind(v) for v, _ in rows))
    return sorted(rows, key=lambda pair: (kinds.index(_kind(pair[0])), *(-size for size in _sizes(pair[0]))))


def bound_stack(placement: str, width: int) -> Stack:
    """The paper's network of six layers, eight tokens and as many classes as coordinates."""
    return Stack(placement=placement, width=width, depth=6, tokens=8, vocab=width)


def looseness(stack: Stack) -> float:
    """Theorem 1's bound, with its tail bound of ‖W_emb‖₂, over the norm by large-width theory."""
    return float(bound_value(stack).value) / float(np.sqrt(predict(stack)["grad_sq_W2"][-1]))


def bound_by_width(committed: Sequence[Results]) -> list[list[str]]:
    """Rows of Theorem 1's bound over the norm against the width, by theory and by the committed cells of V = d.

    The bound is the one with its tail bound of ‖W_emb‖₂. At the paper's own width theory stands alone.
    """
    factors: dict[tuple[str, int], float] = {}
    for cell in (cell for results in committed for cell in results.cells if not cell["text"] and "grad_sq_W2" in cell):
        stack = Stack(**cell["stack"])
        if stack == bound_stack(stack.placement, stack.width):
            norm = float(np.sqrt(cell["grad_sq_W2"]["mean"]))
            factors.setdefault((stack.placement, stack.width), float(bound_value(stack).value) / norm)
    if not factors:
        return []
    widths = sorted({width for _, width in factors} | {PAPER_WIDTH})
    rows = [["d", *map(str, widths)]]
    for placement in PAPER:
        theory = (significant(looseness(bound_stack(placement, width))) for width in widths)
        sampled = (factors.get((placement, width)) for width in widths)
        rows += [
            [f"{TITLES[placement]}, theory", *theory],
            [f"{TITLES[placement]}, samples", *("-" if k is None else significant(k) for k in sampled)],
        ]
    return rows


def _kind(v: Verdict) -> tuple[Subject, str]:
    """What a row is about, whatever its width and depth."""
    subject = v.subject.without(v.setting.held())
    return replace(subject, held=tuple(pair for pair in subject.held if pair[0] not in "dL")), v.relaxed


def _sizes(v: Verdict) -> tuple[int, int]:
    """The largest width and depth of a verdict's networks."""
    return v.setting.largest("d"), v.setting.largest("L")


# Of an interval's length: so much is moved by resampling alone.
_ELSEWHERE = 0.1


def _theory(v: Verdict, digits: int) -> str:
    """What theory has, and how samples stand to it unless they agree."""
    if not np.isfinite(v.predicted):
        return "-"
    predicted = significant(v.predicted, digits)
    return predicted if v.agreement == "agrees" else f"{predicted} ({agreement_text(v.agreement)})"


def _samples(v: Verdict, digits: int) -> str:
    """The measured number, its interval, and behind it the one by resampling draws where an end is elsewhere."""
    (low, high), ends = v.interval, [v.interval]
    if v.bootstrap and max(abs(v.bootstrap[0] - low), abs(v.bootstrap[1] - high)) > _ELSEWHERE * (high - low):
        ends.append(v.bootstrap)
    return " ".join([significant(v.measured, digits), *(interval_text(pair, digits) for pair in ends)])


def _beside(v: Verdict) -> str:
    """A setting without the networks that the part names already."""
    named = v.setting.networks if v.setting.networks not in v.subject.quantity else ""
    fixed = () if v.subject.against else v.subject.held
    ranges = tuple(r for r in v.setting.ranges if (r[0], str(r[1])) not in fixed)
    return str(replace(v.setting, networks=named, ranges=ranges))


def after(above: str, part: str) -> str:
    """A part's name below another row's, without the long beginning, or the whole, that both have."""
    if part == above:
        return "..." if part else ""
    words, others = part.split(", "), above.split(", ")
    same = next((k for k, (a, b) in enumerate(zip(words, others, strict=False)) if a != b), 0)
    return f"... {', '.join(words[same:])}" if len(", ".join(words[:same])) >= _LONG else part


def interval_text(ends: tuple[float, float], digits: int) -> str:
    """Both ends of an interval."""
    return f"[{significant(ends[0], digits)}, {significant(ends[1], digits)}]"


def row(cells: Sequence[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def capital(text: str) -> str:
    """The text with a large first letter, unless it is a norm."""
    return text if text.startswith("||") else text[:1].upper() + text[1:]
