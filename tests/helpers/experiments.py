"""Synthetic experiments on exponents: draws of squared norms whose mean grows like a known power of the width."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from checks.fits import PowerLaw, bootstrap_interval, power_law
from checks.statistics import CHANCE, estimate, scalar_agreement
from checks.verdict import EXPONENT_MARGIN

WIDTHS = np.array([64.0, 128, 256, 512])
EXPONENT = 0.5


def experiment(rng: np.random.Generator, draws: int, exponent: float) -> tuple[PowerLaw, list[NDArray[np.float64]]]:
    """One fit as `checks.stacks.theorem1` does it, to squared norms as skewed and as scattered as those of last layers.

    Samples at n = 8, d = 64..512 have coefficients of variation of 0.15 to 0.35, the larger the narrower, and a
    skewness of about twice that: gamma distributions.
    """
    variations = 0.35 * (WIDTHS[0] / WIDTHS) ** 0.4
    squares = [
        width ** (2 * exponent) * rng.gamma(variation**-2, variation**2, draws)
        for width, variation in zip(WIDTHS, variations, strict=True)
    ]
    norms = [estimate(s).root() for s in squares]
    return power_law(WIDTHS, [n.mean for n in norms], [n.sem for n in norms]), squares


def coverage(*, experiments: int, draws: int, seed: int, resamples: int = 1000) -> dict[str, float]:
    """How often 95% intervals hold the true exponent: by normal theory, and by resampling draws."""
    rng, inside = np.random.default_rng(seed), np.zeros(2)
    for k in range(experiments):
        fit, squares = experiment(rng, draws, EXPONENT)
        intervals = (fit.interval(), bootstrap_interval(fit, squares, resamples=resamples, seed=k))
        inside += [low <= EXPONENT <= high for low, high in intervals]
    return dict(zip(("model", "bootstrap"), (inside / experiments).tolist(), strict=True))


@cache
def standard_scores(*, experiments: int, draws: int, seed: int) -> NDArray[np.float64]:
    """How far exponents are from the expected one, in their standard errors, where they have it; (experiments,)."""
    rng = np.random.default_rng(seed)
    fits = [experiment(rng, draws, EXPONENT)[0] for _ in range(experiments)]
    return np.array([abs(fit.exponent - EXPONENT) / fit.sem for fit in fits])


def exponent_alarms(*, experiments: int, draws: int, seed: int, level: float) -> int:
    """How often an exponent is farther from the expected one, which it has, than chance allows at a level."""
    scores = standard_scores(experiments=experiments, draws=draws, seed=seed)
    return int((scores > stats.norm.isf(level / 2)).sum())


def power(*, experiments: int, draws: int, seed: int, shift: float) -> tuple[float, float]:
    """How often the assertion of the suite sees an exponent off by `shift`: stated by the normal law, and measured."""
    rng = np.random.default_rng(seed)
    fits = [experiment(rng, draws, EXPONENT + shift)[0] for _ in range(experiments)]
    seen = [scalar_agreement(fit.exponent, EXPONENT, fit.sem, EXPONENT_MARGIN) == "differs" for fit in fits]
    sem = float(np.median([fit.sem for fit in fits]))
    return float(stats.norm.sf((max(EXPONENT_MARGIN, CHANCE * sem) - shift) / sem)), float(np.mean(seen))
