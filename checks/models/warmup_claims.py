"""Verdicts on the paper's training experiments: W1 to W9, from a table of runs.

Every statement is judged at the rates that stand for the paper's, once for each reading of its schedule, and holds if
it does at each of them. Intervals are over seeds, 95%, by Student's t: a comparison whose mean is at the margin is
called true in 2.5% of cases, and false in as many. Rates that do not stand for the paper's have rows of their own,
which are no verdicts on the paper.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose

import numpy as np
from scipy import stats

from checks.models.section34 import ALMOST
from checks.models.warmup import WORSE, Comparison, Run, compare, end_of, lead, mean_over_seeds, paired
from checks.verdict import Verdict, Word
from simulate.translation.grid import PaperRates
from theory.stack import TITLES

_NAMES = {"adam": "Adam", "radam": "RAdam", "sgd": "SGD", "adamw": "AdamW"}
ALL = "all"
"""What stands for the rate of a comparison over all of them."""
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

    def of(self, table: Sequence[Run], peak: float, reading: str) -> list[Run]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one paired comparison decides.

    Attributes:
        claim: its id.
        runs: that are compared.
        others: with these.
        worse: whether the statement is that the runs end worse by more than the margin, or that they do not.
        equal_rates: whether both are compared at the same sum of rates.
    """

    claim: str
    runs: Runs
    others: Runs
    worse: bool = True
    equal_rates: bool = False

    def __str__(self) -> str:
        """What both are, then in what they differ."""
        both = list(zip(self.runs.words, self.others.words, strict=True))
        alike = ", ".join(word for word, other in both if word == other)
        differ = [", ".join(pair[k] for pair in both if pair[0] != pair[1]) for k in (0, 1)]
        word = "worse" if self.worse else "not worse"
        return f"{alike}: {differ[0]} {word} than {differ[1]}" + (" at equal sums of rates" if self.equal_rates else "")


_POST, _POST_LONG = Runs(placement="post"), Runs(placement="post", warmup="long")
_PRE, _PRE_LONG = Runs(placement="pre"), Runs(placement="pre", warmup="long")
_SGD, _SGD_LONG = (Runs(placement="post", optimizer="sgd", warmup=warmup) for warmup in ("no", "long"))
_RADAM_POST, _RADAM_PRE = (Runs(placement=placement, optimizer="radam") for placement in ("post", "pre"))

STATEMENTS = (
    Statement(claim="W1", runs=_POST, others=_POST_LONG),
    Statement(claim="W1", runs=_POST, others=_POST_LONG, equal_rates=True),
    Statement(claim="W2", runs=_SGD, others=_SGD_LONG),
    Statement(claim="W2", runs=_SGD, others=_SGD_LONG, equal_rates=True),
    Statement(claim="W5", runs=_PRE, others=_PRE_LONG, worse=False),
    Statement(claim="W7", runs=_POST, others=_RADAM_POST),
    Statement(claim="W7", runs=_RADAM_POST, others=_POST_LONG, worse=False),
    Statement(claim="W7", runs=_RADAM_PRE, others=_PRE, worse=False),
    Statement(claim="W7", runs=_PRE, others=_RADAM_PRE, worse=False),
)


def judge(table: Sequence[Run], rates: PaperRates, setting: str) -> list[Verdict]:
    """Every statement that a table has two seeds of.

    Args:
        table: the runs.
        rates: which stand for the paper's.
        setting: the models and the text, in words.
    """
    verdicts: list[Verdict] = []
    for statement in STATEMENTS:
        stands_for_paper = rates.scaled("sgd" if statement.runs.optimizer == "sgd" else "adam")
        peaks = sorted({run["peak"] for run in table if run["optimizer"] == statement.runs.optimizer})
        scaled = [peak for peak in peaks if any(isclose(peak, rate) for rate in stands_for_paper)]
        for chosen, relaxed in (
            (scaled, ""),
            ([p for p in peaks if p not in scaled], "the paper's number at another d"),
        ):
            compared = partial(_compared, table, statement, chosen)
            verdicts += _rows(statement.claim, str(statement), compared, statement.worse, setting, relaxed)
    verdicts += [*_short_warmup(table, rates, setting), *_fixed(table, rates, setting), *_faster(table, rates, setting)]
    verdicts += [*_gradients(table, rates, setting), *_spread(table, rates, setting)]
    return sorted(verdicts, key=lambda v: v.claim)


