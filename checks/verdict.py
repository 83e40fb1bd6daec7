"""The verdict on one claim in one setting, and the words it may use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from checks.statistics import Agreement, Estimate
    from simulate import Samples

Word = Literal["holds", "holds, loose", "holds with a correction", "fails", "premise fails", "undecided"]

DECIDING: tuple[Word, ...] = (
    "fails", "holds with a correction", "holds, loose", "holds", "undecided", "premise fails",
)  # fmt: skip
"""The words in the order in which they decide: a claim has the first that any of its rows has."""

EXPONENT_MARGIN = 0.02
"""How far an exponent may lie from the predicted one over the same grid, and a predicted limit from the claim's."""


LOOSE = 2.0
"""A bound that is kept is "loose" where it is more than so many times what it bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one claim in one setting.

    Attributes:
        claim: id in `theory.CLAIMS`.
        part: which part of it, and where.
        verdict: a word; "holds, loose" goes with the factor in `loose`.
        claimed: the paper's number, as text.
        predicted: the number by large-width theory, NaN where it has none for such networks.
        measured: the number by samples.
        interval: its 95% interval, or its range where `note` says so.
        agreement: whether measured and predicted agree: "differs" fails the run, whatever the verdict on the paper.
        setting: the networks behind it.
        loose: bound over measured value, for bounds that are loose.
        note: what the numbers are.
        bootstrap: the 95% interval by resampling draws, beside the one by normal theory, for exponents.
        cells: the names of the cells behind it.
        relaxed: how its networks leave the paper's setting, "" if they do not.
        size: of its networks, as "d = 64", where the claim reports an experiment of another size; "" elsewhere.
    """

    claim: str
    part: str
    verdict: Word
    claimed: str
    predicted: float
    measured: float
    interval: tuple[float, float]
    agreement: "Agreement"
    setting: str
    loose: float | None = None
    note: str = ""
    bootstrap: tuple[float, float] | None = None
    cells: tuple[str, ...] = ()
    relaxed: str = ""
    size: str = ""

    @property
    def words(self) -> str:
        """The verdict with its factor and its size, as tables show it."""
        return self.verdict + ("" if self.loose is None else f" by x{significant(self.loose)}") + at_size(self)


def at_size(v: Verdict) -> str:
    """What is said behind a verdict's word where its networks have not the size of the claim's experiment."""
    return f" at {v.size}" if v.size else ""


def deciding(verdicts: Sequence[Verdict]) -> Verdict:
    """The row that decides a claim: of those with the first word of `DECIDING` the one that is loose by most."""
    return min(verdicts, key=lambda v: (DECIDING.index(v.verdict), -(v.loose or 0.0)))


def number_or_dash(value: float, digits: int = 4) -> str:
    """A number, or a dash where there is none.

    >>> number_or_dash(0.12345), number_or_dash(float("nan"))
    ('0.1235', '-')
    """
    return "-" if value != value else f"{value:.{digits}g}"


def significant(value: float, digits: int = 3) -> str:
    """A number to so many digits, without an exponent where it can be read without one: 4780, not 4.78e+03."""
    return f"{float(f'{value:.{digits}g}'):g}"


def interval_of(value: "Estimate") -> tuple[float, float]:
    """The 95% interval of a scalar estimate, as floats."""
    low, high = value.interval()
    return float(low), float(high)


def grouped(cells: "Sequence[Samples]", key: "Callable[[Samples], Any]") -> "list[tuple[Any, list[Samples]]]":
    """Cells by the value of a key, in a stable order."""
    ordered = sorted(cells, key=lambda s: repr(key(s)))
    return [(value, list(group)) for value, group in groupby(ordered, key=key)]


def names(cells: "Sequence[Samples]") -> tuple[str, ...]:
    """The cells' names, for `Verdict.cells`."""
    return tuple(s.cell.name for s in cells)


def setting(cells: "Sequence[Samples]") -> str:
    """The ranges of the cells' fields, in the paper's letters."""
    parts = []
    for name, letter in {"width": "d", "depth": "L", "tokens": "n", "vocab": "V"}.items():
        values = sorted({getattr(s.stack, name) for s in cells})
        if name == "vocab" and len(values) > 1 and all(s.stack.vocab == s.stack.width for s in cells):
            parts.append("V = d")
        else:
            parts.append(f"{letter} = {values[0]}" + (f"..{values[-1]}" if len(values) > 1 else ""))
    draws = sorted({s.draws for s in cells})
    return ", ".join(parts) + f", {draws[0]}" + (f"-{draws[-1]}" if len(draws) > 1 else "") + " draws a cell"
