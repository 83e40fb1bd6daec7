"""Estimates with standard errors, and the tests of whether a measured number agrees with a prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import scipy  # whose parts are loaded when they are asked for: its stats take a second
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

Array = NDArray[np.float64]
Agreement = Literal["agrees", "undecided", "differs", "beyond"]
"""The agreement of a measured with a predicted number; "beyond" means that the prediction is shown but not judged."""


def agreement_text(word: str) -> str:
    """Return the printed word for the result of a comparison: "not judged" for the stored word "beyond".

    >>> agreement_text("beyond"), agreement_text("agrees")
    ('not judged', 'agrees')
    """
    return "not judged" if word == "beyond" else word


MARGIN = 0.03
"""The equivalence margin of a mean, relative to its prediction."""

EQUIVALENT = 0.025
"""The largest p-value of `equivalence` at which two numbers agree: the 95% interval is inside the margin."""

CHANCE = 4.0
FALSE_ALARM = 2 * float(ndtr(-CHANCE))
"""The two-sided tail beyond 4 standard errors, 6.3e-5: the probability that normal draws differ by chance in one test.

Means of skewed draws differ more often, nearly always on the low side. For log-normal draws with log-variance 0.05, the
probability is 1e-4 with 128 draws and 2e-4 with 16; with log-variance 0.2, it is 3e-4 and 9e-4; with log-variance 1, it
is 4e-3 and 1.4e-2. The squares that are judged in the default run have log-variances up to 0.15 at 128 draws, and
thus at most 2.5e-4.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A mean over independent draws, with its standard error; an array contains one mean per entry.

    Attributes:
        mean: the sample mean.
        sem: the standard error of the mean.
        draws: the number of independent draws.
    """

    mean: Array
    sem: Array
    draws: int

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return the two-sided Student t interval of the mean, (low, high), at a given confidence level."""
        half = stdtrit(self.draws - 1, 0.5 + level / 2) * self.sem
        return self.mean - half, self.mean + half

    def root(self) -> "Estimate":
        """Return the square root of the mean as an estimate, with its standard error by the delta method.

        If all draws are 0, both are 0.
        """
        root = np.sqrt(self.mean)
        sem = np.divide(self.sem, 2 * root, out=np.zeros_like(root), where=root != 0)[()]
        return Estimate(root, sem, self.draws)


def estimate(values: ArrayLike) -> Estimate:
    """Return the mean of independent draws and its standard error, for each entry of an array.

    Args:
        values: (draws, ...), the draws along the first axis: the values of a quantity in `Samples`, or any numbers in
            one unit.

    Returns:
        Mean and standard error s/√draws, each of shape (...) and in the unit of the values. The variance s² has draws −
        1 in its denominator. A NaN in an entry makes both NaN there.

    Raises:
        ValueError: fewer than two draws, which have no standard error.

    Assumes that draws are independent and have a variance; `Estimate.interval` also that their mean is nearly normal.

    >>> found = estimate([[1.0, 2.0], [3.0, 6.0]])  # two draws of two layers
    >>> found.mean.tolist(), found.sem.tolist()
    ([2.0, 4.0], [1.0, 2.0])
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        raise ValueError(f"draws must be at least 2 to give a standard error, got {len(values)}.")
    return Estimate(values.mean(0), standard_error(values), len(values))


def standard_error(values: ArrayLike) -> Array:
    """Return the standard error of the mean over the first axis, twenty times faster than `scipy.stats.sem`."""
    values = np.asarray(values, dtype=float)
    return np.asarray(np.std(values, axis=0, ddof=1) / len(values) ** 0.5)


def pooled(estimates: Sequence[Estimate], weights: ArrayLike) -> Estimate:
    """Return the weighted mean of several independent estimates of one number.

    The weights must not come from the same draws: inverse sample variances favour the configurations whose scatter is
    small by chance, which biases skewed means and narrows the interval.
    """
    share = np.asarray(weights, dtype=float)
    share = share / share.sum()
    mean, sem = (np.array([getattr(e, name) for e in estimates], dtype=float) for name in ("mean", "sem"))
    return Estimate(share @ mean, np.sqrt(share**2 @ sem**2), sum(e.draws for e in estimates))


def log_variance(values: ArrayLike) -> Array:
    """Return the variance of ln(values) over draws, the first axis; NaN where a value is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.var(np.log(np.asarray(values, dtype=float)), axis=0, ddof=1))


def chance_limit(sem: Array, draws: int, false_alarm: float = FALSE_ALARM) -> Array:
    """Return how far a mean may differ from its expectation by chance, at a given probability of a false alarm.

    With many draws it is 4 standard errors; with few draws it is larger, by Student's t at the same tail probability.
    """
    return -float(stdtrit(draws - 1, false_alarm / 2)) * sem


def equivalence(measured: Estimate, predicted: ArrayLike, margin: float = MARGIN) -> Array:
    """Return the p-value of an equivalence test; a small value shows that a mean is within a margin of its prediction.

    The margin is a share of the prediction. The p-value is the larger of two one-sided t tests. A small value shows
    that mean and prediction are equal up to the margin; a test for a difference cannot show that. Below 0.025, the 95%
    interval lies inside the margin.
    """
    predicted = np.asarray(predicted, dtype=float)
    allowed = margin * np.abs(predicted)
    with np.errstate(divide="ignore", invalid="ignore"):  # draws that are all equal have no error
        below = (measured.mean - predicted + allowed) / measured.sem
        above = (measured.mean - predicted - allowed) / measured.sem
    freedom = measured.draws - 1
    return np.asarray(np.maximum(stdtr(freedom, -below), stdtr(freedom, above)))


def agreement(measured: Estimate, predicted: ArrayLike, margin: float = MARGIN) -> NDArray[np.str_]:
    """Decide for each entry whether a measured mean equals its prediction up to a relative margin.

    "differs": the distance exceeds both the margin and `chance_limit`. "agrees": the p-value of `equivalence` is below
    0.025. "undecided": neither, so more draws are needed.
    """
    predicted = np.asarray(predicted, dtype=float)
    deviation = np.abs(measured.mean - predicted)
    differs = deviation > np.maximum(margin * np.abs(predicted), chance_limit(measured.sem, measured.draws))
    equal = equivalence(measured, predicted, margin) < EQUIVALENT
    return np.where(differs, "differs", np.where(equal, "agrees", "undecided"))


def agreement_word(measured: Estimate, predicted: float, margin: float = MARGIN) -> Agreement:
    """Decide whether one measured mean equals its prediction up to a relative margin."""
    return cast(Agreement, agreement(measured, predicted, margin).item())


def scalar_agreement(measured: float, predicted: float, sem: float, margin: float) -> Agreement:
    """Decide whether a measured exponent or slope equals its prediction up to an absolute margin."""
    deviation = abs(measured - predicted)
    if deviation > max(margin, CHANCE * sem):
        return "differs"
    return "agrees" if deviation + float(ndtri(0.975)) * sem <= margin else "undecided"


def share(events: NDArray[np.bool_]) -> tuple[float, tuple[float, float]]:
    """Return the share of events that are true, with its exact 95% interval (Clopper-Pearson)."""
    interval = scipy.stats.binomtest(int(events.sum()), events.size).proportion_ci(0.95)
    return float(events.mean()), (float(interval.low), float(interval.high))


def exceeds(events: NDArray[np.bool_], limit: float) -> bool:
    """Test whether events are significantly more frequent than a given limit."""
    return bool(scipy.stats.binomtest(int(events.sum()), events.size, min(limit, 1.0), "greater").pvalue < FALSE_ALARM)
