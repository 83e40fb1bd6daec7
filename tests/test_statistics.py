"""Estimates, exponents and agreement: exact where they can be, calibrated where they are random."""

import numpy as np
import pytest
from scipy import stats

from checks.statistics import (
    Estimate,
    agreement,
    chance_limit,
    estimate,
    log_contrast,
    pooled,
    power_law,
    scalar_agreement,
    slope_weights,
)

RNG = np.random.default_rng


def test_estimate():
    values = RNG(0).normal(size=(50, 3))
    e = estimate(values)
    np.testing.assert_allclose(e.mean, values.mean(0))
    np.testing.assert_allclose(e.sem, values.std(0, ddof=1) / np.sqrt(50))
    low, high = e.interval()
    reference = stats.ttest_1samp(values[:, 0], 0).confidence_interval(0.95)
    assert (low[0], high[0]) == pytest.approx((reference.low, reference.high))
    with pytest.raises(ValueError, match="^draws must be at least 2 to give a standard error, got 1"):
        estimate([1.0])


def test_root_and_pooled():
    e = Estimate(np.array(4.0), np.array(0.1), 100)
    assert e.root().mean == 2
    assert e.root().sem == pytest.approx(0.025)
    both = pooled([Estimate(np.array(1.0), np.array(0.1), 10), Estimate(np.array(2.0), np.array(0.2), 20)], [3, 1])
    assert both.mean == pytest.approx(1.25)
    assert both.sem == pytest.approx(np.hypot(0.75 * 0.1, 0.25 * 0.2))
    assert both.draws == 30


def test_pooled_means_cover():
    """2000 experiments of 12 skewed cells with 32 draws each: 95% intervals cover 92 to 97%."""
    rng, inside = RNG(5), 0
    for _ in range(2000):
        draws = np.exp(rng.normal(-0.045, 0.3, (32, 12)))
        e = estimate(draws)
        cells = [Estimate(mean, sem, 32) for mean, sem in zip(e.mean, e.sem, strict=True)]
        low, high = pooled(cells, np.ones(12)).interval()
        inside += low <= 1 <= high
    assert 0.92 < inside / 2000 < 0.97


def test_power_law_without_noise():
    x = np.array([64, 128, 256, 512])
    fit = power_law(x, 3 * x**0.75, 0.01 * x**0.75)
    assert fit.exponent == pytest.approx(0.75, abs=1e-9)
    slope = stats.linregress(np.log(x), np.log(3 * x**0.75)).slope
    assert fit.exponent == pytest.approx(slope)
    with pytest.raises(ValueError, match="^x must have at least 2 different values to give an exponent"):
        power_law([8, 8], [1, 2], [0.1, 0.1])


def test_intervals_of_exponents_cover():
    """2000 experiments of 5 cells with 120 log-normal draws each: 95% intervals cover 93 to 97%, 99% ones 98 to 99.7%.

    A correct interval leaves these ranges with probability below 1e-3; one too narrow by 15% is seen.
    """
    rng, x = RNG(1), np.array([32.0, 64, 128, 256, 512])
    covered = np.zeros((2000, 2), bool)
    for k in range(2000):
        draws = x**0.5 * np.exp(rng.normal(-0.045, 0.3, (120, 5)))
        fit = power_law(x, draws.mean(0), stats.sem(draws, axis=0))
        for j, level in enumerate((0.95, 0.99)):
            low, high = fit.interval(level)
            covered[k, j] = low <= 0.5 <= high
    rates = covered.mean(0)
    assert 0.93 < rates[0] < 0.97
    assert 0.98 < rates[1] < 0.997


@pytest.mark.parametrize("draws", [8, 128])
@pytest.mark.parametrize("rate", [0.05, 0.01])
def test_chance_limit_is_calibrated(draws, rate):
    """The rule behind "differs", at rates that can be measured: 20000 null experiments, false alarm 1e-5."""
    e = estimate(RNG(2).normal(size=(draws, 20_000)))
    alarms = int((np.abs(e.mean) > chance_limit(e.sem, draws, rate)).sum())
    assert 5e-6 < stats.binom(20_000, rate).cdf(alarms) < 1 - 5e-6


def test_chance_limit_is_four_standard_errors_with_many_draws():
    assert chance_limit(1.0, 10**7) == pytest.approx(4.0, rel=1e-4)
    assert chance_limit(1.0, 5) > 10


def test_agreement_has_three_words():
    sem = np.array([0.001, 0.001, 0.02, 0.001, 0.05])
    e = Estimate(np.array([1.0, 1.029, 1.0, 1.05, 1.15]), sem, 10_000)
    assert agreement(e, 1.0).tolist() == ["agrees", "undecided", "undecided", "differs", "undecided"]
    assert scalar_agreement(0.5, 0.505, 0.001, 0.02) == "agrees"
    assert scalar_agreement(0.5, 0.505, 0.01, 0.02) == "undecided"
    assert scalar_agreement(0.5, 0.55, 0.01, 0.02) == "differs"


def test_log_contrast_knows_that_layers_are_dependent():
    """Profiles with a common factor per draw: the slope does not feel it. Coverage over 2000 experiments."""
    rng, layers = RNG(3), np.arange(1, 9)
    weights = slope_weights(layers)
    assert weights @ (3 + 0.5 * layers) == pytest.approx(0.5)
    assert weights @ np.ones(8) == pytest.approx(0)
    inside = 0
    for _ in range(2000):
        common, own = rng.normal(0, 0.5, (120, 1)), rng.normal(0, 0.2, (120, 8))
        found = log_contrast(np.exp(0.1 * layers + common + own), weights)
        low, high = found.interval()
        inside += low <= 0.1 <= high
    assert 0.93 < inside / 2000 < 0.97
