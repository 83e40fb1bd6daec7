"""The two-sided Theorem 1, and the exact mean of one token."""

import numpy as np
import pytest
import sympy as sp
from scipy import stats

from simulate import sample
from theory import Stack, predict
from theory.mean_field.finite_width import coefficients
from theory.paper import sharp
from theory.paper.lemmas import L, n
from theory.paper.theorem1 import V, sigma_e


def limits(stack):
    values = {V: stack.vocab, n: stack.tokens, L: stack.depth, sigma_e: stack.output_scale}
    return [float(end.subs(values)) for end in sharp.bracket(stack.placement)]


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_predictions_lie_in_the_bracket(placement):
    """Over n, V, σ_e and L; the lower end times 1.2 or the upper end over 1.2 would be left by some."""
    ratios = []
    for tokens in (1, 8, 64):
        for vocab in (2, 1000):
            for scale in (0.1, 1.0, 4.0):
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


@pytest.mark.parametrize("width", [8, 32])
def test_one_token_is_exact_at_every_width(width):
    """20000 draws, 4.5 standard errors, false alarm 7e-6; large-width theory is told apart at d = 8 and 32."""
    stack = Stack(width=width, depth=2, tokens=1, vocab=16)
    values = sample(stack, draws=20_000, seed=2)["grad_sq_W2"][:, -1].astype(float)
    exact = sharp.one_token_mean(stack)
    assert abs(values.mean() - exact) < 4.5 * stats.sem(values)
    assert abs(values.mean() - predict(stack)["grad_sq_W2"][-1]) > 4.5 * stats.sem(values)


def test_one_token_has_the_derived_correction():
    stack = Stack(width=4096, depth=1, tokens=1, vocab=10)
    relative = sharp.one_token_mean(stack) / predict(stack)["grad_sq_W2"][-1] - 1
    assert 4096 * relative == pytest.approx(float(coefficients().last["grad_sq_W2"]), abs=0.01)


def test_one_token_alone():
    for stack in (Stack(tokens=2), Stack(placement="pre", tokens=1), Stack(width=3, tokens=1)):
        with pytest.raises(ValueError, match="^stack must be Post-LN in the paper's setting with tokens 1"):
            sharp.one_token_mean(stack)
