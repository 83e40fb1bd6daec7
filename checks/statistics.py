"""Estimates with their errors, exponents with intervals, and the rules by which a number agrees with another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]
Agreement = Literal["agrees", "undecided", "differs", "beyond"]
"""Measured against predicted; "beyond" where the large-width prediction is shown but not judged."""

MARGIN = 0.03
"""Equivalence margin of a mean, relative to its prediction."""

CHANCE = 4.0
FALSE_ALARM = 2 * float(stats.norm.sf(CHANCE))
"""Two-sided tail beyond 4 standard errors, 6.3e-5: how often one comparison differs by chance alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A mean over independent draws with its standard error; arrays hold one estimate per entry.

    Attributes:
        mean: the sample mean.
        sem: its standard error.
        draws: the number of draws behind it.
    """

    mean: Array
    sem: Array
    draws: int

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """The two-sided Student t interval of that level."""
        half = stats.t.ppf(0.5 + level / 2, self.draws - 1) * self.sem
        return self.mean - half, self.mean + half

    def root(self) -> "Estimate":
        """The estimate of √mean, with its error by the delta method."""
        root = np.sqrt(self.mean)
        return Estimate(root, self.sem / (2 * root), self.draws)


def estimate(values: ArrayLike) -> Estimate:
    """Mean over the first axis.

    Raises:
        ValueError: fewer than two draws, which have no standard error.
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        raise ValueError(f"draws must be at least 2 to give a standard error, got {len(values)}.")
    return Estimate(values.mean(0), stats.sem(values, axis=0), len(values))


def pooled(estimates: Sequence[Estimate], weights: ArrayLike) -> Estimate:
    """The weighted mean of independent scalar estimates of one number.

    The weights must not come from the same draws: inverse sample variances favour the cells whose scatter happened
    to be small, which biases skewed means and narrows the interval.
    """
    share = np.asarray(weights, dtype=float)
    share = share / share.sum()
    mean, sem = (np.array([getattr(e, name) for e in estimates], dtype=float) for name in ("mean", "sem"))
    return Estimate(share @ mean, np.sqrt(share**2 @ sem**2), sum(e.draws for e in estimates))


def log_contrast(values: ArrayLike, weights: ArrayLike) -> Estimate:
    """Σ_l w_l ln(mean of column l), for columns measured on the same draws; error by the delta method.

    The slope of a profile over layers is such a contrast: the layers of one draw are dependent, so a regression
    that takes them for independent points would misstate its error.
    """
    values, weights = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    mean = values.mean(0)
    influence = (values / mean - 1.0) @ weights
    return Estimate(np.asarray(weights @ np.log(mean)), np.asarray(stats.sem(influence)), len(values))


def slope_weights(x: ArrayLike) -> Array:
    """The weights w with Σ w_l y_l = slope of the least-squares line of y on x."""
    x = np.asarray(x, dtype=float)
    centred = x - x.mean()
    return centred / np.sum(centred**2)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """y = amplitude · x^exponent, fitted on log-log axes.

    Attributes:
        exponent: the slope.
        sem: its standard error.
    """

    exponent: float
    sem: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided normal interval of that level."""
        half = float(stats.norm.ppf(0.5 + level / 2)) * self.sem
        return self.exponent - half, self.exponent + half


def power_law(x: ArrayLike, y: ArrayLike, sem: ArrayLike) -> PowerLaw:
    """Weighted log-log fit to independent points with standard errors from some 30 draws or more each.

    A prediction over the same x, fitted with the same errors, has the exponent to compare with: over a finite
    range neither need be the limit.

    Raises:
        ValueError: fewer than two different x.
    """
    x, y, sem = (np.asarray(a, dtype=float) for a in (x, y, sem))
    if len(np.unique(x)) < 2:
        raise ValueError(f"x must have at least 2 different values to give an exponent, got {np.unique(x).tolist()}.")
    (exponent, _), covariance = np.polyfit(np.log(x), np.log(y), 1, w=y / sem, cov="unscaled")
    return PowerLaw(float(exponent), float(np.sqrt(covariance[0, 0])))


def chance_limit(sem: Array, draws: int, false_alarm: float = FALSE_ALARM) -> Array:
    """How far a mean strays from its expectation by chance in all but `false_alarm` of cases.

    Four standard errors with many draws, more with few: Student's t at the same tail.
    """
    return float(stats.t.isf(false_alarm / 2, draws - 1)) * sem


def agreement(measured: Estimate, predicted: ArrayLike, margin: float = MARGIN) -> NDArray[np.str_]:
    """Entry by entry, whether a measured mean equals a prediction up to a relative margin.

    "differs": farther than both the margin and `chance_limit`. "agrees": the 95% interval lies inside the margin.
    "undecided": neither, so more draws are needed to tell.
    """
    predicted = np.asarray(predicted, dtype=float)
    deviation = np.abs(measured.mean - predicted)
    allowed = margin * np.abs(predicted)
    low, high = measured.interval()
    inside = np.maximum(np.abs(low - predicted), np.abs(high - predicted)) <= allowed
    differs = deviation > np.maximum(allowed, chance_limit(measured.sem, measured.draws))
    return np.where(differs, "differs", np.where(inside, "agrees", "undecided"))


def agreement_word(measured: Estimate, predicted: float, margin: float = MARGIN) -> Agreement:
    """`agreement` of one estimate."""
    return cast(Agreement, agreement(measured, predicted, margin).item())


def scalar_agreement(measured: float, predicted: float, sem: float, margin: float) -> Agreement:
    """`agreement` of one number with a normal error and an absolute margin, for exponents and slopes."""
    deviation = abs(measured - predicted)
    if deviation > max(margin, CHANCE * sem):
        return "differs"
    return "agrees" if deviation + float(stats.norm.ppf(0.975)) * sem <= margin else "undecided"
