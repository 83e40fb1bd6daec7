"""What became of training runs, and how much worse one kind of run ends than another: comparisons paired by seeds.

A run is a row: its seed, the losses `first`, `final` and `unigram`, its outcome, and lists over measured updates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

TrainingRow = Mapping[str, Any]
Outcome = Literal["diverged", "stuck", "trained"]
Answer = Literal["worse", "not worse", "undecided"]

WORSE = 0.1
"""By how much, in nats a token, a validation loss has to be above the same seed's to be called worse."""

STUCK = 0.05
"""A loss that is not below the unigram loss by this share of it has learned no more than how frequent words are."""

_LEVEL = 0.95


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
    difference = _at_equal_rates if equal_rates else lambda run, other: end_of(run) - end_of(other)
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
