"""Fits of exponents: weighted log-log fits with intervals, local slopes, and tests for a logarithmic factor."""

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
"""Fewer give a slope that nothing checks: `gradbounds` fits exponents to that many different x."""

MODEL_FALSE_ALARM = 0.01
"""How often `model_choice` rejects a model that is true."""


def log_contrast(values: ArrayLike, weights: ArrayLike) -> Estimate:
    """Estimate Σ_l w_l ln(mean of column l) from columns measured on the same draws; error by the delta method.

    The slope of a profile over layers is such a contrast. The layers of one draw are dependent, so that a regression
    with independent points would misstate its error.
    """
    values, weights = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    mean = values.mean(0)
    influence = (values / mean - 1.0) @ weights
    return Estimate(np.asarray(weights @ np.log(mean)), standard_error(influence), len(values))


def slope_weights(x: ArrayLike) -> Array:
    """Return the weights w with Σ w_l y_l = slope of the least-squares line of y on x."""
    x = np.asarray(x, dtype=float)
    centred = x - x.mean()
    return centred / np.sum(centred**2)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A fitted power law y = amplitude · x^exponent, by least squares on log-log axes.

    Attributes:
        exponent: the slope.
        sem: its standard error.
        weights: what the slope makes of ln y, one weight per point: exponent = weights @ ln y.
    """

    exponent: float
    sem: float
    weights: tuple[float, ...]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the two-sided interval of the exponent at this confidence level, by normal theory."""
        half = float(ndtri(0.5 + level / 2)) * self.sem
        return self.exponent - half, self.exponent + half


def power_law(x: ArrayLike, y: ArrayLike, sem: ArrayLike) -> PowerLaw:
    """Fit the exponent a of y = c x^a, by least squares of ln y on ln x with weights (y/sem)².

    A prediction over the same x, fitted with the same errors, has the exponent to compare with: over a finite
    range neither need be the limit.

    Args:
        x: (points,), above 0, such as widths.
        y: (points,), above 0, measured at each x: norms, say, of root mean squares, and not their squares.
        sem: (points,), above 0, the standard error of each y and in its unit.

    Returns:
        The exponent, which has no unit, and its standard error as `sem` implies it: the scatter about the line does
        not enter.

    Raises:
        ValueError: fewer than two different x.

    Assumes points from independent draws, some 30 or more at each x, so that ln y is nearly normal with standard error
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
    """Fit an exponent and its 95% interval to points with a few draws each, which share one variance of ln y.

    A few draws estimate a variance poorly. The variance is therefore pooled over the points, and the interval is
    Student's t.

    Args:
        x: `LEAST_POINTS` different values at least.
        y: of every point, from its draws.
        counts: numbers of draws.
        variances: variances of ln y over draws.

    Returns:
        Exponent, low, high; None of too few points, or where one has a single draw.
    """
    if len(counts) < LEAST_POINTS or counts.min() < 2:
        return None
    weights, _ = pooled_weights(x, counts)
    exponent, half = (float(of) for of in pooled_contrast(weights, np.log(y), counts, variances))
    return exponent, exponent - half, exponent + half


def pooled_weights(x: ArrayLike, counts: Array) -> tuple[Array, Array]:
    """Return the weights of ln y in a fitted exponent and in its bend (last minus first local slope), for draw counts.

    Args:
        x: (points,), three or more, increasing.
        counts: (points,), of draws.
    """
    log = np.log(np.asarray(x, dtype=float))
    # A fit is linear in ln y: fitting unit vectors gives its weights.
    fitted = np.polyfit(log, np.eye(len(log)), 1, w=np.sqrt(counts))[0]
    ends = np.zeros(len(log))
    ends[[0, 1]] += np.array([1.0, -1.0]) / (log[1] - log[0])
    ends[[-2, -1]] += np.array([-1.0, 1.0]) / (log[-1] - log[-2])
    return fitted, ends


def pooled_contrast(weights: Array, logs: ArrayLike, counts: Array, variances: ArrayLike) -> tuple[Array, Array]:
    """Return Σ_l w_l ln y_l and half of its 95% interval, with the variance of ln y pooled over the points.

    Args:
        weights: (points,).
        logs: (..., points), means of ln y over draws.
        counts: (points,), of draws, two or more each.
        variances: (..., points), of ln y over draws.
    """
    freedom = int((counts - 1).sum())
    pooled = np.maximum((np.asarray(variances) * (counts - 1)).sum(-1) / freedom, 1e-12)
    sem = np.sqrt(pooled * (weights**2 / counts).sum())
    half = float(stdtrit(freedom, 0.975)) * sem
    return np.asarray(logs) @ weights, half


def bootstrap_interval(
    fit: PowerLaw, squares: Sequence[ArrayLike], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the interval of a fitted exponent by resampling the draws of every point, without normal theory.

    Args:
        fit: the fit of root mean squares.
        squares: the draws behind every point, in the order of the fit: squared norms.
        level: level of the two-sided interval.
        resamples: how many.
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
    """Return the log-log slopes between neighbouring points: geometric means of x, slopes, and standard errors.

    Neighbouring slopes share a point, so their errors are dependent: a high one is followed by a low one.

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
    """The choice whether y grows like x^a or like x^a √(ln x), with a free in both models.

    Attributes:
        model: the one that stands when the other is rejected; "undecided" when neither is, "neither" when both are.
        log_power: b of the encompassing x^a (ln x)^b: 0 for one model, 1/2 for the other.
        sem: its standard error.
    """

    model: Model
    log_power: float
    sem: float


def model_choice(x: ArrayLike, y: ArrayLike, sem: ArrayLike, false_alarm: float = MODEL_FALSE_ALARM) -> ModelChoice:
    """Fit x^a (ln x)^b to independent points with standard errors, and reject b = 0 or b = 1/2 if it is far.

    Over an octave or two ln ln x is all but linear in ln x, so that b has an error above 1: no choice is then the
    honest answer. Each true model is rejected with probability `false_alarm`.

    Raises:
        ValueError: fewer than three different x, or one not above 1.
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
