"""Theorem 1 of the paper with all constants and its probability, as sympy expressions and as numbers.

The proof's chain, with α₀ = 1/10 and B ≥ sup‖∂L_i/∂x_out,i‖, replaces in ‖∂L/∂W^{2,L}‖_F
  every entry of a row by the whole row        factor √d,
  ‖h_i‖² by d · 2 ln(100 d)                    on the event E1, h_i the input of W2,
  ‖J_LN‖₂² by d / (α₀ E_low)                   on the event of Lemma 5, E_low Lemma 2's lower bound, and
  ‖∂L_i/∂x_out,i‖ by B.
Source: Xiong et al. (2020), arXiv:2002.04745v2, Theorem 1 and appendix E.
"""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import sympy as sp
from numpy.typing import NDArray
from scipy.special import ndtr

from theory.mean_field.concentration import excess_probability
from theory.paper.lemmas import L, a, d, layer, low_tail_bound, post_ln_energies, pre_ln_band, top
from theory.stack import PAPER, Placement, Stack, check_stack

B = sp.Symbol("B", positive=True)
V = sp.Symbol("V", positive=True)
sigma_e = sp.Symbol("sigma_e", positive=True)
epsilon = sp.Symbol("epsilon", positive=True)
delta = sp.Symbol("delta", positive=True)
margin = sp.Symbol("t", positive=True)

_numeric = cache(sp.lambdify)  # compiling takes milliseconds

ALPHA = sp.Rational(1, 10)
OUTPUT_FAILURE = 1e-3
"""The probability that ‖W_emb‖₂ may exceed the assumption of B if the matrix itself is not known."""


def entry_threshold() -> sp.Expr:
    """Return the bound on a squared hidden unit that Theorem 1's proof uses, at a network's width.

    It is 2 ln(100 d), which no squared entry of ReLU(x W1) exceeds on the event E1.

    >>> entry_threshold()
    2*log(100*d)
    """
    return 2 * sp.log(100 * d)


def entry_failure() -> sp.Expr:
    """Return an upper bound on the probability that some hidden unit exceeds its bound in Theorem 1's proof.

    It is the union bound over d entries on P[E1 fails] for one position, from P[N(0, 1) > u] ≤ exp(−u²/2)/2.

    >>> entry_failure()  # the proof allows 0.01
    1/200
    """
    return sp.simplify(d * sp.exp(-entry_threshold() / 2) / 2)


def entry_failure_value(width: int, entries: int | None = None) -> float:
    """Return the exact probability that some hidden unit exceeds its bound in Theorem 1's proof.

    It is P[E1 fails] = 1 − Φ(√(2 ln 100 d))^entries for independent N(0, 1) pre-activations.

    Args:
        width: d.
        entries: number of pre-activations; None for d.

    >>> round(entry_failure_value(512), 5)
    0.00082
    """
    tail = ndtr(-np.sqrt(2 * np.log(100.0 * width)))
    return float(-np.expm1((width if entries is None else entries) * np.log1p(-tail)))


@cache
def low_energy(placement: Placement) -> sp.Expr:
    """Return Lemma 2's lower bound on the mean squared length of a token before the last LayerNorm.

    It bounds E‖x‖² by 3d/2 for Post-LN and by (1 + L/2) d for Pre-LN.
    """
    return post_ln_energies()[1] if placement == "post" else pre_ln_band()[0].subs(layer, L)


@cache
def bound(placement: Placement) -> sp.Expr:
    """Return Theorem 1's bound on the gradient norm of the last W2 in symbols.

    It is assembled from the four replacements of the proof.

    >>> bound("pre")
    2*sqrt(10)*B*d*sqrt(log(100*d))/sqrt(L + 2)
    """
    rows, entries = d, d * entry_threshold()
    return sp.simplify(sp.sqrt(sp.factor(rows * entries * (d / (ALPHA * low_energy(placement))))) * B)


def low_tail() -> sp.Expr:
    """Return the proof's bound on the probability that a squared length is far below its mean.

    It bounds P[Y ≤ α₀ EY], from Lemma 5 at B = (1 + ε) EY and a = α₀ EY.

    >>> low_tail()
    epsilon/(epsilon + 9/10)
    """
    fraction = sp.fraction(sp.simplify(low_tail_bound(sp.Integer(1)).subs({top: 1 + epsilon, a: ALPHA})))
    leading = sp.Poly(fraction[1], epsilon).LC()  # so that it reads as the paper has it
    return (fraction[0] / leading) / sp.expand(fraction[1] / leading)


@cache
def probability() -> sp.Expr:
    """Return the probability that Theorem 1 states for its bound, in symbols.

    It is 0.99 − δ − ε/(0.9 + ε), assembled from E1, Y ≤ (1 + ε) EY, and `low_tail`.

    The proof has Y ≤ B only with probability 1 − δ, although Lemma 5 requires it always: see `theory.paper.low_tail`.

    >>> probability()
    -delta - epsilon/(epsilon + 9/10) + 99/100
    """
    return sp.Rational(99, 100) - delta - low_tail()


