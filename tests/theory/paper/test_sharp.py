"""The two-sided Theorem 1, and Lemma 5 with its failure under Definition 1."""

import numpy as np
import pytest
import sympy as sp
from scipy import integrate, stats

from simulate import sample
from theory import Stack, predict
from theory.mean_field.concentration import hidden_energy_law
from theory.mean_field.finite_width import coefficients
from theory.mean_field.gaussian import softmax_overlap
from theory.paper import low_tail as reverse_markov, sharp, theorem1
from theory.paper.lemmas import L, a, low_tail_bound, n, top
from theory.paper.low_tail import counterexample
from theory.paper.theorem1 import V, sigma_e


def one_token_mean(stack):
    """E‖∂L/∂W^{2,L}‖_F² of a Post-LN stack with one token, exact at every width, depth, V and σ_e.

    ‖∂L/∂W^{2,L}‖_F² = ‖h‖² (d/‖y‖²) ‖P g‖², with y the centred x5 and P the projector off 1 and y. W_emb off those two
    directions is independent of the logits, so E‖P g‖² = (1 − 2/d) σ_e² E‖p − e_y‖². Given S = ‖h‖²/d, ‖y‖²/S is
    noncentral chi-square with d − 1 degrees of freedom and noncentrality d/S, since x3 is centred and of norm √d.
    """
    width, vocab = stack.width, stack.vocab
    shares, weights = hidden_energy_law(width)
    inverse = np.array([_inverse_moment(width - 1, width / share) for share in shares])
    loss = stack.output_scale**2 * (1 - 2 / vocab + softmax_overlap(1.0, stack.output_scale, vocab))
    return float(width * (width * inverse @ weights) * loss * (1 - 2 / width))


def _inverse_moment(freedom, noncentrality):
    """E[1/X] of a noncentral chi-square: ½ ∫₀¹ t^(k/2 − 2) exp(λ (t − 1)/2) dt."""
    # With t = exp(−v/c) the integrand is smooth and of scale 1 whatever k and λ.
    rate = freedom / 2 - 1
    scale = rate + noncentrality / 2

    def integrand(v):
        return float(np.exp(-rate * v / scale + noncentrality * np.expm1(-v / scale) / 2))

    return float(integrate.quad(integrand, 0, np.inf, epsabs=0, epsrel=1e-9)[0]) / (2 * scale)


def limits(stack):
    values = {V: stack.vocab, n: stack.tokens, L: stack.depth, sigma_e: stack.output_scale}
    return [float(end.subs(values)) for end in sharp.bracket(stack.placement)]


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_predictions_lie_in_the_bracket(placement):
    """Over n, V, σ_e and L; the lower end times 1.2 or the upper end over 1.2 would be left by some."""
    ratios = []
    for tokens in (1, 64):
        for vocab in (2, 1000):
            for scale in (0.1, 4.0):
                for depth in (1, 40):
                    stack = Stack(
                        placement=placement, width=256, depth=depth, tokens=tokens, vocab=vocab, output_scale=scale
                    )
                    low, high = limits(stack)
                    found = predict(stack)["grad_sq_W2"][-1] / stack.width
                    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9), stack
                    ratios.append((found / low, high / found))
    closest = np.min(ratios, axis=0)
    assert closest[0] < 1.2
    assert closest[1] < (1.2 if placement == "post" else 3)


def test_the_orders():
    """Both ends are free of d after division by d; Pre-LN's fall like 1/L, Post-LN's do not."""
    for end in sharp.bracket("post"):
        assert not end.has(L)
    for end in sharp.bracket("pre"):
        limit = sp.limit(end * L, L, sp.oo)
        assert limit.is_finite
        assert limit.subs({V: 10, n: 2, sigma_e: 1}) > 0


def test_large_vocabulary():
    stack = Stack(width=512, depth=30, vocab=10**6, tokens=8)
    assert sp.limit(sharp.bracket("post")[0], sharp.V, sp.oo).subs({sigma_e: 1, n: 8}) == sp.Rational(1, 24)
    assert predict(stack)["grad_sq_W2"][-1] / 512 == pytest.approx(1 / 24, rel=1e-3)


def test_one_token_is_exact_at_small_width():
    """5000 draws, 4.5 standard errors, false alarm 7e-6; large-width theory is told apart."""
    stack = Stack(width=8, depth=2, tokens=1, vocab=16)
    values = sample(stack, draws=5000, seed=2)["grad_sq_W2"][:, -1].astype(float)
    assert abs(values.mean() - one_token_mean(stack)) < 4.5 * stats.sem(values)
    assert abs(values.mean() - predict(stack)["grad_sq_W2"][-1]) > 4.5 * stats.sem(values)


def test_one_token_has_the_derived_correction():
    stack = Stack(width=4096, depth=1, tokens=1, vocab=10)
    relative = one_token_mean(stack) / predict(stack)["grad_sq_W2"][-1] - 1
    assert 4096 * relative == pytest.approx(float(coefficients().last["grad_sq_W2"]), abs=0.01)


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
