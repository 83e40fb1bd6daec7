"""Estimates and exponents: exact without noise, calibrated with it, honest about what a grid cannot tell."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from checks.fits import (
    PowerLaw,
    bootstrap_interval,
    local_exponents,
    log_contrast,
    model_choice,
    power_law,
    slope_weights,
)
from checks.statistics import (
    MARGIN,
    Estimate,
    agreement,
    chance_limit,
    equivalence,
    estimate,
    log_variance,
    pooled,
    scalar_agreement,
)

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


@cache
def standard_scores(*, experiments: int, draws: int, seed: int) -> NDArray[np.float64]:
    """Return distances of exponents from the true one in null experiments, in standard errors, (experiments,)."""
    rng = np.random.default_rng(seed)
    fits = [experiment(rng, draws, EXPONENT)[0] for _ in range(experiments)]
    return np.array([abs(fit.exponent - EXPONENT) / fit.sem for fit in fits])


def exponent_alarms(*, experiments: int, draws: int, seed: int, level: float) -> int:
    """Return the number of null experiments whose exponent is farther from the true one than a level allows."""
    scores = standard_scores(experiments=experiments, draws=draws, seed=seed)
    return int((scores > stats.norm.isf(level / 2)).sum())


RNG = np.random.default_rng


def test_power_law_without_noise():
    x = np.array([64, 128, 256, 512])
    fit = power_law(x, 3 * x**0.75, 0.01 * x**0.75)
    assert fit.exponent == pytest.approx(0.75, abs=1e-9)
    assert fit.exponent == pytest.approx(stats.linregress(np.log(x), np.log(3 * x**0.75)).slope)
    with pytest.raises(ValueError, match="^x must have at least 2 different values to give an exponent"):
        power_law([8, 8], [1, 2], [0.1, 0.1])


def test_the_weights_of_a_fit_are_its_exponent():
    x, rng = np.array([3.0, 5, 17, 90]), RNG(0)
    y, sem = rng.uniform(1, 2, 4), rng.uniform(0.01, 0.1, 4)
    fit = power_law(x, y, sem)
    assert np.array(fit.weights) @ np.log(y) == pytest.approx(fit.exponent)
    assert np.array(fit.weights) ** 2 @ (sem / y) ** 2 == pytest.approx(fit.sem**2), "weights are inverse variances"


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_alarm_of_exponents_is_calibrated(level):
    """2000 null experiments at 128 draws: an alarm 1.5 times too frequent at 5%, or 2.2 times at 1%, is seen."""
    alarms = exponent_alarms(experiments=2000, draws=128, seed=2, level=level)
    assert stats.binom(2000, 1.2 * level).sf(alarms - 1) > 1e-5
    assert stats.binom(2000, 0.8 * level).cdf(alarms) > 1e-5


def test_the_bootstrap_agrees_with_normal_theory_where_that_holds():
    rng, x = RNG(3), np.array([32.0, 64, 128])
    squares = [rng.chisquare(8, 2000) * w for w in x]
    norms = [estimate(s).root() for s in squares]
    fit = power_law(x, [n.mean for n in norms], [n.sem for n in norms])
    assert bootstrap_interval(fit, squares) == pytest.approx(fit.interval(), abs=0.15 * fit.sem)
    assert bootstrap_interval(fit, squares) == bootstrap_interval(fit, squares), "seeded"


def test_local_exponents():
    x = np.array([2.0, 4, 16])
    at, slopes, sem = local_exponents(x, x**0.3, 0.01 * x**0.3)
    assert at == pytest.approx([8**0.5, 8])
    assert slopes == pytest.approx(0.3)
    assert sem == pytest.approx(0.01 * 2**0.5 / np.log([2, 4]))
    for bad in ([4.0, 2.0], [4.0], [2.0, 2.0]):
        with pytest.raises(ValueError, match="^x must be at least 2 increasing values to give local exponents"):
            local_exponents(bad, np.ones(len(bad)), np.ones(len(bad)))


def chosen(x, b, error, experiments=300):
    """How often each model is chosen of y = x^0.5 (ln x)^b with a relative error."""
    rng, counts = RNG(4), {}
    for _ in range(experiments):
        y = x**0.5 * np.log(x) ** b * np.exp(rng.normal(0, error, len(x)))
        model = model_choice(x, y, error * y).model
        counts[model] = counts.get(model, 0) + 1 / experiments
    return counts


def test_a_short_grid_is_undecided():
    """Three octaves at 1%: mostly no choice, and the wrong one as rarely as stated (1%; 300 experiments)."""
    for b, wrong in ((0.0, "x^a sqrt(ln x)"), (0.5, "x^a")):
        counts = chosen(np.array([64.0, 128, 256, 512]), b, 0.01)
        assert counts["undecided"] > 0.85
        assert counts.get(wrong, 0) < 0.035


def test_a_long_grid_decides():
    """Twenty octaves at 0.2%: each model is chosen when true, and rejected once in a hundred."""
    x = 2.0 ** np.arange(3, 23)
    assert chosen(x, 0.0, 0.002)["x^a"] > 0.97
    assert chosen(x, 0.5, 0.002)["x^a sqrt(ln x)"] > 0.97
    assert chosen(x, 2.0, 0.002)["neither"] == pytest.approx(1)
    with pytest.raises(ValueError, match="^x must have at least 3 different values above 1 to choose a model"):
        model_choice([1.0, 2.0, 4.0], [1, 1, 1], [0.1, 0.1, 0.1])


def test_log_contrast_knows_that_layers_are_dependent():
    """Profiles with a common factor per draw: the slope does not feel it. Coverage over 2000 experiments."""
    rng, layers = RNG(3), np.arange(1, 9)
    weights = slope_weights(layers)
    assert weights @ (3 + 0.5 * layers) == pytest.approx(0.5)
    assert weights @ np.ones(8) == pytest.approx(0)
    inside = 0
    for _ in range(2000):
        common, own = rng.normal(0, 0.5, (120, 1)), rng.normal(0, 0.2, (120, 8))
        low, high = log_contrast(np.exp(0.1 * layers + common + own), weights).interval()
        inside += low <= 0.1 <= high
    assert 0.93 < inside / 2000 < 0.97


def test_equivalence_is_two_one_sided_tests():
    values = RNG(6).normal(1.01, 0.1, 200)
    e = estimate(values)
    low = stats.ttest_1samp(values, 1 - MARGIN, alternative="greater").pvalue
    high = stats.ttest_1samp(values, 1 + MARGIN, alternative="less").pvalue
    assert equivalence(e, 1.0) == pytest.approx(max(low, high))
    assert equivalence(Estimate(np.array(1.0), np.array(0.0), 5), 1.0) == 0
    assert equivalence(Estimate(np.array(1.05), np.array(0.0), 5), 1.0) == 1


def test_a_model_is_rejected_beyond_2_58_standard_errors():
    """Two-sided at 1%: 2.45 errors of the power of ln x do not reject x^a, and 2.7 do."""
    x = np.geomspace(64, 65536, 11)
    sem = model_choice(x, x**0.5 * np.log(x), 0.01 * x**0.5 * np.log(x)).sem
    for errors, stands in ((2.45, True), (2.7, False)):
        y = x**0.5 * np.log(x) ** (errors * sem)
        assert (model_choice(x, y, 0.01 * y).model in ("x^a", "undecided")) == stands


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
