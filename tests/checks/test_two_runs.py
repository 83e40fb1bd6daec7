"""Two runs beside each other: differences of one law are as rare as is said, and a planted one is found."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from checks.stacks.two_runs import _differences, can_differ, run_differences, set_apart
from simulate import sample
from theory import Stack


@cache
def small_network():
    return sample(Stack(width=8, depth=20, tokens=2, vocab=4), draws=2, seed=0)


def run_of(values):
    return [replace(small_network(), seeds=np.zeros(len(values), dtype=int), arrays={"grad_sq_W1": values})]


def test_differences_are_no_more_than_chance_has():
    """16 against 512 log-normal draws of log-variance 2.6: by Welch's test of the means most pairs would differ."""
    rng = np.random.default_rng(0)
    pairs = [[run_of(rng.lognormal(sigma=1.6, size=(draws, 20))) for draws in (16, 512)] for _ in range(20)]
    alarms = sum(run_differences(*pair)["differs"].any() for pair in pairs)
    assert alarms <= 2  # of 20, each at 1%: by chance once in 1000 such tests


@pytest.mark.parametrize("sizes", [(64, 64), (48, 200), (200, 48)])
def test_a_planted_factor_is_found(sizes):
    rng = np.random.default_rng(1)
    first, second = (rng.lognormal(sigma=0.6, size=(draws, 20)) for draws in sizes)
    second[:, 3] *= 2
    table = run_differences(run_of(first), run_of(second))
    (row,) = table.query("differs").to_dict("records")
    assert (row["quantity"], row["layer"], row["p_value"]) == ("grad_sq_W1", 4, 0.001)
    assert row["second"] / row["first"] == pytest.approx(2, rel=0.3)
    assert row["errors"] > 4
    pd.testing.assert_frame_equal(table, run_differences(run_of(first), run_of(second)))


def test_errors_are_normal_deviates_of_welchs_test():
    """Of logarithms where all draws are positive; Wallace's formula is within 0.5% of the deviate of the same tail."""
    rng = np.random.default_rng(2)
    first, second = rng.normal(4.0, 0.5, (10, 30)), rng.normal(4.3, 0.8, (25, 30))
    first[:, 20:] -= 4.0
    second[:, 20:] -= 4.0
    for a, b in ((first, second), (second, first)):
        logs = [np.column_stack([np.log(x[:, :20]), x[:, 20:]]) for x in (a, b)]
        test = stats.ttest_ind(*logs, equal_var=False)
        deviates = -np.sign(test.statistic) * stats.norm.isf(test.pvalue / 2)
        np.testing.assert_allclose(_differences(a, b, rng)[0], deviates, rtol=5e-3)


def test_what_does_not_vary():
    """A norm that LayerNorm fixes: equal to rounding or not; beside it the others are tested as ever."""
    values = np.random.default_rng(3).lognormal(size=(2, 40, 20))
    values[:, :, 0] = 1.0
    values[1, :, 1] = values[0, :, 1] = 2.0
    values[1, :, 1] *= 1.001
    table = run_differences(*map(run_of, values))
    assert np.isnan(table["errors"][0])
    assert list(table["differs"]) == [False, True] + 18 * [False]
    assert list(table["p_value"][:2]) == [1.0, 0.0]


def test_too_few_draws_show_nothing():
    assert [can_differ(n, n) for n in (2, 4, 5, 10**6)] == [False, False, True, True]
    assert can_differ(2, 100)
    values = np.random.default_rng(4).lognormal(size=(2, 4, 20)) * [[[1.0]], [[1e6]]]
    assert not run_differences(*map(run_of, values))["differs"].any()


def test_runs_of_networks_that_differ_in_one_field():
    one = small_network()
    assert set_apart([one], [sample(replace(one.stack, tokens=3), draws=2, seed=0)]) == {"tokens": (2, 3)}
