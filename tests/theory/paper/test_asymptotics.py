"""Fixed points, rates and exponents over the layers: sympy's against the recursion run a thousand layers deep."""

import numpy as np
import pytest

from theory import Stack, predict
from theory.paper import asymptotics


@pytest.mark.parametrize("tokens", [2, 8, 64])
def test_post_alignment(tokens):
    """A layer halves 1 − c, up to O(√(1 − c))."""
    gap = 1 - (predict(Stack(depth=30, tokens=tokens))["token_correlation"] / 1.5)
    assert (gap[1:] / gap[:-1])[-3:] == pytest.approx(float(asymptotics.post_alignment_rate()), abs=0.01)


def test_post_profiles_are_flat():
    """Once tokens have aligned, W1's, W2's and WV's gradients and their sum do not change from layer to layer."""
    assert asymptotics.post_gradient_factor() == 1
    prediction = predict(Stack(depth=60, tokens=8, vocab=100))
    for name in ("grad_sq_W1", "grad_sq_W2", "grad_sq_WV"):
        values = prediction[name][20:]
        assert np.ptp(values) / values.mean() < 1e-3, name
    law = np.sqrt(float(asymptotics.printed_gradient_factor())) ** np.arange(60)
    assert law[-1] < 1e-5, "what appendix F has for the first layer"


def test_pre_exponents():
    """Local exponents between l = 1000 and 2000 of L = 4000: corrections fall like l^(−1/3), from √(1 − c)."""
    prediction = predict(Stack(placement="pre", depth=4000, tokens=8, vocab=100))
    energy, correlation = prediction["hidden_energy"], prediction["token_correlation"]
    assert energy[2000] - energy[1999] == pytest.approx(float(asymptotics.pre_energy_slope()), rel=0.01)

    def local(values):
        return np.log2(values[1999] / values[999])

    gap = 1 - correlation / energy
    assert local(gap) == pytest.approx(float(asymptotics.pre_alignment_exponent()), abs=0.04)
    for name in ("grad_sq_W1", "grad_sq_W2", "grad_sq_WV"):
        assert local(prediction[name]) == pytest.approx(float(asymptotics.pre_gradient_exponent()), abs=0.04), name
