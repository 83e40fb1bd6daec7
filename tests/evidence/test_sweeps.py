"""Coverage, false alarms and power of exponents that sweeps are judged by."""

import pytest
from scipy import stats

from tests.helpers.evidence_file import record
from tests.helpers.experiments import coverage, exponent_alarms, power

pytestmark = pytest.mark.evidence


def test_coverage_of_exponents():
    """2000 experiments: a correct 95% interval leaves 93 to 97% with probability below 1e-4."""
    found = {
        f"{draws} draws": coverage(experiments=2000, draws=draws, seed=draws, resamples=2000) for draws in (100, 128)
    }
    record("coverage", {"experiments": 2000, "level": 0.95} | found)
    assert all(0.93 <= rate <= 0.97 for rates in found.values() for rate in rates.values())


def test_alarm_and_power_of_exponents():
    """20000 null experiments at 128 draws; an alarm 1.2 times too frequent at 5%, or 1.5 times at 1%, is seen."""
    rates = {
        level: exponent_alarms(experiments=20_000, draws=128, seed=3, level=level) / 20_000 for level in (0.05, 0.01)
    }
    powers = {shift: power(experiments=2000, draws=128, seed=4, shift=shift) for shift in (0.02, 0.03, 0.05)}
    record(
        "alarms",
        {
            "draws": 128,
            "false alarms": {str(level): rate for level, rate in rates.items()},
            "power against a shift": {
                str(shift): {"stated": stated, "measured": measured} for shift, (stated, measured) in powers.items()
            },
        },
    )
    for level, rate in rates.items():
        assert stats.binom(20_000, 1.1 * level).sf(int(20_000 * rate) - 1) > 1e-5
        assert stats.binom(20_000, 0.9 * level).cdf(int(20_000 * rate)) > 1e-5
    stated, measured = powers[0.05]
    assert stated > 0.99
    assert measured == pytest.approx(stated, abs=0.01)
