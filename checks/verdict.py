"""The verdict on one claim in one setting, and the possible verdicts."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from theory.stack import TITLES

if TYPE_CHECKING:
    from checks.statistics import Agreement, Estimate
    from simulate import Samples
    from theory import Stack

Word = Literal["holds", "holds, loose", "holds with a correction", "fails", "premise fails", "undecided"]

DECIDING: tuple[Word, ...] = (
    "fails", "holds with a correction", "holds, loose", "holds", "undecided", "premise fails",
)  # fmt: skip
"""The verdict words, most decisive first: the verdict on a claim is the first of them that one of its rows has."""

EXPONENT_MARGIN = 0.02
"""The allowed distance of an exponent from the predicted one over the same grid, and of a predicted limit from the
claim's.
"""


LOOSE = 2.0
"""The ratio of bound to bounded number above which a bound that holds is called loose."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as a template and its values, in the form of `str.format`; `str()` returns the text.

    Two sentences with the same template make the same statement about different values, so a page can print it once.

    >>> str(Sentence("{} of {} draws", (1, 20)) + Sentence("; at {:.3f}", (0.5,)))
    '1 of 20 draws; at 0.500'
    """

    words: str
    values: tuple[float | int | str, ...] = ()

    def __str__(self) -> str:
        return self.words.format(*self.values)

    def __add__(self, other: "Sentence") -> "Sentence":
        return Sentence(self.words + other.words, self.values + other.values)


def sentence(words: str, *values: float | int | str) -> Sentence:
    """Return a `Sentence` object from a template and its values, which are converted to Python's own numbers."""
    return Sentence(words, tuple(v if isinstance(v, str | int) else float(v) for v in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of a verdict: the tested quantity, the kind of number, and the sizes that all its networks share.

    Attributes:
        quantity: the measured quantity, in words.
        kind: the kind of number.
        placement: the placement, a key of `theory.stack.TITLES`; "" for none or several.
        against: the variable of an exponent or growth: "width", "depth", "layer" or "tokens".
        held: the fixed sizes, as pairs such as ("L", "6").
    """

    quantity: str
    kind: Literal["value", "bound", "ratio", "share", "exponent", "growth", "comparison"] = "value"
    placement: str = ""
    against: Literal["", "width", "depth", "layer", "tokens"] = ""
    held: tuple[tuple[str, str], ...] = ()

    def without(self, known: Collection[tuple[str, str]]) -> "Subject":
        """Return the subject of a verdict without some fixed sizes, such as ("L", "6"), that are stated elsewhere."""
        return replace(self, held=tuple(pair for pair in self.held if pair not in known))

    def __str__(self) -> str:
        fixed = ", ".join(" = ".join(pair) for pair in self.held)
        placed = f"{TITLES[self.placement]}, " if self.placement else ""
        return placed + self.quantity + ((f" ({fixed})" if self.against else f", {fixed}") if fixed else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The networks that a verdict is based on: the ranges of their sizes, and their numbers of draws.

    Attributes:
        networks: a description of the networks if they are not the paper's stacks, otherwise "".
        ranges: the smallest and the largest value of each of the paper's sizes d, L, n, V, as ("d", 64, 512); V = d is
            ("V", "d", "d").
        more: further information: the text, other parameters, seeds.
        draws: smallest and largest number of draws per network; None if unknown.
    """

    networks: str = ""
    ranges: tuple[tuple[str, int | str, int | str], ...] = ()
    more: str = ""
    draws: tuple[int, int] | None = None

    def held(self) -> set[tuple[str, str]]:
        """Return the sizes that all networks of a verdict share, as pairs such as ("L", "6")."""
        return {(letter, str(low)) for letter, low, high in self.ranges if low == high}

    def largest(self, letter: str) -> int:
        """Return the upper end of the range of a size, by the size's letter; 0 if the range is unknown."""
        return next((high for name, _, high in self.ranges if name == letter and isinstance(high, int)), 0)

    def __str__(self) -> str:
        parts = [self.networks, *(f"{letter} = {_range(low, high)}" for letter, low, high in self.ranges), self.more]
        parts += [f"{_range(*self.draws, to='-')} networks each"] if self.draws else []
        return ", ".join(filter(None, parts))


def _range(low: float | str, high: float | str, to: str = "..") -> str:
    return f"{low}" if low == high else f"{low}{to}{high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of testing one claim in one setting.

    Subject, claimed number, setting and note may be given as text.

    Attributes:
        claim: the claim's id in `theory.CLAIMS`.
        subject: the tested part of the claim.
        verdict: "holds", "fails", ...; "holds, loose" comes with the factor in `loose`.
        claimed: the paper's number.
        predicted: the number predicted by large-width theory; NaN if theory has no rule for these networks.
        measured: the number measured in sampled networks.
        interval: the 95% interval of `measured`, or its range if `note` says so.
        agreement: whether measured and predicted agree: "differs" fails the run, whatever the verdict on the paper.
        setting: the tested networks.
        loose: bound / measured value, for loose bounds.
        note: the meaning of the numbers.
        bootstrap: the 95% interval of an exponent by resampling draws; `interval` uses normal theory.
        cells: the names of the sampled cells.
        relaxed: the dropped assumptions of the paper; "" if there are none.
        size: the size of the tested networks, such as "d = 64", if the claim is about an experiment of another size;
            otherwise "".
    """

    claim: str
    subject: Subject
    verdict: Word
    claimed: Sentence
    predicted: float
    measured: float
    interval: tuple[float, float]
    agreement: "Agreement"
    setting: Setting
    loose: float | None = None
    note: Sentence = Sentence("")
    bootstrap: tuple[float, float] | None = None
    cells: tuple[str, ...] = ()
    relaxed: str = ""
    size: str = ""

    def __post_init__(self) -> None:
        for name, kind in _OF_TEXT.items():
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, kind(given))

    @property
    def part(self) -> str:
        """The tested part of the claim as text, followed by the assumptions of the paper that were dropped."""
        return f"{self.subject}: {self.relaxed}" if self.relaxed else str(self.subject)

    @property
    def short_part(self) -> str:
        """The tested part of the claim as text, without sizes that the setting of a series already lists.

        The template of `paper_checks.md` reads it.
        """
        known = self.setting.held() if self.subject.against else ()
        return replace(self, subject=self.subject.without(known)).part

    @property
    def words(self) -> str:
        """The verdict as tables print it, with the factor of a loose bound and the size of the networks."""
        return self.verdict + ("" if self.loose is None else f" by x{significant(self.loose)}") + at_size(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as a dictionary for JSON, with the tested part, the setting and the note as text."""
        texts = {name: str(getattr(self, name)) for name in ("part", "claimed", "setting", "note")}
        return asdict(self) | texts | {"ranges": self.setting.ranges}

    @property
    def numbers(self) -> str:
        """The claimed, the predicted and the measured number as one line of text."""
        known, measured, low, high = map(number_or_dash, (self.predicted, self.measured, *self.interval))
        return f"claimed {self.claimed}, theory {known}, samples {measured} [{low}, {high}]"

    def lines(self) -> list[str]:
        """Return the lines that commands print for a verdict: the claim and verdict, its numbers, and a note."""
        noted = self.verdict in ("undecided", "premise fails") or self.subject.kind == "comparison"
        return [f"{self.claim:4} {self.part}: {self.words}", self.numbers, *([str(self.note)] if noted else [])]


_OF_TEXT: dict[str, Callable[[str], object]] = {
    "subject": lambda text: Subject(quantity=text),
    "claimed": lambda text: Sentence(text.replace("{", "{{").replace("}", "}}")),
    "note": lambda text: Sentence(text.replace("{", "{{").replace("}", "}}")),
    "setting": lambda text: Setting(more=text),
}


def at_size(v: Verdict) -> str:
    """Return text such as " at d = 64" if the networks have another size than the claim's experiment; else ""."""
    return f" at {v.size}" if v.size else ""


def deciding(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that decides a claim, among the claim's verdicts on different parts and settings.

    It is the one with the first word in the order of `DECIDING`; of several loose bounds, the loosest.

    Args:
        verdicts: the verdicts on one claim, at least one.
    """
    return min(verdicts, key=lambda v: (DECIDING.index(v.verdict), -(v.loose or 0.0)))


def number_or_dash(value: float, digits: int = 4) -> str:
    """Format a number with a given number of significant digits; NaN becomes "-".

    >>> number_or_dash(0.12345), number_or_dash(float("nan"))
    ('0.1235', '-')
    """
    return "-" if value != value else f"{value:.{digits}g}"


def significant(value: float, digits: int = 3) -> str:
    """Format a number with a given number of significant digits, and where possible as 4780 instead of 4.78e+03."""
    return f"{float(f'{value:.{digits}g}'):g}"


def interval_of(value: "Estimate") -> tuple[float, float]:
    """Return the 95% interval of an estimated number, as a pair (low, high)."""
    low, high = value.interval()
    return float(low), float(high)


def by_key(cells: "Sequence[Samples]", key: "Callable[[Samples], Any]") -> "list[tuple[Any, list[Samples]]]":
    """Group samples by the value of a function, and return a list of pairs (value, samples)."""
    return [(value, list(group)) for value, group in groupby(sorted(cells, key=lambda s: repr(key(s))), key=key)]


def names(cells: "Sequence[Samples]") -> tuple[str, ...]:
    """Return the names of sampled networks, in the form that a verdict stores."""
    return tuple(s.cell.name for s in cells)


def sizes(*stacks: "Stack") -> tuple[tuple[str, int | str, int | str], ...]:
    """Return the range of each of the sizes d, L, n and V over several networks."""
    ranges: list[tuple[str, int | str, int | str]] = []
    for name, letter in {"width": "d", "depth": "L", "tokens": "n", "vocab": "V"}.items():
        values = sorted({getattr(stack, name) for stack in stacks})
        is_width = name == "vocab" and len(values) > 1 and all(stack.vocab == stack.width for stack in stacks)
        ranges.append((letter, "d", "d") if is_width else (letter, values[0], values[-1]))
    return tuple(ranges)


def setting(cells: "Sequence[Samples]") -> Setting:
    """Return the setting of a verdict from its samples: the ranges of the networks' sizes and numbers of draws."""
    draws = [s.draws for s in cells]
    return Setting(ranges=sizes(*(s.stack for s in cells)), draws=(min(draws), max(draws)))
