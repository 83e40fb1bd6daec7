"""Derive in sympy how gradient norms depend on the layer number as the network's depth grows.

Appendix F of Xiong et al. (2020) has a factor (2/3)^((L−l)/2) in Post-LN (F1) and independence of l in Pre-LN (F2).
Both leave the branches out. Here the recursion of `theory.mean_field.recursion` is expanded where tokens have
aligned, with the factors of `theory.paper.branch_kernels` for ReLU and gains of 1.
"""

import sympy as sp

from theory.paper import branch_kernels
from theory.paper.branch_kernels import RELU
from theory.paper.lemmas import attention, d, layer, pre_ln_energy


def post_alignment_rate() -> sp.Expr:
    """Return the factor by which a Post-LN layer reduces the gap 1 − c of two nearly equal tokens: 1/2.

    It is the limit of (1 − c')/(1 − c) for correlations c → 1: every layer halves the gap, for every number of tokens
    n.

    >>> post_alignment_rate()
    1/2
    """
    return branch_kernels.gap_factor(gated=False).subs(RELU)


def post_gradient_factor() -> sp.Expr:
    """Return the factor by which the squared gradient changes per Post-LN layer, once all tokens are equal: 1.

    The squared gradient is the summed gradient kernel Σ_ij G_ij. Each LayerNorm divides by the squared activation of
    its residual sum, 1 + b, and each residual sum returns 1 + b.

    >>> post_gradient_factor()
    1
    """
    return branch_kernels.exact_factor("relu", gated=False) ** 2


def printed_gradient_factor() -> sp.Expr:
    """Return the factor by which the squared gradient changes per Post-LN layer in the paper's appendix F: 2/3.

    The appendix leaves out the gradient that returns through the MLP.

    Appendix F also takes attention to be neutral. Its (2/3)^((L−l)/2) has the root of this factor per layer.

    >>> printed_gradient_factor()
    2/3
    """
    return 1 / (1 + RELU[branch_kernels.mean_square])


def pre_energy_slope() -> sp.Expr:
    """Return the mean squared activation that a Pre-LN layer adds, once all tokens are equal: 1 + 1/2.

    Attention adds 1, and the ReLU MLP 1/2.

    >>> pre_energy_slope()
    3/2
    """
    return sp.diff(pre_ln_energy() / d, layer).subs(attention, 1)


def pre_alignment_exponent() -> sp.Expr:
    """Return the power of the layer number with which two tokens' gap 1 − c falls in Pre-LN: −2/3.

    Here c is the tokens' correlation after layer l.

    Attention adds the same to every entry of the kernel, so the unnormalized gap u = q (1 − c) grows only by the MLP,
    by κ₀'(1) u/q per layer, with q ≈ 3 l/2: u' = a u/l has the solution l^a.

    >>> pre_alignment_exponent()
    -2/3
    """
    return RELU[branch_kernels.slope_square] / pre_energy_slope() - 1


def pre_gradient_exponent() -> sp.Expr:
    """Return the power of the layer number l with which the squared gradient of W2 falls in Pre-LN: −1.

    It is the exponent of E‖∂L/∂W^{2,l}‖², so the exponent of the norm is −1/2.

    Downward, Σ_ij G_ij grows by (1 + κ₁(1))/q per layer: attention returns the sum, ReLU half of it, both divided by
    the squared activation of the stream, as LayerNorm does. The hidden kernel is constant.

    >>> pre_gradient_exponent()
    -1
    """
    return -(1 + RELU[branch_kernels.slope_square]) / pre_energy_slope()


def pre_gradient_at_depth() -> sp.Expr:
    """Return the squared gradient of W2 in a Pre-LN layer, divided by the squared loss gradient, in symbols.

    For one token, the depth L cancels in it.

    The final norm divides by q_L, and every layer returns what it adds, G_{k−1} = G_k q_k/q_{k−1}, so that G_l is the
    loss gradient's divided by q_l. The exponent of the norm in L is 0 for a fixed layer, and −1/2 for the last one.

    >>> pre_gradient_at_depth()
    1/(3*l + 2)
    """
    last, step = sp.Symbol("L", integer=True, positive=True), sp.Symbol("k", integer=True, positive=True)
    at = sp.Symbol("l", integer=True, positive=True)
    energy = 1 + pre_energy_slope() * at
    ratio = (energy / energy.subs(at, at - 1)).subs(at, step)
    returned = sp.product(ratio, (step, at + 1, last))
    square = RELU[branch_kernels.mean_square] * returned / energy.subs(at, last)
    return sp.simplify(sp.expand_func(sp.gammasimp(square)))
