"""Fits of exponents: weighted fits on log-log axes with intervals, local slopes, and tests for a logarithmic factor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from checks.statistics import Array, Estimate, standard_error

Model = Literal["x^a", "x^a sqrt(ln x)", "undecided", "neither"]

LEAST_POINTS = 3
"""The smallest number of different x for which an exponent is fitted; fewer give a slope that nothing checks."""

MODEL_FALSE_ALARM = 0.01
"""The probability with which `model_choice` rejects a law that is true."""


def log_contrast(values: ArrayLike, weights: ArrayLike) -> Estimate:
    """Return a weighted sum of logarithms of means, Σ_l w_l ln(mean of column l), with its standard error.

    All columns are measured on the same draws. The error uses the delta method. The slope of a profile over layers is
    such a contrast. A regression would treat the layers of one draw as independent points, and would misstate the
    error.

    Args:
        values: (draws, columns), positive.
        weights: (columns,), the weights w_l.
    """
    values, weights = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    mean = values.mean(0)
    influence = (values / mean - 1.0) @ weights
    return Estimate(np.asarray(weights @ np.log(mean)), standard_error(influence), len(values))


def slope_weights(x: ArrayLike) -> Array:
    """Return the weights w with which Σ_l w_l y_l is the slope of the least-squares line through the points."""
    x = np.asarray(x, dtype=float)
    centred = x - x.mean()
    return centred / np.sum(centred**2)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A power law y = amplitude · x^exponent, fitted on log-log axes.

    Attributes:
        exponent: the slope of ln y on ln x.
        sem: the standard error of the exponent.
        weights: one weight per point, such that exponent = weights @ ln y.
    """

    exponent: float
    sem: float
    weights: tuple[float, ...]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the two-sided normal interval of the exponent, (low, high), at a confidence level."""
        half = float(ndtri(0.5 + level / 2)) * self.sem
        return self.exponent - half, self.exponent + half


def power_law(x: ArrayLike, y: ArrayLike, sem: ArrayLike) -> PowerLaw:
    """Fit the exponent a of y = c x^a by least squares of ln y against ln x, with weights (y / standard error)².

    Compare the exponent with that of a prediction over the same x, fitted with the same errors. Over a finite range
    neither has to equal the asymptotic exponent.

    Args:
        x: (points,), above 0, such as widths.
        y: (points,), above 0, measured at each x: for example root mean squares of norms, not mean squares.
        sem: (points,), above 0, the standard error of each y, in the unit of y.

    Returns:
        The exponent, which has no unit, and its standard error, computed from `sem`; the scatter about the line is not
        used.

    Raises:
        ValueError: fewer than two different x.

    Assumes points from independent draws, about 30 or more at each x, so that ln y is nearly normal with standard error
    sem/y (the delta method); `pooled_exponent` is for fewer.

    >>> widths = [64, 128, 256]
    >>> fit = power_law(widths, [2 * d**0.5 for d in widths], sem=[0.1, 0.1, 0.1])
    >>> print(f"{fit.exponent:.3f} +- {fit.sem:.3f}")
    0.500 +- 0.005
    """
    x, y, sem = (np.asarray(a, dtype=float) for a in (x, y, sem))
    if len(np.unique(x)) < 2:
        raise ValueError(f"x must have at least 2 different values to give an exponent, got {np.unique(x).tolist()}.")
    # A fit is linear in ln y: fitting unit vectors gives its weights, and these the exponent and its error.
    weights = np.polyfit(np.log(x), np.eye(len(x)), 1, w=y / sem)[0]
    return PowerLaw(float(weights @ np.log(y)), float(np.linalg.norm(weights * sem / y)), tuple(weights.tolist()))


def pooled_exponent(x: ArrayLike, y: ArrayLike, counts: Array, variances: Array) -> tuple[float, float, float] | None:
    """Fit an exponent and its 95% interval to points with few draws, assuming the same variance of ln y at all points.

    A variance estimated from few draws is imprecise. The variance of ln y is therefore pooled over the points, and the
    interval is Student's t.

    Args:
        x: (points,), with at least `LEAST_POINTS` different values, such as widths.
        y: (points,), the value at each point, computed from its draws.
        counts: (points,), the number of draws at each point.
        variances: (points,), the variance of ln y over the draws of each point.

    Returns:
        Exponent, lower end and upper end; None with fewer than `LEAST_POINTS` points or with a single draw at a point.
    """
    if len(counts) < LEAST_POINTS or counts.min() < 2:
        return None
    weights, _ = pooled_weights(x, counts)
    exponent, half = (float(of) for of in pooled_contrast(weights, np.log(y), counts, variances))
    return exponent, exponent - half, exponent + half


def pooled_weights(x: ArrayLike, counts: Array) -> tuple[Array, Array]:
    """Return the weights of ln y in the slope of a log-log fit, and in its last minus its first local slope.

    Each point counts in proportion to its number of draws.

    Args:
        x: (points,), three or more, increasing.
        counts: (points,), the number of draws at each point.

    Returns:
        Two arrays of weights, (points,) each.
    """
    log = np.log(np.asarray(x, dtype=float))
    # A fit is linear in ln y: fitting unit vectors gives its weights.
    fitted = np.polyfit(log, np.eye(len(log)), 1, w=np.sqrt(counts))[0]
    ends = np.zeros(len(log))
    ends[[0, 1]] += np.array([1.0, -1.0]) / (log[1] - log[0])
    ends[[-2, -1]] += np.array([-1.0, 1.0]) / (log[-1] - log[-2])
    return fitted, ends


def pooled_contrast(weights: Array, logs: ArrayLike, counts: Array, variances: ArrayLike) -> tuple[Array, Array]:
    """Return weighted sums Σ_l w_l ln y_l, each with the half-width of its 95% interval.

    The variance of ln y is averaged over the points.

    Args:
        weights: (points,), the weights w_l.
        logs: (..., points), means of ln y over draws.
        counts: (points,), the number of draws at each point, two or more.
        variances: (..., points), variances of ln y over draws.

    Returns:
        Sums and half-widths, (...) each: one for each row of `logs`.
    """
    freedom = int((counts - 1).sum())
    pooled = np.maximum((np.asarray(variances) * (counts - 1)).sum(-1) / freedom, 1e-12)
    half = float(stdtrit(freedom, 0.975)) * np.sqrt(pooled * (weights**2 / counts).sum())
    return np.asarray(logs) @ weights, half


def bootstrap_interval(
    fit: PowerLaw, squares: Sequence[ArrayLike], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return a confidence interval of a fitted exponent by resampling the draws of every point (bootstrap).

    Args:
        fit: the fit of root mean squares, whose weights are used.
        squares: the squared norms of the draws, one array per point, in the order of the fit.
        level: the level of the two-sided interval.
        resamples: the number of bootstrap resamples.
        seed: random seed of the resampling.
    """
    weights = 0.5 * np.array(fit.weights)  # ln of a root mean square is half of ln of the mean

    def exponent(*draws: Array, axis: int = -1) -> Array:
        return np.tensordot(weights, np.log([d.mean(axis) for d in draws]), 1)

    interval = scipy.stats.bootstrap(
        [np.asarray(s, dtype=float) for s in squares],
        exponent,
        n_resamples=resamples,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        batch=200,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def local_exponents(x: ArrayLike, y: ArrayLike, sem: ArrayLike) -> tuple[Array, Array, Array]:
    """Return the slope between each pair of neighbouring points on log-log axes.

    Neighbouring slopes share a point, so their errors are dependent: a high slope is followed by a low one.

    Args:
        x: (points,), increasing.
        y: (points,), positive.
        sem: (points,), the standard errors of y.

    Returns:
        The geometric means of neighbouring x, the slopes, and their standard errors; (points - 1,) each.

    Raises:
        ValueError: x is not increasing.
    """
    x, y, sem = (np.asarray(a, dtype=float) for a in (x, y, sem))
    step = np.diff(np.log(x))
    if len(x) < 2 or not (step > 0).all():
        raise ValueError(f"x must be at least 2 increasing values to give local exponents, got {x.tolist()}.")
    relative = sem / y
    return np.sqrt(x[1:] * x[:-1]), np.diff(np.log(y)) / step, np.hypot(relative[1:], relative[:-1]) / step


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The result of choosing between the growth laws y ~ x^a and y ~ x^a √(ln x), where a is fitted in both.

    Attributes:
        model: the law that remains when the other is rejected; "undecided" if neither is rejected, "neither" if both
            are.
        log_power: the fitted b of x^a (ln x)^b, which contains both laws: 0 for x^a, 1/2 for x^a √(ln x).
        sem: the standard error of `log_power`.
    """

    model: Model
    log_power: float
    sem: float


def model_choice(x: ArrayLike, y: ArrayLike, sem: ArrayLike, false_alarm: float = MODEL_FALSE_ALARM) -> ModelChoice:
    """Choose between the growth laws y ~ x^a and y ~ x^a √(ln x), by fitting b in x^a (ln x)^b and testing 0 and 1/2.

    If x spans only a factor of 2 to 4, ln ln x is almost linear in ln x, and b has an error above 1. The result is then
    "undecided". Each law is rejected with probability `false_alarm` when it is true.

    Args:
        x: (points,), above 1, with at least three different values.
        y: (points,), positive and independent.
        sem: (points,), the standard errors of y.
        false_alarm: the probability with which a true law is rejected.

    Raises:
        ValueError: fewer than three different x, or an x that is not above 1.
    """
    x, y, sem = (np.asarray(a, dtype=float) for a in (x, y, sem))
    if len(np.unique(x)) < LEAST_POINTS or x.min() <= 1:
        raise ValueError(
            f"x must have at least {LEAST_POINTS} different values above 1 to choose a model, got {x.tolist()}."
        )
    log = np.log(x) - np.log(x).mean()

    def curve(_: Array, constant: float, a: float, b: float) -> Array:
        return constant + a * log + b * np.log(np.log(x))

    parameters, covariance = scipy.optimize.curve_fit(
        curve, x, np.log(y), p0=(0.0, 0.0, 0.0), sigma=sem / y, absolute_sigma=True
    )
    b, error = float(parameters[2]), float(np.sqrt(covariance[2, 2]))
    limit = -float(ndtri(false_alarm / 2)) * error
    power, root = abs(b) <= limit, abs(b - 0.5) <= limit
    model: Model = "undecided" if power and root else "x^a" if power else "x^a sqrt(ln x)" if root else "neither"
    return ModelChoice(model, b, error)
