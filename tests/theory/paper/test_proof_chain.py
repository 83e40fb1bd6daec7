"""The chain of the proof: symbols, every draw, and planted errors."""

import numpy as np
import pytest
import sympy as sp

from checks.stacks.exponents import looseness_exponent
from checks.stacks.proof_chain import chain_kept, chain_table, factor_exponents
from simulate import Samples, sample
from theory import Stack, predict
from theory.paper import proof_chain as slack
from theory.paper.lemmas import d
from theory.paper.proof_chain import STEPS, chain


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
