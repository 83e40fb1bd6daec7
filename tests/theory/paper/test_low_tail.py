"""Lemma 5, its failure under Definition 1, and the union over positions."""

import numpy as np
import pytest
import sympy as sp
from scipy import stats

from theory.paper import low_tail as reverse_markov, theorem1
from theory.paper.lemmas import a, low_tail_bound, n, top
from theory.paper.low_tail import counterexample


def test_identity_of_positive_parts():
    assert reverse_markov.positive_part_identity() == 0


@pytest.mark.parametrize("law", [stats.beta(2, 3), stats.uniform(), stats.triang(0.9)])
def test_lemma5_on_bounded_laws(law):
    """Y in [0, 1], B = 1: the bound is never undercut; with E[B − Y] halved it would be."""
    limits = np.linspace(0.05, 0.95, 19)
    bounds = np.array([float(low_tail_bound(sp.Float(law.mean())).subs({top: 1, a: x})) for x in limits])
    assert (law.cdf(limits) <= bounds).all()
    assert (law.cdf(limits) > bounds / 4).any()


def test_lemma5_is_attained():
    """By a law on {a, B}, whose probability at a solves the bound as an equation."""
    p = sp.Symbol("p", positive=True)
    assert sp.simplify(low_tail_bound(p * a + (1 - p) * top) - p) == 0


def test_corrected_inequality_on_unbounded_laws():
    for law in (stats.gamma(2), stats.lognorm(1.0), stats.expon()):
        for b in (0.5, 1.0, 3.0):
            excess = law.expect(lambda y, b=b: y - b, lb=b)
            for x in (0.05 * b, 0.5 * b, 0.9 * b):
                bound = low_tail_bound(sp.Float(law.mean()), sp.Float(excess)).subs({top: b, a: x})
                assert law.cdf(x) <= float(bound)


def test_the_stated_probability_fails_under_definition_1():
    law = counterexample(0.1, 0.125)
    assert sum(v * p for v, p in zip(law.values, law.probabilities, strict=True)) == 1
    above = sum(p for v, p in zip(law.values, law.probabilities, strict=True) if v > sp.Rational(11, 10))
    assert above <= sp.Rational(1, 8), "(eps, delta)-bounded"
    stated = theorem1.probability().subs({theorem1.epsilon: sp.Rational(1, 10), theorem1.delta: sp.Rational(1, 8)})
    assert 1 - law.actual < stated, "the event of the proof is less likely than the theorem says"
    assert law.stated < law.actual <= law.corrected
    draws = law.sample(4000, seed=1)
    assert stats.binomtest(int((draws <= 0.1).sum()), 4000, float(law.actual)).pvalue > 1e-5


def test_a_law_that_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match="^delta must leave mass above"):
        counterexample(0.1, 0.99)


def test_union_over_positions():
    """1 − n (0.01 + δ + ε/(0.9 + ε)), and nothing beyond four positions at the paper's pair."""
    paper = {theorem1.epsilon: sp.Rational(1, 10), theorem1.delta: sp.Rational(1, 8)}
    union = reverse_markov.probability_over_positions().subs(paper)
    assert union.subs(n, 1) == theorem1.probability().subs(paper)
    longest = reverse_markov.largest_useful_length(0.1, 0.125)
    assert union.subs(n, longest) > 0 >= union.subs(n, longest + 1)


def test_e1_in_truth():
    """The exact failure of E1 against samples of d = 16 pre-activations, and below the union's 1/200."""
    d = 16
    exact = theorem1.entry_failure_value(d)
    entries = np.random.default_rng(0).normal(size=(200_000, d)).max(1)
    failures = int((np.maximum(entries, 0) ** 2 > 2 * np.log(100 * d)).sum())
    assert stats.binomtest(failures, 200_000, exact).pvalue > 1e-5
    assert stats.binomtest(failures, 200_000, 2 * exact).pvalue < 1e-5
    for width in (2, 64, 4096, 2**20):
        assert theorem1.entry_failure_value(width) < float(theorem1.entry_failure()) <= 0.01
