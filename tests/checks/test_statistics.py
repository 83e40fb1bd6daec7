"""Estimates, exponents and agreement: exact where they can be, calibrated where they are random."""

import numpy as np
import pytest
from scipy import stats

from checks.statistics import Estimate, agreement, chance_limit, estimate, log_variance, pooled, scalar_agreement

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
        e = estimate(np.exp(rng.normal(-0.045, 0.3, (32, 12))))
        cells = [Estimate(mean, sem, 32) for mean, sem in zip(e.mean, e.sem, strict=True)]
        low, high = pooled(cells, np.ones(12)).interval()
        inside += low <= 1 <= high
    assert 0.92 < inside / 2000 < 0.97


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


def test_an_exponent_agrees_where_its_95_percent_interval_is_inside():
    """1.96 standard errors of 0.0103 exceed the margin of 0.02, and 1.645 of them do not."""
    assert scalar_agreement(0.5, 0.5, 0.0101, 0.02) == "agrees"
    assert scalar_agreement(0.5, 0.5, 0.0103, 0.02) == "undecided"


def test_the_variance_of_logarithms_is_unbiased():
    assert log_variance([1.0, np.exp(2.0)]) == pytest.approx(2.0)
    assert np.isnan(log_variance([1.0, 0.0])), "a draw without a logarithm"
