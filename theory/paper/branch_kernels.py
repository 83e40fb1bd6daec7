"""What feed-forward units do to a kernel and to the gradient's, in symbols, and the growth per layer that follows.

A branch that takes tokens of unit energy and correlation c to a kernel h(c) multiplies the gradient's kernel by h'(c):
Price's theorem, for plain and for gated units. docs/layer_growth.md has the theorem; `theory.paper.layer_growth` its
number for a Stack.
"""

import sympy as sp

correlation = sp.Symbol("c", real=True)
first_gain, second_gain = sp.symbols("g1 g2", positive=True)
"""Variance of an entry times d_in, of W1 (and WG) and of W2."""
mean_square, slope_square = sp.symbols("phi2 dphi2", positive=True)
"""E φ(√g1 u)² and g1 E φ'(√g1 u)², u standard normal."""


def feed_forward_kernels(*, gated: bool) -> tuple[sp.Expr, sp.Expr]:
    """(h(c), what the branch multiplies the gradient's kernel by at c), for an activation of kernel k(c).

    The second is put together from the backward pass: W2 returns g2; plain units pass k'(c), which is
    g1 E φ'φ' by Price's theorem; gated ones g1 k(c) by way of W1 and g1 c k'(c) by way of the gate.

    >>> h, returned = feed_forward_kernels(gated=True)
    >>> sp.simplify(sp.diff(h, correlation) - returned)
    0
    """
    kernel = sp.Function("k")(correlation)
    slope = sp.diff(kernel, correlation)
    if not gated:
        return second_gain * kernel, second_gain * slope
    value = second_gain * first_gain
    return value * correlation * kernel, value * kernel + value * correlation * slope


def aligned_factor(*, gated: bool) -> sp.Expr:
    """Factor on the norm of gradients per Post-LN layer towards the output, tokens aligned.

    >>> aligned_factor(gated=False)
    sqrt(g2*phi2 + 1)/sqrt(dphi2*g2 + 1)
    """
    k = sp.Function("k")(correlation)
    h, returned = (
        part.subs(sp.diff(k, correlation), slope_square).subs(k, mean_square).subs(correlation, 1)
        for part in feed_forward_kernels(gated=gated)
    )
    return sp.sqrt((1 + h) / (1 + returned))


def unit_moments(activation: str) -> tuple[sp.Expr, sp.Expr]:
    """E φ(u)² and E φ'(u)² of a standard normal u, exactly, for "relu", "gelu" and "identity".

    Raises:
        ValueError: the activation has no closed form here.

    >>> unit_moments("gelu")
    (sqrt(3)/(6*pi) + 1/3, 2*sqrt(3)/(9*pi) + 1/3)
    """
    if activation == "identity":
        return sp.Integer(1), sp.Integer(1)
    if activation == "relu":
        return sp.Rational(1, 2), sp.Rational(1, 2)
    if activation != "gelu":
        raise ValueError(f"activation must be relu, gelu or identity for exact moments, got {activation!r}.")
    # E Φ² = 1/3. By parts with N(0, 1)'s density f: E uΦf = 1/(4√3 π), E u²Φ² = E Φ² + 2 E uΦf, E u²f² = 1/(6√3 π).
    third, part = sp.Rational(1, 3), 1 / (4 * sp.sqrt(3) * sp.pi)
    return sp.radsimp(third + 2 * part), sp.radsimp(third + 2 * part + sp.Rational(2, 3) * part)


def exact_factor(activation: str, *, gated: bool) -> sp.Expr:
    """`aligned_factor` at gains 1 of an activation that `unit_moments` knows.

    >>> exact_factor("relu", gated=False), exact_factor("relu", gated=True)
    (1, sqrt(3)/2)
    """
    value, slope = unit_moments(activation)
    numbers = {first_gain: 1, second_gain: 1, mean_square: value, slope_square: slope}
    return sp.simplify(aligned_factor(gated=gated).subs(numbers))
