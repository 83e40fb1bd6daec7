"""Derive in sympy how gradient norms depend on the layer number as the network's depth grows.

The derivations find fixed points, factors per layer and exponents of the recursion.

Appendix F of Xiong et al. (2020) has a factor (2/3)^((L−l)/2) in Post-LN (F1) and independence of l in Pre-LN (F2).
Both leave the branches out. Here the recursion of `theory.mean_field.recursion` is expanded where tokens have
aligned.
"""

import sympy as sp

from theory.paper.lemmas import n

gap = sp.Symbol("delta", positive=True)
"""The symbol for 1 − c, with c the correlation of two tokens."""

depth = sp.Symbol("l", positive=True)


def relu_kernel(correlation: sp.Expr) -> sp.Expr:
    """Return the mean product of ReLU at two correlated standard normal variables, in symbols.

    It is E[ReLU(u) ReLU(v)] as a function of the correlation.

    It is the expression of `theory.mean_field.gaussian.relu_kernel`.
    """
    return (sp.sqrt(1 - correlation**2) + correlation * (sp.pi - sp.acos(correlation))) / (2 * sp.pi)


def relu_slope_kernel(correlation: sp.Expr) -> sp.Expr:
    """Return the mean product of ReLU's derivative at two correlated standard normal variables, in symbols.

    It is E[ReLU'(u) ReLU'(v)], the derivative of `relu_kernel`.
    """
    return sp.simplify(sp.diff(relu_kernel(depth), depth)).subs(depth, correlation)


def post_layer_gap(at: sp.Expr = gap) -> sp.Expr:
    """Return the gap 1 − c after a Post-LN layer, for the correlation c of two tokens, from the gap before.

    Attention adds m = (1 + (n − 1) c)/n to every entry of the kernel, and the MLP adds its own kernel; LayerNorm
    divides by the diagonal.

    Args:
        at: 1 − c before the layer.
    """
    attended = at / (1 + ((1 + (n - 1) * (1 - at)) / n))
    return (attended + sp.Rational(1, 2) - relu_kernel(1 - attended)) / sp.Rational(3, 2)


def post_alignment_rate() -> sp.Expr:
    """Return the factor by which a Post-LN layer reduces the gap 1 − c of two nearly equal tokens: 1/2.

    It is the limit of (1 − c')/(1 − c) for correlations c → 1: every layer halves the gap, for every number of tokens
    n.

    >>> post_alignment_rate()
    1/2
    """
    return sp.limit(post_layer_gap() / gap, gap, 0, "+")


def post_gradient_factor() -> sp.Expr:
    """Return the factor by which the squared gradient changes per Post-LN layer, once all tokens are equal: 1.

    The squared gradient is the summed gradient kernel Σ_ij G_ij.

    Each LayerNorm divides by the squared activation of its residual sum, 1 + b, and each residual sum returns 1 + b.
    b is 1 for attention and 1/2 for the MLP, whose slope kernel has the same value at c = 1 as its kernel.

    >>> post_gradient_factor()
    1
    """
    attention, slope, kernel = sp.Integer(1), relu_slope_kernel(sp.Integer(1)), relu_kernel(sp.Integer(1))
    return sp.simplify((1 + attention) / (1 + attention) * (1 + slope) / (1 + kernel))


def printed_gradient_factor() -> sp.Expr:
    """Return the factor by which the squared gradient changes per Post-LN layer in the paper's appendix F: 2/3.

    The appendix leaves out the gradient that returns through the MLP.

    Appendix F also takes attention to be neutral. Its (2/3)^((L−l)/2) has the root of this factor per layer.

    >>> printed_gradient_factor()
    2/3
    """
    return 1 / (1 + relu_kernel(sp.Integer(1)))


def pre_energy_slope() -> sp.Expr:
    """Return the mean squared activation that a Pre-LN layer adds, once all tokens are equal: 1 + 1/2.

    Attention adds 1, and the ReLU MLP 1/2.

    >>> pre_energy_slope()
    3/2
    """
    return 1 + relu_kernel(sp.Integer(1))


def pre_alignment_exponent() -> sp.Expr:
    """Return the power of the layer number with which two tokens' gap 1 − c falls in Pre-LN: −2/3.

    Here c is the tokens' correlation after layer l.

    Attention adds the same to every entry of the kernel, so the unnormalized gap u = q (1 − c) grows only by the MLP,
    by 1/2 − κ₀(1 − u/q) ≈ u/(2 q) per layer, with q ≈ 3 l/2.

    >>> pre_alignment_exponent()
    -2/3
    """
    # κ₀'(1): the share of a small gap that passes ReLU.
    passed = sp.limit((sp.Rational(1, 2) - relu_kernel(1 - gap)) / gap, gap, 0, "+")
    return _exponent(passed / pre_energy_slope()) - 1


def pre_gradient_exponent() -> sp.Expr:
    """Return the power of the layer number l with which the squared gradient of W2 falls in Pre-LN: −1.

    It is the exponent of E‖∂L/∂W^{2,l}‖², so the exponent of the norm is −1/2.

    Downward, Σ_ij G_ij grows by (1 + κ₁(1))/q per layer: attention returns the sum, ReLU half of it, both divided by
    the squared activation of the stream, as LayerNorm does. The hidden kernel is constant.

    >>> pre_gradient_exponent()
    -1
    """
    return _exponent(-(1 + relu_slope_kernel(sp.Integer(1))) / pre_energy_slope())


def pre_gradient_at_depth() -> sp.Expr:
    """Return the squared gradient of W2 in a Pre-LN layer, divided by the squared loss gradient, in symbols.

    For one token, the depth L cancels in it.

    The final norm divides by q_L, and every layer returns what it adds, G_{k−1} = G_k q_k/q_{k−1}, so that G_l is the
    loss gradient's divided by q_l. The exponent of the norm in L is 0 for a fixed layer, and −1/2 for the last one.

    >>> pre_gradient_at_depth()
    1/(3*l + 2)
    """
    slope = pre_energy_slope()
    last, step = sp.Symbol("L", integer=True, positive=True), sp.Symbol("k", integer=True, positive=True)
    layer = sp.Symbol("l", integer=True, positive=True)

    def energy(at: sp.Expr) -> sp.Expr:
        return 1 + slope * at

    returned = sp.product(energy(step) / energy(step - 1), (step, layer + 1, last))
    square = relu_kernel(sp.Integer(1)) * returned / energy(last)
    return sp.simplify(sp.expand_func(sp.gammasimp(square).subs(layer, depth)))


def _exponent(rate: sp.Expr) -> sp.Expr:
    """Return the exponent a of u ~ l^a if u' = rate · u / l, by solving the equation."""
    u = sp.Function("u")
    solution = sp.dsolve(sp.Eq(u(depth).diff(depth), rate * u(depth) / depth), u(depth)).rhs
    return sp.simplify(depth * sp.diff(sp.log(solution), depth))
