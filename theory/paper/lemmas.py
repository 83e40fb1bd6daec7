"""Derive Lemmas 1, 2 and 5 of the paper by sympy, from a density or from matrices with symbolic entries.

Nothing here is a restated result: each function integrates, differentiates or solves, and the tests compare what
comes out with the paper's words. Source of the statements: Xiong et al. (2020), arXiv:2002.04745v2, Lemmas 1, 2 and 5.
"""

from collections.abc import Iterable
from functools import cache

import sympy as sp

from theory.paper.layer_norm import row, squared_norm

d = sp.Symbol("d", positive=True)
L = sp.Symbol("L", integer=True, positive=True)
n = sp.Symbol("n", integer=True, positive=True)
layer = sp.Symbol("l", integer=True, nonnegative=True)
attention = sp.Symbol("m", nonnegative=True)
"""The symbol m for the energy per width that uniform attention adds in one layer, ||mean token||²/d.

It is in [0, 1] by `attention_gap`.
"""
a = sp.Symbol("a", real=True)
top = sp.Symbol("B", real=True)
"""The symbol B of Lemma 5, which Y does not exceed; the symbol `a` is the lemma's a."""


def relu_energy(width: sp.Expr, deviation: sp.Expr) -> sp.Expr:
    """Return the mean squared length of ReLU of a Gaussian vector, by integration.

    It is E‖ReLU(X)‖² for X ~ N(0, σ² I_width), by integrating the second moment of the half line.

    Source: Lemma 1, appendix B.

    >>> sigma = sp.Symbol("sigma", positive=True)
    >>> relu_energy(d, sigma)
    d*sigma**2/2
    """
    x = sp.Symbol("x", real=True)
    s = sp.Symbol("s", positive=True)
    density = sp.exp(-(x**2) / (2 * s**2)) / (sp.sqrt(2 * sp.pi) * s)
    return sp.simplify(width * sp.integrate(x**2 * density, (x, 0, sp.oo)).subs(s, deviation))


def weight_expectation(expression: sp.Expr, weights: Iterable[sp.Symbol], variance: sp.Expr) -> sp.Expr:
    """Return the expectation of a polynomial in independent weights with mean 0, of degree at most 2 in them.

    Args:
        expression: the polynomial.
        weights: symbols of the weights.
        variance: variance of a weight.

    Raises:
        ValueError: the polynomial has a higher degree, where second moments do not suffice.
    """
    polynomial = sp.Poly(sp.expand(expression), *weights)
    total: sp.Expr = sp.Integer(0)
    for powers, coefficient in polynomial.terms():
        if sum(powers) > 2:
            raise ValueError(f"expression must have degree at most 2 in the weights, got a term of powers {powers}.")
        if sum(powers) == 0:
            total += coefficient
        elif max(powers) == 2:
            total += coefficient * variance
    return sp.simplify(total)


def residual_energy_gap(width: int) -> sp.Expr:
    """Check an identity: a random branch adds its own mean squared length to that of the residual stream.

    The result is E_W‖x + hW‖² − ‖x‖² − ‖h‖² for symbolic x, h and W of N(0, 1/width) entries: zero.

    >>> residual_energy_gap(3)
    0
    """
    x, h = row("x", width), row("h", width)
    weights = sp.Matrix(width, width, lambda i, j: sp.Symbol(f"w{i}{j}", real=True))
    energy = weight_expectation(squared_norm(x + h * weights), list(weights), sp.Rational(1, width))
    return sp.simplify(energy - squared_norm(x) - squared_norm(h))


def attention_gap(tokens: int, width: int) -> sp.Expr:
    """Check an identity: tokens' mean squared length minus the mean token's is half their mean squared distance.

    The result is mean_i‖x_i‖² − ‖mean_i x_i‖² minus half the mean square distance between tokens: zero.

    So the mean token has at most the mean energy of the tokens, with equality only for identical tokens, and uniform
    attention adds between 0 and d.

    >>> attention_gap(3, 2)
    0
    """
    rows = [row(f"x{i}", width) for i in range(tokens)]
    mean = sum(rows, sp.zeros(1, width)) / tokens
    excess = sum(squared_norm(row) for row in rows) / tokens - squared_norm(mean)
    return sp.simplify(excess - (sum(squared_norm(a - b) for a in rows for b in rows) / (2 * tokens**2)))


@cache
def post_ln_energies() -> tuple[sp.Expr, sp.Expr]:
    """Return the mean squared lengths of a token after the two residual sums of a Post-LN layer.

    They are E‖x2‖² and E‖x5‖² for an input with energy d; attention adds the energy m d.

    LN leaves energy d (`layer_norm_energy`); a branch adds its own (`residual_energy_gap`); the ReLU branch has
    N(0, 1) pre-activations, since ‖x3‖² = d, and adds Lemma 1's d/2.
    Source: Lemma 2 and appendix C.

    >>> post_ln_energies()
    (d*(m + 1), 3*d/2)
    """
    return sp.factor(d + attention * d), d + relu_energy(d, sp.Integer(1))


@cache
def pre_ln_energy() -> sp.Expr:
    """Return the mean squared length of a token after l Pre-LN layers, from its recursion over the layers.

    Attention adds m d in each layer: q_{l+1} = q_l + m d + d/2 for E‖x‖².

    Source: Lemma 2, appendix C. The input, after no layers, has energy d.

    >>> pre_ln_energy()
    d*(2*l*m + l + 2)/2
    """
    q = sp.Function("q")
    step = attention * d + relu_energy(d, sp.Integer(1))
    return sp.factor(sp.rsolve(q(layer + 1) - q(layer) - step, q(layer), {q(0): d}))


@cache
def pre_ln_band() -> tuple[sp.Expr, sp.Expr]:
    """Return Lemma 2's lower and upper bound on the mean squared length of a token after l Pre-LN layers.

    In the lower bound attention adds nothing; in the upper bound all tokens are identical.

    >>> pre_ln_band()
    (d*(l + 2)/2, d*(3*l + 2)/2)
    """
    energy = pre_ln_energy()
    return sp.factor(energy.subs(attention, 0)), sp.factor(energy.subs(attention, 1))


def pre_ln_index_excess() -> sp.Expr:
    """Return by how much Lemma 2's lower bound exceeds the exact value at layer 1, divided by the width d.

    This is so if layers count from 1.

    The paper's x_l enters layer l, so it has passed l − 1 layers; its bound (1 + l/2) d counts l.

    >>> pre_ln_index_excess()
    1/2
    """
    lower, _ = pre_ln_band()
    return sp.simplify((lower.subs(layer, 1) - pre_ln_energy().subs(layer, 0)) / d)


def low_tail_bound(mean: sp.Expr, excess: sp.Expr = sp.S.Zero) -> sp.Expr:
    """Return an upper bound on the probability that a random variable Y is at most a.

    It is P[Y ≤ a] ≤ (E[B − Y] + E[(Y − B)₊])/(B − a) for a < B.

    It is Markov's inequality for (B − Y)₊ ≥ 0, with E[(B − Y)₊] = E[B − Y] + E[(Y − B)₊]. If Y ≤ B always, the second
    term is 0, which is Lemma 5.

    Args:
        mean: E Y.
        excess: E[(Y − B)₊].
    """
    return (top - mean + excess) / (top - a)
