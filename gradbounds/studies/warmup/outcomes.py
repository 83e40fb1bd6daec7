"""What became of training runs, and how much worse one kind of run ends than another: comparisons paired by seeds.

A run is a row with the names of `Planned.described` and of `measured_row`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from simulate.translation.parallel_text import END, ParallelText

TrainingRow = Mapping[str, Any]
Outcome = Literal["diverged", "stuck", "trained"]
Answer = Literal["worse", "not worse", "undecided"]

WORSE = 0.1
"""By how much, in nats a token, a validation loss has to be above the same seed's to be called worse."""

STUCK = 0.05
"""A loss that is not below the unigram loss by this share of it has learned no more than how frequent words are."""

KEPT_MATRICES = ("W1", "W2")
"""The matrices whose gradients a row has, those of Fig. 3(a, b)."""

THREE_RATES = ("critical", "hessian", "break_even")
"""Of a step, lists of a row."""

_LEVEL = 0.95


def measured_row(table: pd.DataFrame, unigram: float, start: int) -> dict[str, Any]:
    """A finished run as a row of a table of runs.

    Args:
        table: what was measured, as `Trained.table` and with "loss" and "rate" of every update.
        unigram: loss of the training text's word frequencies on the validation text.
        start: the update at which the longest warm-up ends; layers are kept before the first update, at the first
            measured update that is not before `start`, and at the end.

    Returns:
        `first` and `final`, the validation losses before the first update and after the last (NaN where a loss was not
        finite); `unigram` and `outcome`; lists over the
        measured updates: `updates`, `validation`, `summed`, the sum of all rates so far; over measured steps: `steps`,
        and the step's `critical`, `hessian`, `break_even` rates beside its own `rates`; and `layers`, for each kept
        update lists over layers of gradient norms and hidden energies, as "decoder W2" and "encoder energy".

    Raises:
        ValueError: a number stands there twice.
    """
    twice = table[table.duplicated(["update", "part", "layer", "matrix", "statistic"])]
    if len(twice):
        which = f"the {twice['statistic'].iloc[0]} of update {twice['update'].iloc[0]}"
        raise ValueError(
            f"table must have every number once, but has {which} twice, as where another version of gradbounds "
            "continued the run; delete the run's file and run it again."
        )
    whole = table[table["layer"] == 0]
    series = {name: rows.set_index("update")["value"] for name, rows in whole.groupby("statistic")}
    validation, rates = series["validation loss"], series["rate"].cumsum()
    finite = bool(np.isfinite(series["loss"]).all())
    first, final = float(validation.iloc[0]), float(validation.iloc[-1]) if finite else float("nan")
    updates = [int(update) for update in validation.index]
    steps = series.get("break-even rate", pd.Series(dtype=float))
    kept = [0, *(u for u in updates if u >= start), updates[-1]]
    ends = {name: float(f"{value:.6g}") for name, value in (("first", first), ("final", final), ("unigram", unigram))}
    return {
        **ends, "outcome": outcome(first, final, unigram),
        "updates": updates, "validation": _short(validation), "summed": _short([0.0, *rates][u] for u in updates),
        "steps": [int(step) for step in steps.index], "rates": _short(series["rate"][steps.index]),
        **{name: _short(series.get(f"{name.replace('_', '-')} rate", ())) for name in THREE_RATES},
        "layers": {str(u): _layers(table[table["update"] == u]) for u in (kept[0], kept[1], kept[-1])},
    }  # fmt: skip


def _layers(table: pd.DataFrame) -> dict[str, list[float]]:
    kept = table[((table["statistic"] == "gradient norm") & table["matrix"].isin(KEPT_MATRICES)) |
                (table["statistic"] == "hidden energy")]  # fmt: skip
    return {
        f"{part} {matrix or 'energy'}": _short(rows.sort_values("layer")["value"])
        for (part, matrix), rows in kept.groupby(["part", "matrix"])
    }


