"""Outcomes of training runs and comparisons of them, on tables that are made up."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from checks.models.warmup import compare, judge, median_time, outcome, time_to, unigram_loss
from simulate.translation.parallel_text import BEGIN, END, ParallelText

# As the paper says: what a run without warm-up ends at, and one with it ends at 3.
PAPER = {("adam", "post"): 6.0, ("sgd", "post"): 6.5, ("adam", "pre"): 3.0, ("radam", "post"): 3.0,
         ("radam", "pre"): 3.0}  # fmt: skip


def made_up(ends, noise=0.01, seeds=3):
    generator = np.random.default_rng(0)
    rows = []
    for ((optimizer, placement), end), warmup, seed in product(ends.items(), (1, 18, 144), range(seeds)):
        final = (end if warmup == 1 else 3.0) + noise * generator.standard_normal()
        rows.append((optimizer, placement, warmup, 1e-3, "b", seed, 8.0, final, 5.0))
    names = ["optimizer", "placement", "warmup", "peak", "reading", "seed", "first", "final", "unigram"]
    return pd.DataFrame(rows, columns=names)


def verdicts(table):
    return judge(table).groupby("claim")["verdict"].agg(list).to_dict()


def test_what_the_paper_says_holds_where_it_is_so():
    found = verdicts(made_up(PAPER))
    assert found == {"W1": ["holds"], "W2": ["holds"], "W5": ["holds"], "W7": ["holds"] * 3}


@pytest.mark.parametrize(
    ("contrary", "claim", "expected"),
    [
        ({("adam", "post"): 3.0}, "W1", ["fails"]),
        ({("sgd", "post"): 3.05}, "W2", ["fails"]),
        ({("adam", "pre"): 4.0}, "W5", ["fails"]),
        ({("radam", "post"): 6.0}, "W7", ["fails", "holds", "holds"]),
        ({("radam", "pre"): 4.0}, "W7", ["holds", "fails", "holds"]),
        ({("radam", "pre"): 2.0}, "W7", ["holds", "holds", "fails"]),
    ],
)
def test_planted_contraries_fail(contrary, claim, expected):
    assert verdicts(made_up({**PAPER, **contrary}))[claim] == expected


def test_what_seeds_cannot_tell_is_undecided():
    assert verdicts(made_up({**PAPER, ("adam", "post"): 3.1}, noise=0.5))["W1"] == ["undecided"]
    assert judge(made_up(PAPER, seeds=1)).empty


def test_the_interval_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1/√3, t of two degrees of freedom 4.302653."""
    runs = pd.DataFrame({"seed": [0, 1, 2, 9], "final": [4.0, 6.0, np.nan, 1.0], "first": 9.0})
    others = pd.DataFrame({"seed": [2, 1, 0, 7], "final": [6.0, 4.0, 3.0, 1.0], "first": 9.0})
    found = compare(runs, others)  # the run that is not finite counts with 9
    assert (found.mean, found.seeds, found.answer) == (2.0, 3, "undecided")
    assert found.interval == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-6)
    with pytest.raises(ValueError, match="at least 2 seeds in common, got 1"):
        compare(runs, others[:1])
    with pytest.raises(ValueError, match="one row for every seed"):
        compare(pd.concat([runs, runs]), others)


@pytest.mark.parametrize(
    ("final", "expected"),
    [(float("nan"), "diverged"), (float("inf"), "diverged"), (8.01, "diverged"), (5.5, "stuck"), (4.751, "stuck"),
     (4.749, "trained")],
)  # fmt: skip
def test_outcomes(final, expected):
    assert outcome(first=8.0, final=final, unigram=5.0) == expected


def test_times():
    assert time_to([0, 50, 100], [8.0, 4.0, 3.0], 4.0) == (50, True)
    assert time_to([0, 50, 100], [8.0, float("nan"), 5.0], 4.0) == (100, False)
    assert median_time([10, 20, 30], [True, True, True]) == 20
    assert median_time([10, 20, 30, 30], [True, True, False, False]) == 20
    assert median_time([10, 30, 30], [True, False, False]) == float("inf")
    # One is lost at 5 before any gets there: four at risk, 3/4 and then 3/4 · 2/3 = 1/2 survive.
    assert median_time([5, 10, 20, 30, 30], [False, True, True, False, False]) == 20


def test_the_unigram_loss_by_hand():
    """Labels 4, 4, 5, end of a vocabulary of six: counts with one more each 3, 2, 2, and 1 of unknown words."""
    text = ParallelText((np.array([4, END]),), (np.array([BEGIN, 4, 4, 5, END]),), 6, "", ("", ""))
    held = ParallelText((np.array([4, END]),), (np.array([BEGIN, 4, 1, END]),), 6, "", ("", ""))
    assert unigram_loss(text, held) == pytest.approx(-(np.log(3 / 8) + np.log(1 / 8) + np.log(2 / 8)) / 3)