def probability_value(epsilon_value: float, delta_value: float) -> float:
    """Return the probability that Theorem 1 states for its bound, as a number of at most 0.99.

    Its arguments are ε and δ. Below 0 the theorem states nothing.

    Args:
        epsilon_value: ε.
        delta_value: δ.

    Raises:
        ValueError: ε is not positive, or δ is not a probability.

    >>> round(probability_value(0.1, 0.125), 3)  # what section 3.4 measures on the real model
    0.765
    """
    if not epsilon_value > 0:
        raise ValueError(f"epsilon must be a positive number, got {epsilon_value!r}.")
    if not 0 <= delta_value <= 1:
        raise ValueError(f"delta must be a probability, got {delta_value!r}.")
    return float(probability().subs({epsilon: epsilon_value, delta: delta_value}))


def allowed_failure(stack: Stack) -> float:
    """Return the share of random networks that Theorem 1 allows to exceed its bound.

    It is 0.01 + δ(ε) + ε/(0.9 + ε) at the best ε.

    δ(ε) is that of one token before the last LayerNorm: by its exact law for Post-LN, by a gamma law with the right
    mean and variance for Pre-LN. The theorem treats n positions like one.

    Args:
        stack: the network.

    Raises:
        ValueError: the stack is not in the paper's setting.

    >>> [round(allowed_failure(Stack(width=width)), 2) for width in (64, 512, 4096)]
    [0.3, 0.15, 0.07]
    """
    if not stack.in_paper:
        raise ValueError(f"Theorem 1 requires the paper's setting, got {stack.non_default()}.")
    depth = stack.depth if stack.placement == "pre" else 1  # the law of Post-LN is that of every layer
    return _allowed_failure(Stack(placement=stack.placement, tokens=1, width=stack.width, depth=depth))


@lru_cache(maxsize=256)
def _allowed_failure(token: Stack) -> float:
    # δ falls and the last term grows: one minimum, at a few standard deviations of ‖x‖² over its mean, and flat there.
    epsilons = np.geomspace(1.5, 8.0, 12) * token.width**-0.5
    return float(
        np.clip(
            1 - _numeric((epsilon, delta), probability())(epsilons, excess_probability(token, epsilons)), 0.0, 1.0
        ).min()
    )


def loss_gradient_bound() -> sp.Expr:
    """Return a bound on the loss gradient at an output token, for an unknown output matrix.

    It is B = √2 σ_e (1 + √(V/d) + t).

    It is below √2‖W_emb‖₂ with probability at most exp(−d t²/2). Softmax cross-entropy has ‖p − e_y‖ ≤ √2, and σ_max
    of a Gaussian matrix concentrates. Source: Vershynin (2018), High-Dimensional Probability, Theorem 7.3.1 and
    Gaussian concentration.
    """
    return sp.sqrt(2) * sigma_e * (1 + sp.sqrt(V / d) + margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The bound of Theorem 1 on the gradient norm of the last W2, as numbers.

    Attributes:
        value: the bound on ‖∂L/∂W^{2,L}‖_F; an array if `head_norm` was one.
        loss_gradient: B, the bound on ‖∂L_i/∂x_out,i‖.
        output_failure: probability that B itself is too small, to be added to the theorem's; 0 if W_emb was known.
        output_margin: the t in B; 0 if W_emb was known.
    """

    value: NDArray[np.float64]
    loss_gradient: NDArray[np.float64]
    output_failure: float
    output_margin: float


def bound_value(stack: Stack, head_norm: NDArray[np.floating] | float | None = None) -> Bound:
    """Return Theorem 1's bound on the gradient norm of the last feed-forward matrix, with all constants.

    The norm is ‖∂L/∂W^{2,L}‖_F.

    Args:
        stack: the network, in the paper's setting: its placement, sizes and output_scale are free.
        head_norm: ‖W_emb‖₂, the spectral norm of the output matrix: a number, or an array of any shape with one value
            per draw. None if the matrix is not known: then B follows from the distribution of W_emb.

    Returns:
        The bound, of a loss in nats, and the B in it, both of the shape of `head_norm`, () without it: B = √2‖W_emb‖₂,
        or √2 σ_e (1 + √(V/d) + t), which is too small with probability at most `output_failure`.

    Raises:
        ValueError: the placement is not one of the paper's, or another field leaves the paper's setting.

    Assumes, like the theorem, that the squared norm before the last LayerNorm is (ε, δ)-bounded. The bound then holds
    for one position with probability 0.99 − δ − ε/(0.9 + ε) (`probability_value`). Source: Xiong et al. (2020),
    arXiv:2002.04745v2, Theorem 1 and appendix E; for B, `loss_gradient_bound`.

    >>> round(float(bound_value(Stack(placement="pre", width=512, depth=12)).value))
    8723
    """
    check_stack(stack)
    if stack.placement not in PAPER:
        raise ValueError(f"placement must be {' or '.join(map(repr, PAPER))} for Theorem 1, got {stack.placement!r}.")
    if stack.relaxed:
        raise ValueError(f"Theorem 1 requires the paper's setting, got one with {stack.relaxed}.")
    if head_norm is None:
        t = float(np.sqrt(2.0 * np.log(1.0 / OUTPUT_FAILURE) / stack.width))
        gradient = _numeric((d, V, sigma_e, margin), loss_gradient_bound())(
            stack.width, stack.vocab, stack.output_scale, t
        )
        failure = OUTPUT_FAILURE
    else:
        gradient, failure, t = np.sqrt(2.0) * np.asarray(head_norm, dtype=float), 0.0, 0.0
    value = _numeric((d, L, B), bound(stack.placement))(stack.width, stack.depth, np.asarray(gradient))
    return Bound(value=np.asarray(value), loss_gradient=np.asarray(gradient), output_failure=failure, output_margin=t)
