"""What sympy derives, against the paper's words and against samples."""

import numpy as np
import pytest
import sympy as sp
from scipy import stats

from theory import Stack
from theory.paper import layer_norm, lemmas, theorem1
from theory.paper.theorem1 import bound_value


def row(size):
    return sp.Matrix(1, size, sp.symbols(f"x0:{size}", real=True))


def test_weight_expectation_is_the_gaussian_one():
    a, b, x = sp.symbols("a b x")
    assert lemmas.weight_expectation(3 + x * a + 2 * a**2 + a * b, [a, b], sp.Rational(1, 7)) == 3 + sp.Rational(2, 7)
    with pytest.raises(ValueError, match="^expression must have degree at most 2"):
        lemmas.weight_expectation(a**2 * b, [a, b], 1)


@pytest.fixture(scope="module")
def jacobian():
    x = row(3)
    return x, layer_norm.layer_norm_projector(x)


def test_lemma3_projector(jacobian):
    """J_LN = √d/‖y‖ times the orthogonal projector off 1 and y, for symbolic entries."""
    x, projector = jacobian
    size = x.cols
    centred = x - sp.ones(1, size) * (sum(x) / size)
    zero = sp.zeros(size, size)
    # Entries are rational: a common denominator decides, and is faster than a search for the simplest form.
    assert (projector - projector.T).applyfunc(sp.cancel) == zero
    assert (projector * projector - projector).applyfunc(sp.cancel) == zero
    assert (projector * sp.ones(size, 1)).applyfunc(sp.cancel) == sp.zeros(size, 1)
    assert (projector * centred.T).applyfunc(sp.cancel) == sp.zeros(size, 1)
    assert sp.cancel(projector.trace()) == size - 2


def test_lemma3_two_entries_have_no_gradient():
    assert sp.simplify(layer_norm.layer_norm_jacobian(row(2))) == sp.zeros(2, 2)


def test_lemma3_uncentred_form_is_unbounded():
    a = sp.Symbol("a", positive=True)
    noise = sp.Matrix([[1, 2, -3]])
    assert sp.limit(layer_norm.uncentred_ratio(noise, a), a, sp.oo) == sp.oo
    assert layer_norm.uncentred_ratio(noise, sp.Integer(0)) == 1


def test_theorem1_probability():
    assert theorem1.probability_value(0.1, 0.125) == pytest.approx(0.99 - 0.125 - 0.1)
    for arguments, message in (((0, 0.1), "^epsilon must be"), ((0.1, 2), "^delta must be a probability, got 2")):
        with pytest.raises(ValueError, match=message):
            theorem1.probability_value(*arguments)
    assert theorem1.entry_failure() <= sp.Rational(1, 100)
    u = np.linspace(0.01, 12, 500)
    assert (stats.norm.sf(u) <= np.exp(-(u**2) / 2) / 2).all()


def test_bound_in_numbers():
    stack = Stack(placement="pre", width=256, depth=4, vocab=64, output_scale=2.0)
    exact = bound_value(stack, head_norm=np.array([3.0, 6.0]))
    assert exact.value == pytest.approx(np.sqrt(2) * np.array([3, 6]) * 256 * np.sqrt(40 * np.log(25600) / 6))
    assert exact.output_failure == 0
    free = bound_value(stack)
    assert free.loss_gradient == pytest.approx(np.sqrt(2) * 2 * (1.5 + np.sqrt(2 * np.log(1000) / 256)))
    assert free.output_failure == theorem1.OUTPUT_FAILURE


def test_loss_gradient_bound_is_exceeded_no_more_often_than_it_says():
    """1000 spectral norms of W_emb/σ_e against the tail bound at three t; without the √(V/d) all would exceed it."""
    rng = np.random.default_rng(0)
    size, vocab = 64, 16
    norms = np.array([np.linalg.norm(rng.normal(0, size**-0.5, (vocab, size)), 2) for _ in range(1000)])
    for allowed in (0.9, 0.5, 0.1):
        t = np.sqrt(2 * np.log(1 / allowed) / size)
        values = {theorem1.d: size, theorem1.V: vocab, theorem1.sigma_e: 1, theorem1.margin: t}
        limit = float(theorem1.loss_gradient_bound().subs(values)) / np.sqrt(2)
        assert stats.binom(1000, allowed).sf(int((norms > limit).sum()) - 1) > 1e-5
        assert (norms > limit - np.sqrt(vocab / size)).mean() > allowed


@pytest.mark.parametrize("width", [4, 64])
def test_how_far_lemma3_is_off_is_a_mean_of_an_inverse_norm(width):
    """Offset √d E[1/χ] with d − 1 degrees of freedom, by quadrature of the law of χ."""
    inverse = stats.chi(width - 1).expect(lambda norm: 1 / norm)
    assert layer_norm.uncentred_ratio_mean(width, 50.0) == pytest.approx(50 * width**0.5 * inverse, rel=1e-6)
