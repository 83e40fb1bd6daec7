"""What a causal mask gathers at the first tokens: eigenfunctions, the law beside groups of tokens, its power of L."""

from dataclasses import replace

import numpy as np
import pytest
import sympy as sp

from theory import Stack
from theory.mean_field.inputs import grouped_inputs
from theory.mean_field.recursion import gradients_from
from theory.mean_field.token_groups import token_groups
from theory.paper.first_tokens import first_token_growth

CAUSAL = Stack(placement="pre", depth=4, mask="causal", vocab=2)


def test_powers_are_eigenfunctions():
    """The double integral over later tokens of (i m)^(−1/2) (i/m)^(iω), by sympy; and that of 1/max(j, k) at j = k."""
    i, m, j, k, w = sp.symbols("i m j k omega", positive=True)
    power = i ** (-sp.Rational(1, 2) + sp.I * w) * m ** (-sp.Rational(1, 2) - sp.I * w)
    inner = sp.integrate(power / i, (i, j, sp.oo), conds="none")
    outer = sp.integrate(inner / m, (m, k, sp.oo), conds="none")
    expected = power.subs({i: j, m: k}) / (sp.Rational(1, 4) + w**2)
    assert sp.simplify(outer / expected) == 1
    twice = 2 * sp.integrate(sp.integrate(1 / (i * m**2), (i, 1, m)), (m, 1, sp.oo))
    spectral = sp.integrate((sp.Rational(1, 4) + w**2) ** -2, (w, -sp.oo, sp.oo)) / (2 * sp.pi)
    assert twice == sp.simplify(spectral) == 2


def _slope(depth, counts):
    """Of E‖∂L/∂W^V‖²/d over ln n between two numbers of tokens, by their groups, where each has a gradient of 1."""
    stack, values = replace(CAUSAL, depth=depth), []
    for count in counts:
        tokens = token_groups(count, causal=True)
        ones = np.eye(len(tokens.sizes))[None]
        arguments = (stack, tokens, grouped_inputs(stack, tokens), np.random.default_rng(0))
        values.append(float(gradients_from(*arguments, lambda _, ones=ones: ones)["grad_sq_WV"][0][0]) / stack.width)
    return (values[1] - values[0]) / np.log(counts[1] / counts[0])


@pytest.mark.parametrize(("depth", "counts"), [(1, (10**6, 10**8)), (2, (10**8, 10**10)), (4, (10**14, 10**18))])
def test_the_law_is_what_groups_of_tokens_have(depth, counts):
    """Within 2%, at lengths at which one more factor of 100 changes the slope by less."""
    found = first_token_growth(replace(CAUSAL, depth=depth))
    assert found == pytest.approx(_slope(depth, counts), rel=0.02)
    assert found != pytest.approx(_slope(depth, (10, 100)), rel=0.02) or depth == 1


def test_it_grows_like_the_square_of_the_depth():
    deep = [first_token_growth(replace(CAUSAL, depth=depth)) for depth in (1000, 2000, 4000)]
    exponents = np.diff(np.log(deep)) / np.log(2.0)
    assert (np.abs(exponents - 2.0) < 0.08).all()


@pytest.mark.parametrize("fields", [dict(placement="post"), dict(mask="none"), dict(query_key_scale=1.0)])
def test_other_networks_are_refused(fields):
    with pytest.raises(ValueError, match="stack must be the paper's Pre-LN with mask 'causal' alone"):
        first_token_growth(replace(CAUSAL, **fields))
