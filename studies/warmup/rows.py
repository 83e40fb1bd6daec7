"""Which runs are compared, and a verdict for each reading from their comparisons at several rates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from checks.verdict import Setting, Subject, Verdict, Word, sentence
from studies.comparisons import WORSE, Comparison, TrainingRow, compare, paired
from theory.stack import TITLES

How = Callable[[Sequence[TrainingRow], Sequence[TrainingRow]], Comparison]
"""What compares runs with others, as `compare` does."""

ALL = "all"
"""What stands for the rate of a comparison over all of them."""

_NAMES = {"adam": "Adam", "radam": "RAdam", "sgd": "SGD", "adamw": "AdamW"}
_READINGS = {"a": "reading (a)", "b": "reading (b)", "fixed": "a fixed rate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Which runs of one rate and reading.

    Attributes:
        placement: of LayerNorm.
        optimizer: its name.
        warmup: "no", "short" or "long": 1, the second shortest, or the longest that the table has.
    """

    placement: str
    optimizer: str = "adam"
    warmup: str = "no"

    def of(self, table: Sequence[TrainingRow], peak: float, reading: str) -> list[TrainingRow]:
        """One run for each seed; of both readings those in which these agree."""
        lengths = sorted({run["warmup"] for run in table})
        length = {"no": 1, "short": lengths[min(1, len(lengths) - 1)], "long": lengths[-1]}[self.warmup]
        wanted = self.placement, self.optimizer, length
        readings = {"fixed"} if reading == "fixed" else {reading, "both"}
        return [
            run for run in table
            if (run["placement"], run["optimizer"], run["warmup"]) == wanted
            and run["reading"] in readings and isclose(run["peak"], peak)
        ]  # fmt: skip

    @property
    def words(self) -> tuple[str, str, str]:
        """Placement, optimizer and warm-up, as a reader knows them."""
        return TITLES[self.placement], _NAMES[self.optimizer], f"{self.warmup} warm-up"

    def __str__(self) -> str:
        return ", ".join(self.words)


def two_kinds(
    table: Sequence[TrainingRow], runs: Runs, others: Runs, peak: float, other_peak: float, reading: str,
    other: str = "",
) -> tuple[list[TrainingRow], list[TrainingRow]]:  # fmt: skip
    """Two kinds of run, each at its rate; the others in another reading, if it is given."""
    return runs.of(table, peak, reading), others.of(table, other_peak, other or reading)


def with_seeds(
    pairs: Mapping[str, tuple[list[TrainingRow], list[TrainingRow]]], how: How = compare
) -> dict[str, Comparison]:
    """Of the pairs that two seeds have."""
    return {peak: how(*two) for peak, two in pairs.items() if len(paired(*two)) > 1}


def rows(
    claim: str, part: str, compared: Callable[[str], dict[str, Comparison]], worse: bool, setting: Setting,
    relaxed: str = "", unit: str = "nats a token", margin: float = WORSE, readings: Sequence[str] = ("a", "b"),
) -> Iterator[Verdict]:  # fmt: skip
    """A verdict for each reading, from the comparisons at its rates: the one that is least favourable is shown.

    Of those that judge; where none does the premise fails, and one of them is shown with how many seeds have trained.
    """
    for reading in readings:
        comparisons = compared(reading)
        if not comparisons:
            continue
        words: dict[str, Word] = {
            peak: "premise fails"
            if not pairs.judges
            else "undecided"
            if pairs.answer == "undecided"
            else "holds"
            if (pairs.answer == "worse") == worse
            else "fails"
            for peak, pairs in comparisons.items()
        }
        word: Word = next(w for w in ("fails", "undecided", "holds", "premise fails") if w in words.values())
        # Of the rates with that word the one whose mean is farthest from the statement.
        peak = min(
            (p for p in comparisons if words[p] == word), key=lambda p: comparisons[p].mean * (1 if worse else -1)
        )
        shown = comparisons[peak]
        note = sentence(unit)
        if peak != ALL:
            note += sentence(", at the rate{} {}", "s" * ("," in peak), peak)
        if not shown.judges:
            note += sentence(", where {} of {} runs that should have trained did", shown.trained, shown.seeds)
        others = {p: comparison.mean for p, comparison in comparisons.items() if p != peak}
        if others:
            told = ", ".join(f"{{:.3g}} at {{}} ({words[p]})" for p in others)
            values: list[float | str] = [value for p, mean in others.items() for value in (mean, p)]
            note += sentence(f"; {told}", *values)
        yield Verdict(
            claim=claim,
            subject=Subject(quantity=f"{part}, {_READINGS[reading]}", kind="comparison"),
            verdict=word,
            claimed=sentence("above {:g}" if worse else "at most {:g}", margin),
            predicted=float("nan"),
            measured=shown.mean,
            interval=shown.interval,
            agreement="undecided",
            setting=setting,
            note=note,
            relaxed=relaxed,
        )