def _short(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def unigram_loss(text: ParallelText, validation: ParallelText) -> float:
    """Cross-entropy, nats a token, of a validation text under the target frequencies of a training text.

    Every id that can be a label is counted once more than it occurs, so that the loss is finite.
    """
    counts = np.ones(text.vocab)
    counts[[0, END - 1]] = 0.0  # padding and the beginning are never labels
    for ids in text.targets:
        counts += np.bincount(ids[1:], minlength=text.vocab)
    logs = np.log(counts[np.concatenate([ids[1:] for ids in validation.targets])] / counts.sum())
    return float(-logs.mean())


def outcome(first: float, final: float, unigram: float) -> Outcome:
    """What became of a run, from its validation losses.

    Args:
        first: before the first update.
        final: after the last, NaN or infinite if a loss was.
        unigram: of word frequencies alone.
    """
    if not np.isfinite(final) or final > first:
        return "diverged"
    return "stuck" if final >= (1 - STUCK) * unigram else "trained"


def time_to(updates: Sequence[int], losses: Sequence[float], threshold: float) -> tuple[int, bool]:
    """When a run's validation loss is first at most a threshold.

    Returns:
        The update and True; or the last update measured and False for a run that never gets there (it is censored).
    """
    for update, loss in zip(updates, losses, strict=True):
        if loss <= threshold:
            return update, True
    return updates[-1], False


def median_time(times: ArrayLike, reached: ArrayLike) -> float:
    """The median of survival times by Kaplan and Meier; infinite where their curve does not come down to a half."""
    times, reached = np.asarray(times, dtype=float), np.asarray(reached, dtype=bool)
    surviving = stats.ecdf(stats.CensoredData(uncensored=times[reached], right=times[~reached])).sf
    behind = surviving.quantiles[surviving.probabilities <= 0.5 + 1e-12]
    return float(behind[0]) if len(behind) else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Whether runs end worse than the same seeds' others.

    Attributes:
        mean: of the differences over seeds, of final validation losses in nats a token if nothing else is said.
        interval: of the mean over seeds, 95%, by Student's t.
        seeds: compared.
        answer: "worse" if the interval is above `WORSE`, "not worse" if it is below.
        trained: how many seeds have trained, of the runs that should have if the claim is true.
    """

    mean: float
    interval: tuple[float, float]
    seeds: int
    answer: Answer
    trained: int

    @property
    def judges(self) -> bool:
        """Whether a majority of those runs has trained; where it has not, the answer says nothing of the claim."""
        return 2 * self.trained > self.seeds


def trained_in(runs: Sequence[TrainingRow]) -> int:
    """How many of some runs have trained, by their outcomes."""
    return sum(run["outcome"] == "trained" for run in runs)


def end_of(run: TrainingRow) -> float:
    """The final validation loss; of a run that is not finite, its loss before the first update.

    That is less than it deserves: a difference that is found so would be larger with any number above it.
    """
    return float(run["final"]) if np.isfinite(run["final"]) else float(run["first"])


def compare(runs: Sequence[TrainingRow], others: Sequence[TrainingRow], *, equal_rates: bool = False) -> Comparison:
    """Runs against others of the same seeds, at equally many updates.

    Args:
        runs: one for every seed.
        others: one for every seed; these should have trained, or there is nothing that the runs could be worse than.
        equal_rates: compare where both have the same sum of rates, which is the smaller of the two at the end.

    Raises:
        ValueError: a seed has two rows in one of them, or fewer than two seeds are in both.
    """
    pairs = paired(runs, others)
    difference = _at_equal_rates if equal_rates else _at_the_end
    return mean_over_seeds([difference(*pair) for pair in pairs], trained=trained_in([other for _, other in pairs]))


def above_trained(runs: Sequence[TrainingRow], others: Sequence[TrainingRow]) -> Comparison:
    """How far above the loss below which a run has trained some runs end; others of the same seeds should have trained.

    Raises:
        ValueError: as `compare`.
    """
    pairs = paired(runs, others)
    above = [end_of(run) - (1 - STUCK) * run["unigram"] for run, _ in pairs]
    return mean_over_seeds(above, margin=0.0, trained=trained_in([other for _, other in pairs]))


def paired(runs: Sequence[TrainingRow], others: Sequence[TrainingRow]) -> list[tuple[TrainingRow, TrainingRow]]:
    """Runs of the same seed.

    Raises:
        ValueError: a seed has two rows in one of them.
    """
    first, second = ({run["seed"]: run for run in group} for group in (runs, others))
    if len(first) < len(runs) or len(second) < len(others):
        raise ValueError("runs must have one row for every seed.")
    return [(first[seed], second[seed]) for seed in first if seed in second]


def _at_the_end(run: TrainingRow, other: TrainingRow) -> float:
    return end_of(run) - end_of(other)


def _at_equal_rates(run: TrainingRow, other: TrainingRow) -> float:
    """The difference of validation losses where both sums of rates are the smaller run's, between measurements."""
    least = min(run["summed"][-1], other["summed"][-1])
    ends = [
        float(np.interp(least, each["summed"], each["validation"])) if np.isfinite(each["final"]) else end_of(each)
        for each in (run, other)
    ]
    return ends[0] - ends[1]


def mean_over_seeds(differences: Sequence[float], *, trained: int, margin: float = WORSE) -> Comparison:
    """Their mean with its interval, and whether that is above a margin.

    Args:
        differences: one for every seed.
        trained: as `Comparison` has it.
        margin: of the answer.

    Raises:
        ValueError: there are fewer than two.
    """
    count = len(differences)
    if count < 2:
        raise ValueError(f"runs must have at least 2 seeds in common, got {count}.")
    mean = float(np.mean(differences))
    half = float(stats.t.ppf((1 + _LEVEL) / 2, count - 1) * np.std(differences, ddof=1) / np.sqrt(count))
    answer: Answer = "undecided"
    if mean - half > margin:
        answer = "worse"
    elif mean + half < margin:
        answer = "not worse"
    return Comparison(mean=mean, interval=(mean - half, mean + half), seeds=count, answer=answer, trained=trained)


def lead(run: TrainingRow, other: TrainingRow) -> float:
    """Logarithm of how many times fewer updates a run takes to the other's final loss; below 0 for the reverse.

    Where the one that ends lower comes to the end of the other for the first time, between measurements by a line.
    """
    ahead, behind, sign = (run, other, 1.0) if end_of(run) <= end_of(other) else (other, run, -1.0)
    losses = np.minimum.accumulate(np.where(np.isfinite(ahead["validation"]), ahead["validation"], np.inf))
    time = float(np.interp(-end_of(behind), -losses, ahead["updates"]))
    return sign * float(np.log(ahead["updates"][-1] / max(time, 1.0)))