def _compared(
    table: Sequence[Run], statement: Statement, peaks: Sequence[float], reading: str
) -> dict[str, Comparison]:
    pairs = {f"{peak:g}": _two(table, statement.runs, statement.others, peak, peak, reading) for peak in peaks}
    return _with_seeds(pairs, equal_rates=statement.equal_rates)


def _two(
    table: Sequence[Run], runs: Runs, others: Runs, peak: float, other_peak: float, reading: str, other: str = ""
) -> tuple[list[Run], list[Run]]:
    return runs.of(table, peak, reading), others.of(table, other_peak, other or reading)


def _rows(
    claim: str, part: str, compared: Callable[[str], dict[str, Comparison]], worse: bool, setting: str,
    relaxed: str = "", unit: str = "nats a token", margin: float = WORSE, readings: Sequence[str] = ("a", "b"),
) -> Iterator[Verdict]:  # fmt: skip
    """A verdict for each reading, from the comparisons at its rates: the one that is least favourable is shown."""
    for reading in readings:
        comparisons = compared(reading)
        if not comparisons:
            continue
        words: dict[str, Word] = {
            peak: "undecided"
            if pairs.answer == "undecided"
            else "holds"
            if (pairs.answer == "worse") == worse
            else "fails"
            for peak, pairs in comparisons.items()
        }
        word: Word = next(w for w in ("fails", "undecided", "holds") if w in words.values())
        # Of the rates with that word the one whose mean is farthest from the statement.
        peak = min(
            (p for p in comparisons if words[p] == word), key=lambda p: comparisons[p].mean * (1 if worse else -1)
        )
        shown = comparisons[peak]
        others = ", ".join(
            f"{comparison.mean:.3g} at {p} ({words[p]})" for p, comparison in comparisons.items() if p != peak
        )
        at = f", at the rate {peak}" if peak != ALL else ""
        yield Verdict(
            claim=claim, part=f"{part}, {_READINGS[reading]}", verdict=word,
            claimed=f"above {margin:g}" if worse else f"at most {margin:g}", predicted=float("nan"),
            measured=shown.mean, interval=shown.interval, agreement="undecided", setting=setting,
            note=f"{unit}{at}" + (f"; {others}" if others else ""), relaxed=relaxed,
        )  # fmt: skip


def _short_warmup(table: Sequence[Run], rates: PaperRates, setting: str) -> Iterator[Verdict]:
    """W3: with the short warm-up the greater rate ends worse than the smaller one, and worse than with the long one."""
    short, long = Runs(placement="post", warmup="short"), _POST_LONG

    def by_rate(reading: str) -> dict[str, Comparison]:
        pairs = {f"{high:g}": _two(table, short, short, high, low, reading) for low, high in rates.adam}
        return _with_seeds(pairs)

    def by_warmup(reading: str) -> dict[str, Comparison]:
        return _with_seeds({f"{high:g}": _two(table, short, long, high, high, reading) for _, high in rates.adam})

    yield from _rows("W3", f"{short}, greater rate worse than half of it", by_rate, True, setting)
    yield from _rows("W3", f"{short} worse than long warm-up at the greater rate", by_warmup, True, setting)


def _with_seeds(
    pairs: Mapping[str, tuple[list[Run], list[Run]]], *, equal_rates: bool = False
) -> dict[str, Comparison]:
    """Of the pairs that two seeds have."""
    return {peak: compare(*two, equal_rates=equal_rates) for peak, two in pairs.items() if len(paired(*two)) > 1}


def _fixed(table: Sequence[Run], rates: PaperRates, setting: str) -> Iterator[Verdict]:
    """W4: a small fixed rate ends better than no warm-up at the paper's smaller rate, and worse than the long one."""

    def against(runs: Runs, *, swapped: bool, reading: str) -> dict[str, Comparison]:
        pairs = {}
        for small, (low, _) in zip(rates.fixed, rates.adam, strict=True):
            two = _two(table, _POST, runs, small, low, "fixed", reading)
            pairs[f"{small:g}"] = two[::-1] if swapped else two
        return _with_seeds(pairs)

    part = "Post-LN, Adam, small fixed rate"
    better = partial(against, _POST, swapped=True)
    yield from _rows("W4", f"{part}: no warm-up is worse", lambda r: better(reading=r), True, setting)
    worse = partial(against, _POST_LONG, swapped=False)
    yield from _rows(
        "W4", f"{part} worse than long warm-up", lambda r: worse(reading=r), True, setting, readings=("b",)
    )


