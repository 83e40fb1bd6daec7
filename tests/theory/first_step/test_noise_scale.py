"""The gradient noise scale: batches of other sizes, and networks."""

from dataclasses import replace

import numpy as np
import pytest

import gradbounds as gb
from theory import NoRuleError, Stack, predict
from theory.first_step.noise_scale import noise_scale

SMALL = Stack(width=512, depth=3, tokens=4, vocab=16)


@pytest.mark.parametrize("fields", [{}, {"placement": "pre", "mask": "causal", "label_smoothing": 0.1}])
def test_a_larger_batch(fields):
    """What one and two sequences say of eight, and that the noise scale halves the coherent share."""
    stack = replace(SMALL, **fields)
    found = noise_scale(replace(stack, sequences=3))
    one, eight = (predict(replace(stack, sequences=count))["grad_sq_W2"] for count in (1, 8))
    coherent = one / (1 + found.matrices["W2"])
    np.testing.assert_allclose(coherent + (one - coherent) / 8, eight, rtol=1e-6)
    assert np.isinf(found.matrices["WV"][0])
    assert np.isfinite(found.matrices["WV"][1:]).all()


def test_the_first_layer():
    """ReLU units of independent inputs have the mean product kappa(0) = 1/(2 pi): one layer, one token, two words.

    Forward, two sequences' outputs are correlated by kappa(0)/(3/2), so that the softmax p of two words is the logistic
    function of normals of variance 2 with that correlation; backward, one sequence has E|p - y|^2 and two have
    E p.p' - 1/2 beside kappa(1) = 1/2 and kappa(0).
    """
    stack = Stack(width=512, depth=1, tokens=1, vocab=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights /= weights.sum()
    overlap = 1 / (2 * np.pi)
    correlation = overlap / 1.5
    p = 1 / (1 + np.exp(-np.sqrt(2) * nodes))
    others = correlation * nodes[:, None] + np.sqrt(1 - correlation**2) * nodes
    mean = weights @ (p[:, None] / (1 + np.exp(-np.sqrt(2) * others))) @ weights
    single, product = 0.5 * (2 * weights @ p**2), overlap * (2 * mean - 0.5)
    scales = noise_scale(stack).matrices
    assert scales["W2"][0] == pytest.approx((single - product) / product, rel=1e-3)
    assert np.isinf([scales[role][0] for role in ("WV", "W1")]).all()
    odd = noise_scale(replace(SMALL, activation="tanh")).matrices
    assert np.isinf([odd[role][0] for role in ("WV", "W1", "W2")]).all()


def test_of_networks():
    """From squares at one and four sequences, within 4 standard errors: a false alarm once in 10^4 runs.

    Here one is 11% of the scale. A product that forgets the noise left in four sequences is seen, more than 100 off.
    """
    stack, draws = replace(SMALL, width=256, tokens=8), 400
    theory = noise_scale(stack).matrices["W2"][-1]
    one, four = (
        gb.sample(replace(stack, sequences=count), draws=draws, seed=count)["grad_sq_W2"][:, -1] for count in (1, 4)
    )
    single, errors = one.mean(), [one.std() / draws**0.5, four.std() / draws**0.5]
    for product, slopes, right in (
        ((4 * four.mean() - single) / 3, (1 / 3, -4 / 3), True),
        (four.mean(), (0, -1), False),
    ):
        own, other = slopes
        slope = np.array([1 / product + own * single / product**2, other * single / product**2])
        error = float(np.hypot(*(slope * errors)))
        assert error < 0.2 * theory
        assert (abs(single / product - 1 - theory) < 4 * error) == right, (single / product - 1, theory, error)


def test_random_queries():
    """Four sequences of sampled networks, every matrix within 5% or 4 standard errors: one false alarm in 10^3 runs."""
    stack, draws = Stack(width=256, depth=2, tokens=4, vocab=16, heads=8, query_key_scale=1.5, placement="post"), 200
    found = noise_scale(stack, patterns=64)
    sampled = gb.sample(replace(stack, sequences=4), draws=draws, seed=1)

    def differing(squares):
        names = []
        for role, expected in squares.items():
            values = sampled[f"grad_sq_{role}"]
            errors = 4 * values.std(0) / draws**0.5
            if (abs(values.mean(0) - expected) > np.maximum(errors, 0.05 * expected)).any():
                names.append(role)
        return names

    assert not differing(found.grad_sq(4))
    assert "W2" in differing(found.grad_sq(8))
    assert (found.product_sem["W2"] < 0.02 * found.single["W2"]).all()
    with pytest.raises(ValueError, match="^sequences must be an integer of at least 1, got 0"):
        found.grad_sq(0)
    with pytest.raises(ValueError, match="^patterns must be an integer of at least 2, got 1"):
        noise_scale(stack, patterns=1)


def test_what_is_sampled_is_refused():
    with pytest.raises(NoRuleError, match="noise scale"):
        noise_scale(replace(SMALL, embeddings="tied"))
