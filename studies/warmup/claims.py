"""Verdicts on the paper's training experiments: W1 to W9, from a table of runs.

Every statement is judged at the rates that stand for the paper's, once for each reading of its schedule. Its premise
fails at a rate unless the runs that should have trained there, if the claim is true, did so in a majority of seeds; it
holds if it does at each of the other rates. Intervals are over seeds, 95%, by Student's t: a comparison whose mean is
at the margin is called true in 2.5% of cases, and false in as many. Rates that do not stand for the paper's have rows
of their own, which are no verdicts on the paper.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isclose

import numpy as np
from scipy import stats

from checks.verdict import Setting, Verdict
from studies.comparisons import (
    Comparison,
    TrainingRow,
    above_trained,
    compare,
    end_of,
    lead,
    mean_over_seeds,
    paired,
    trained_in,
)
from studies.measurements import ALMOST
from studies.warmup.grid import PaperRates
from studies.warmup.rows import ALL, How, Runs, rows, two_kinds, with_seeds

_ABOVE_TRAINED = "nats a token above 95% of the loss of word frequencies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one paired comparison decides.

    Attributes:
        claim: its id.
        runs: that are compared.
        others: with these, which should have trained: otherwise the premise fails.
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
        if not self.worse:
            return f"{alike}: {differ[0]} ends as low as {differ[1]}, within this project's margin"
        return f"{alike}: {differ[0]} worse than {differ[1]}" + (" at equal sums of rates" if self.equal_rates else "")


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


def judge(table: Sequence[TrainingRow], rates: PaperRates, setting: Setting, size: str = "") -> list[Verdict]:
    """Every statement that a table has two seeds of.

    Args:
        table: the runs.
        rates: which stand for the paper's.
        setting: the models and the text.
        size: of the models, where it is not the paper's.
    """
    verdicts: list[Verdict] = []
    for chosen, relaxed in _peaks(table, rates, "adam"):
        trains = partial(_compared, table, _PRE, _PRE_LONG, chosen, above_trained)
        verdicts += rows("W5", f"{_PRE}: trains", trains, False, setting, relaxed, unit=_ABOVE_TRAINED, margin=0.0)
    for statement in STATEMENTS:
        for chosen, relaxed in _peaks(table, rates, statement.runs.optimizer):
            how = partial(compare, equal_rates=statement.equal_rates)
            compared = partial(_compared, table, statement.runs, statement.others, chosen, how)
            verdicts += rows(statement.claim, str(statement), compared, statement.worse, setting, relaxed)
    verdicts += [*_short_warmup(table, rates, setting), *_fixed(table, rates, setting), *_faster(table, rates, setting)]
    verdicts += [*_gradients(table, rates, setting), *_spread(table, rates, setting)]
    return sorted((replace(v, size=size) for v in verdicts), key=lambda v: v.claim)


def _peaks(table: Sequence[TrainingRow], rates: PaperRates, optimizer: str) -> tuple[tuple[list[float], str], ...]:
    """An optimizer's rates that stand for the paper's, and the others, each with how they leave the paper's setting."""
    stand_for_paper = rates.scaled("sgd" if optimizer == "sgd" else "adam")
    peaks = sorted({run["peak"] for run in table if run["optimizer"] == optimizer and run["reading"] != "fixed"})
    scaled = [peak for peak in peaks if any(isclose(peak, rate) for rate in stand_for_paper)]
    return (scaled, ""), ([peak for peak in peaks if peak not in scaled], "the paper's number at another d")


def _compared(
    table: Sequence[TrainingRow], runs: Runs, others: Runs, peaks: Sequence[float], how: How, reading: str
) -> dict[str, Comparison]:
    return with_seeds({f"{peak:g}": two_kinds(table, runs, others, peak, peak, reading) for peak in peaks}, how)


def _short_warmup(table: Sequence[TrainingRow], rates: PaperRates, setting: Setting) -> Iterator[Verdict]:
    """W3: with the short warm-up the greater rate ends worse than the smaller one, and worse than with the long one."""
    short, long = Runs(placement="post", warmup="short"), _POST_LONG

    def by_rate(reading: str) -> dict[str, Comparison]:
        return with_seeds({f"{high:g}": two_kinds(table, short, short, high, low, reading) for low, high in rates.adam})

    def by_warmup(reading: str) -> dict[str, Comparison]:
        return with_seeds({f"{high:g}": two_kinds(table, short, long, high, high, reading) for _, high in rates.adam})

    yield from rows("W3", f"{short}, greater rate worse than half of it", by_rate, True, setting)
    yield from rows("W3", f"{short} worse than long warm-up at the greater rate", by_warmup, True, setting)


def _fixed(table: Sequence[TrainingRow], rates: PaperRates, setting: Setting) -> Iterator[Verdict]:
    """W4: a small fixed rate trains, and ends better than no warm-up at the smaller rate, worse than the long one."""

    def against(runs: Runs, *, reading: str, swapped: bool = False, how: How = compare) -> dict[str, Comparison]:
        pairs = {}
        for small, (low, _) in zip(rates.fixed, rates.adam, strict=True):
            two = two_kinds(table, _POST, runs, small, low, "fixed", reading)
            pairs[f"{small:g}"] = two[::-1] if swapped else two
        return with_seeds(pairs, how)

    part = "Post-LN, Adam, small fixed rate"
    trains = partial(against, _POST_LONG, how=above_trained)
    yield from rows("W4", f"{part}: trains", lambda r: trains(reading=r), False, setting, unit=_ABOVE_TRAINED,
                    margin=0.0, readings=("b",))  # fmt: skip
    better = partial(against, _POST, swapped=True)
    yield from rows("W4", f"{part}: no warm-up is worse", lambda r: better(reading=r), True, setting)
    worse = partial(against, _POST_LONG)
    yield from rows("W4", f"{part} worse than long warm-up", lambda r: worse(reading=r), True, setting, readings=("b",))