def _faster(table: Sequence[Run], rates: PaperRates, setting: str) -> Iterator[Verdict]:
    """W6: by how much Pre-LN is ahead, in logarithms of updates."""
    unit = "ln of how many times fewer updates Pre-LN takes to Post-LN's end (below 0: the reverse)"
    for pre, what in ((_PRE_LONG, "at equal schedules"), (_PRE, "without warm-up, Post-LN with a long one")):

        def ahead(reading: str, pre: Runs = pre) -> dict[str, Comparison]:
            pairs = {peak: paired(*_two(table, pre, _POST_LONG, peak, peak, reading)) for peak in rates.scaled("adam")}
            return {
                f"{peak:g}": mean_over_seeds([lead(*pair) for pair in of_seeds], margin=0.0)
                for peak, of_seeds in pairs.items() if len(of_seeds) > 1
            }  # fmt: skip

        readings = ("b",) if pre is _PRE_LONG else ("a", "b")  # which agree for the long warm-up
        yield from _rows("W6", f"Pre-LN {what}", ahead, True, setting, unit=unit, margin=0.0, readings=readings)


def _gradients(table: Sequence[Run], rates: PaperRates, setting: str) -> Iterator[Verdict]:
    """W8: Post-LN's gradients behind the long warm-up, small beside those before it, and even over the layers."""
    after, slopes = {}, {}
    for peak in rates.scaled("adam"):
        trained = _POST_LONG.of(table, peak, "b")
        runs = [layers for run in trained if len(layers := list(run["layers"].values())) > 1]
        if len(runs) > 1:
            after[f"{peak:g}"] = mean_over_seeds(
                [_mean_log(layers[0]) - _mean_log(layers[1]) for layers in runs], margin=0.0
            )
        if len(runs) > 1 and len(runs[0][1]["decoder W2"]) > 1:
            slopes[f"{peak:g}"] = mean_over_seeds([abs(_slope(layers[1])) for layers in runs], margin=ALMOST)
    unit = "ln of the norms of W1 and W2 before the first update over those behind the warm-up, mean over layers"
    yield from _rows("W8", "Post-LN, Adam, smaller behind the warm-up", lambda _: after, True, setting, unit=unit,
                     margin=0.0, readings=("b",))  # fmt: skip
    unit = "size of the slope over the decoder's layers of ln ‖dL/dW2‖ behind the warm-up"
    yield from _rows("W8", "Post-LN, Adam, even over the layers behind the warm-up", lambda _: slopes, False, setting,
                     unit=unit, margin=round(ALMOST, 4), readings=("b",))  # fmt: skip


def _mean_log(layers: dict[str, list[float]]) -> float:
    return float(np.mean([np.log(values) for name, values in layers.items() if not name.endswith("energy")]))


def _slope(layers: dict[str, list[float]]) -> float:
    norms = np.log(layers["decoder W2"])
    return float(stats.linregress(np.arange(len(norms)), norms).slope)


def _spread(table: Sequence[Run], rates: PaperRates, setting: str) -> Iterator[Verdict]:
    """W9: how far apart a seed's runs end over the rates, Post-LN's minus Pre-LN's."""
    for warmup in ("no", "long"):

        def wider(reading: str, warmup: str = warmup) -> dict[str, Comparison]:
            spreads = []
            for placement in ("post", "pre"):
                ends: dict[int, list[float]] = {}
                for peak in rates.scaled("adam"):
                    for run in Runs(placement=placement, warmup=warmup).of(table, peak, reading):
                        ends.setdefault(run["seed"], []).append(end_of(run))
                every = len(rates.scaled("adam"))
                spreads.append({seed: float(np.ptp(finals)) for seed, finals in ends.items() if len(finals) == every})
            both = sorted(set(spreads[0]) & set(spreads[1]))
            differences = [spreads[0][seed] - spreads[1][seed] for seed in both]
            return {ALL: mean_over_seeds(differences)} if len(both) > 1 else {}

        part = f"Adam, {warmup} warm-up: final losses over the rates wider apart for Post-LN than for Pre-LN"
        yield from _rows("W9", part, wider, True, setting, readings=("b",) if warmup == "long" else ("a", "b"))
