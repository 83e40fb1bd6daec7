"""What a causal mask gathers at the first tokens: eigenfunctions, the law beside groups of tokens, its power of L."""

from dataclasses import replace

import numpy as np
import pytest
import sympy as sp

from theory import Stack
from theory.mean_field.inputs import grouped_inputs
from theory.mean_field.recursion import gradients_from
from theory.mean_field.token_groups import token_groups
from theory.paper.first_tokens import eigenvalue, first_token_growth, share_alone

CAUSAL = Stack(placement="pre", depth=4, mask="causal", vocab=2)


def test_powers_are_eigenfunctions():
    """The derived λ(ω) beside sums over a million tokens; 1/max(j, k) by its spectrum once more gathered."""
    omega, found = 0.7, eigenvalue()
    first, step = 10**4, 100
    later = np.arange(first, 10**8, step, dtype=float)
    gathered = [step * (later ** (-1.5 + power)).sum() / first ** (-0.5 + power) for power in (1j * omega, -1j * omega)]
    (w,) = found.free_symbols
    assert abs(gathered[0] * gathered[1]) == pytest.approx(float(found.subs(w, omega)), rel=0.03)
    assert share_alone() == 1
    i, m = sp.symbols("i m", positive=True)
    twice = 2 * sp.integrate(sp.integrate(1 / (i * m**2), (i, 1, m)), (m, 1, sp.oo))
    spectral = sp.integrate((found**2).subs(w, sp.Symbol("v", real=True)), (sp.Symbol("v", real=True), -sp.oo, sp.oo))
    assert twice == sp.simplify(spectral / (2 * sp.pi)) == 2


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