def _faster(table: Sequence[TrainingRow], rates: PaperRates, setting: Setting) -> Iterator[Verdict]:
    """W6: by how much Pre-LN is ahead, in logarithms of updates, where one of the two has trained.

    Neither is a control of the other: where Post-LN alone has trained, Pre-LN is behind, and the statement fails.
    """
    unit = "ln of how many times fewer updates Pre-LN takes to Post-LN's end (below 0: the reverse)"
    for pre, what in ((_PRE_LONG, "at equal schedules"), (_PRE, "without warm-up, Post-LN with a long one")):

        def ahead(reading: str, pre: Runs = pre) -> dict[str, Comparison]:
            both = partial(two_kinds, table, pre, _POST_LONG, reading=reading)
            pairs = {peak: paired(*both(peak, peak)) for peak in rates.scaled("adam")}
            return {
                f"{peak:g}": mean_over_seeds(
                    [lead(*pair) for pair in of_seeds], margin=0.0,
                    trained=max(trained_in(runs) for runs in zip(*of_seeds, strict=True)),
                )
                for peak, of_seeds in pairs.items() if len(of_seeds) > 1
            }  # fmt: skip

        readings = ("b",) if pre is _PRE_LONG else ("a", "b")  # which agree for the long warm-up
        yield from rows("W6", f"Pre-LN {what}", ahead, True, setting, unit=unit, margin=0.0, readings=readings)


def _gradients(table: Sequence[TrainingRow], rates: PaperRates, setting: Setting) -> Iterator[Verdict]:
    """W8: Post-LN's gradients behind the long warm-up, small beside those before it, and even over the layers.

    The runs themselves should have trained. That gradients are even is no statement of the paper's.
    """
    after, slopes = {}, {}
    for peak in rates.scaled("adam"):
        warmed = [run for run in _POST_LONG.of(table, peak, "b") if len(run["layers"]) > 1]
        runs, trained = [list(run["layers"].values()) for run in warmed], trained_in(warmed)
        if len(runs) > 1:
            after[f"{peak:g}"] = mean_over_seeds(
                [_mean_log(layers[0]) - _mean_log(layers[1]) for layers in runs], margin=0.0, trained=trained
            )
        if len(runs) > 1 and len(runs[0][1]["decoder W2"]) > 1:
            slopes[f"{peak:g}"] = mean_over_seeds(
                [abs(_slope(layers[1])) for layers in runs], margin=ALMOST, trained=trained
            )
    unit = "ln of the norms of W1 and W2 before the first update over those behind the warm-up, mean over layers"
    yield from rows("W8", "Post-LN, Adam, smaller behind the warm-up", lambda _: after, True, setting, unit=unit,
                    margin=0.0, readings=("b",))  # fmt: skip
    unit = "size of the slope over the decoder's layers of ln ‖dL/dW2‖ behind the warm-up"
    part = "a statement of this project: Post-LN, Adam, gradients even over the layers behind the warm-up"
    yield from rows("W8", part, lambda _: slopes, False, setting, unit=unit, margin=round(ALMOST, 4), readings=("b",))


def _mean_log(layers: dict[str, list[float]]) -> float:
    return float(np.mean([np.log(values) for name, values in layers.items() if not name.endswith("energy")]))


def _slope(layers: dict[str, list[float]]) -> float:
    norms = np.log(layers["decoder W2"])
    return float(stats.linregress(np.arange(len(norms)), norms).slope)


def _spread(table: Sequence[TrainingRow], rates: PaperRates, setting: Setting) -> Iterator[Verdict]:
    """W9: how far apart a seed's runs end over the rates, Post-LN's minus Pre-LN's.

    Over the rates at which one of the two has trained, of which there must be two; Pre-LN at one of them.
    """
    for warmup in ("no", "long"):

        def wider(reading: str, warmup: str = warmup) -> dict[str, Comparison]:
            runs = {
                (placement, peak): {
                    run["seed"]: run for run in Runs(placement=placement, warmup=warmup).of(table, peak, reading)
                }
                for placement in ("post", "pre") for peak in rates.scaled("adam")
            }  # fmt: skip
            seeds = sorted(set.intersection(*map(set, runs.values())))
            train = {peak for (_, peak), seeded in runs.items() if 2 * trained_in(list(seeded.values())) > len(seeded)}
            peaks = sorted(train) if len(train) > 1 else rates.scaled("adam")
            spreads = {
                placement: [np.ptp([end_of(runs[placement, peak][seed]) for peak in peaks]) for seed in seeds]
                for placement in ("post", "pre")
            }
            if len(seeds) < 2:
                return {}
            trained = [any(trained_in([runs["pre", peak][seed]]) for peak in peaks) for seed in seeds]
            differences = [float(post - pre) for post, pre in zip(spreads["post"], spreads["pre"], strict=True)]
            over = ALL if len(peaks) == len(rates.scaled("adam")) else ", ".join(f"{peak:g}" for peak in peaks)
            return {over: mean_over_seeds(differences, trained=sum(trained) if len(train) > 1 else 0)}

        part = f"Adam, {warmup} warm-up: final losses over the rates wider apart for Post-LN than for Pre-LN"
        yield from rows("W9", part, wider, True, setting, readings=("b",) if warmup == "long" else ("a", "b"))
