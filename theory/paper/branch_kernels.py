"""Derive in sympy how an MLP changes correlations of tokens and gradients, and the resulting growth per layer.

A branch that takes tokens of unit mean square and correlation c to a kernel h(c) multiplies the gradient kernel by
h'(c). This is Price's theorem, for plain and for gated MLPs. docs/theory.md has the theorem;
`theory.paper.layer_growth` computes its number for a Stack.
"""

import sympy as sp

correlation = sp.Symbol("c", real=True)
first_gain, second_gain = sp.symbols("g1 g2", positive=True)
"""The symbols for d_in times the variance of an entry of W1 (and WG), and of W2."""
attention_gain = sp.Symbol("g_A", positive=True)
"""The symbol for the gain of W^V times that of W^O."""
mean_square, slope_square = sp.symbols("phi2 dphi2", positive=True)
"""The symbols for E φ(√g1 u)² and g1 E φ'(√g1 u)², with u standard normal."""
_HALF = sp.Rational(1, 2)
RELU = {first_gain: 1, second_gain: 1, attention_gain: 1, mean_square: _HALF, slope_square: _HALF}
"""The numbers of ReLU at gains of 1."""


def feed_forward_kernels(*, gated: bool) -> tuple[sp.Expr, sp.Expr]:
    """Return how an MLP changes the correlation of two tokens, and the inner product of their gradients.

    It is the kernel h(c), and the factor on the gradient kernel at c, for an activation with kernel k(c).

    The second is put together from the backward pass: W2 returns g2; plain hidden units pass k'(c), which is g1 E
    φ'φ' by Price's theorem; gated ones pass g1 k(c) through W1 and g1 c k'(c) through the gate.

    Args:
        gated: whether the MLP is gated.

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
    """Return the factor by which gradient norms change per Post-LN layer towards the output, for equal tokens.

    Args:
        gated: whether the MLP is gated.

    >>> aligned_factor(gated=False)
    sqrt(g2*phi2 + 1)/sqrt(dphi2*g2 + 1)
    """
    k = sp.Function("k")(correlation)
    h, returned = (
        part.subs(sp.diff(k, correlation), slope_square).subs(k, mean_square).subs(correlation, 1)
        for part in feed_forward_kernels(gated=gated)
    )
    return sp.sqrt((1 + h) / (1 + returned))


def gap_factor(*, gated: bool) -> sp.Expr:
    """Return the factor by which a Post-LN layer multiplies the gap 1 − c of two nearly equal tokens.

    It is to first order in the gap.

    Attention is then uniform, and adds one vector of mean square g_A to every token.

    Args:
        gated: whether the MLP is gated.

    >>> gap_factor(gated=False)
    (dphi2*g2 + 1)/((g_A + 1)*(g2*phi2 + 1))
    """
    k = sp.Function("k")(correlation)
    h, slope = feed_forward_kernels(gated=gated)[0], sp.diff(k, correlation)
    attended = (correlation + attention_gain) / (1 + attention_gain)
    slopes = sp.diff(attended, correlation) * sp.diff(((correlation + h) / (1 + h.subs(correlation, 1))), correlation)
    aligned = slopes.subs(slope, slope_square).subs(k, mean_square).subs(correlation, 1)
    return sp.factor(aligned.doit().subs(sp.Function("k")(1), mean_square))


def query_energy() -> sp.Expr:
    """Return the squared gradient of W^Q for two nearly equal tokens under uniform attention, in symbols.

    The gap between the tokens is e, and the result is divided by the gains.

    With g the gradient at a head's output, the logits receive A_ij (g_i . v_j - sum_m A_im g_i . v_m), and W^Q
    receives sum_i x_i (sum_j of these k_j). Both sums are of differences of tokens. W^K is the same with x and k
    exchanged. `G` is the sum of all g_i . g_k.

    >>> query_energy()
    G*e**2/4
    """
    gap, total, alone = sp.symbols("e G G_11", positive=True)
    tokens, gradient = sp.Matrix([[1, 1 - gap], [1 - gap, 1]]), sp.Matrix([[alone, 0], [0, alone]])
    gradient[0, 1] = gradient[1, 0] = total / 2 - alone
    centred = (sp.eye(2) - sp.ones(2, 2) / 2) / 2
    differences = centred * tokens * centred.T
    energy = sum(
        tokens[i, k] * gradient[i, k] * tokens[j, m] * differences[j, m]
        for i in range(2) for k in range(2) for j in range(2) for m in range(2)
    )  # fmt: skip
    return sp.factor(sp.series(sp.expand(energy), gap, 0, 3).removeO())


def query_factor(*, gated: bool) -> sp.Expr:
    """Return the factor by which gradient norms of W^Q and W^K change per Post-LN layer towards the output.

    It holds for nearly equal tokens.

    These norms are proportional to the gap times the norm of the gradient above.

    Args:
        gated: whether the MLP is gated.

    >>> sp.simplify(query_factor(gated=False) * aligned_factor(gated=False) * (1 + attention_gain))
    1
    """
    return sp.simplify(aligned_factor(gated=gated) * gap_factor(gated=gated))


def unit_moments(activation: str) -> tuple[sp.Expr, sp.Expr]:
    """Return the exact mean squares of an activation function and its derivative at a standard normal input.

    They are E φ(u)² and E φ'(u)², for "relu", "gelu" and "identity".

    Args:
        activation: name of the activation.

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
    """Return the exact factor by which gradient norms change per Post-LN layer, for ReLU, GELU or the identity.

    Tokens are nearly equal, and the gains are 1.

    Args:
        activation: name of the activation, "relu", "gelu" or "identity".
        gated: whether the MLP is gated.

    >>> exact_factor("relu", gated=False), exact_factor("relu", gated=True)
    (1, sqrt(3)/2)
    """
    value, slope = unit_moments(activation)
    numbers = RELU | {mean_square: value, slope_square: slope}
    return sp.simplify(aligned_factor(gated=gated).subs(numbers))
