"""What sympy derives, and the chain of the proof: against the paper's words, every draw, and planted errors."""

import numpy as np
import pytest
import sympy as sp
from scipy import stats

from checks.stacks.exponents import looseness_exponent
from checks.stacks.theorem1 import chain_kept, chain_table, factor_exponents
from simulate import Samples, sample
from theory import Stack, predict
from theory.paper import layer_norm, lemmas, proof_chain as slack, theorem1
from theory.paper.lemmas import d
from theory.paper.proof_chain import STEPS, chain
from theory.paper.theorem1 import bound_value


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_symbols(placement):
    assert slack.product_of_factors(placement) == 1
    assert slack.growth(placement) == (0, 0, sp.Rational(1, 2), 0, 0, 0)
    assert len(slack.factors(placement)) == len(STEPS) == 6
    assert sp.limit(slack.factors(placement)[3] / sp.sqrt(sp.log(d)), d, sp.oo) == 2


@pytest.fixture(scope="module", params=["post", "pre"])
def cells(request):
    return [
        sample(Stack(placement=request.param, width=width, depth=4, tokens=4, vocab=width), draws=64, seed=1)
        for width in (16, 64, 256)
    ]


def test_every_draw(cells):
    """Sure steps grow in every draw, and the factors multiply to bound over norm."""
    for s in cells:
        steps = chain(s.stack, s, s.get("head_norm"))
        assert steps.shape == (7, s.draws)
        for k, step in enumerate(STEPS):
            if step.sure:
                assert (steps[k + 1] >= steps[k] * (1 - 1e-5)).all(), step.name
        product = np.prod(steps[1:] / steps[:-1], axis=0)
        np.testing.assert_allclose(product, steps[-1] / steps[0], rtol=1e-10)
        np.testing.assert_allclose(steps[0] ** 2, s["grad_sq_W2"][:, -1], rtol=1e-6)


def test_predicted_factors_are_those_of_samples():
    """Root mean squares at d = 512; every ratio within 4%, and the measured growth of step 3 is exactly √d."""
    stack = Stack(width=512, depth=4, tokens=4, vocab=512)
    measured = np.sqrt((chain(stack, sample(stack, draws=192, seed=2)) ** 2).mean(1))
    predicted = chain(stack, predict(stack))
    np.testing.assert_allclose(measured[1:] / measured[:-1], predicted[1:] / predicted[:-1], rtol=0.04)
    assert measured[3] / measured[2] == pytest.approx(np.sqrt(512))
    symbols = {sp.Symbol("d", positive=True): 512}
    assert predicted[4] / predicted[3] == pytest.approx(float(slack.factors("post")[3].subs(symbols)))


def test_exponents_of_the_factors(cells):
    """Step 3 is √d exactly; the others stay near the limits that the symbols have, 2 √(ln 100d) above its own."""
    found = factor_exponents(cells)
    assert found[2] == pytest.approx(0.5, abs=1e-6)
    logarithm = np.log(np.log(25600) / np.log(1600)) / 2 / np.log(16)
    assert found[3] == pytest.approx(logarithm, abs=0.03)
    assert np.sum(found) == pytest.approx(
        np.polyfit(np.log([16, 64, 256]), np.log([ratio(s) for s in cells]), 1)[0], abs=1e-9
    )


def test_the_exponents_stand_beside_their_limits(cells):
    (row,) = looseness_exponent(cells)
    assert "the proof's six factors grow like d^a with a = " in str(row.note)
    assert "0.500" in str(row.note)
    assert "whose limits are 0, 0, 1/2, 0, 0, 0" in str(row.note)


def ratio(s):
    steps = np.sqrt((chain(s.stack, s, s.get("head_norm")) ** 2).mean(1))
    return steps[-1] / steps[0]


def altered(s, **factors):
    return Samples(s.cell, s.seeds, {name: s[name] * factors.get(name, 1.0) for name in s})


def test_verdicts_and_planted_errors(cells):
    sure, probable = chain_kept(cells)
    assert (sure.verdict, probable.verdict) == ("holds", "undecided"), "192 draws cannot show less than 1%"
    assert chain_kept(cells * 2)[1].verdict == "holds"
    assert (sure.agreement, sure.measured) == ("agrees", 0.0)
    for name, factor in (("chain_positions_sq", 1e-2), ("chain_jacobian_sq", 0.5), ("loss_gradient_sq", 1e4)):
        broken = [altered(s, **{name: factor}) for s in cells]
        assert chain_kept(broken)[0].verdict == "fails", name
    broken = [altered(s, loss_through_norm_sq=1e-3) for s in cells]
    assert chain_kept(broken)[1].verdict == "fails"


def test_the_table_has_the_ends_of_every_series(cells):
    table = chain_table(cells)
    assert sorted(set(table["width"])) == [16, 256]
    assert list(table["step"])[:7] == list(range(7))
    assert (table["measured"] / table["predicted"])[table["width"] == 256].between(0.8, 1.25).all()
    older = [Samples(s.cell, s.seeds, {"grad_sq_W2": s["grad_sq_W2"]}) for s in cells]
    with pytest.raises(ValueError, match="^cells must have recorded the chain"):
        chain_table(older)


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
