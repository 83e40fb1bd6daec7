"""The chain of inequalities in the proof of Theorem 1, with the factor that each inequality loses.

The factors are computed in symbols and for every sampled network.

With h_i = ReLU(x W1) in the last layer, J_i the Jacobian of the last LayerNorm, g_i = ∂L_i/∂x_out,i, and RMS over the
positions, s0 ≤ s1 ≤ s2 ≤ s3 and s5 ≤ s6 always, s3 ≤ s4 and s4 ≤ s5 on events whose probability the proof bounds.
Source: Xiong et al. (2020), proof of Theorem 1, appendix E; the positions are made explicit here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from theory.mean_field.kernels import Array
from theory.paper.lemmas import L, d, n, relu_energy
from theory.paper.sharp import confidence, energy_range, own_gradient
from theory.paper.theorem1 import (
    ALPHA,
    B,
    V,
    bound,
    bound_value,
    entry_threshold,
    loss_gradient_bound,
    low_energy,
    margin,
)
from theory.stack import Placement, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One inequality in the proof of Theorem 1, which replaces a quantity by a larger one.

    It leads from s_{k−1} to s_k.

    Attributes:
        name: short name of the replacement.
        quantity: s_k in LaTeX.
        sure: whether s_k ≥ s_{k−1} always, or only with the probability that the proof allows.
        meaning: the loss of the step, in words.
    """

    name: str
    quantity: str
    sure: bool
    meaning: str


STEPS: tuple[Step, ...] = (
    Step(
        name="mean over positions",
        quantity=r"\mathrm{RMS}_i \|h_i\| \|J_i^\top g_i\|",
        sure=True,
        meaning="the norm of a mean over n positions by their root mean square: gradients of different positions are "
        "nearly uncorrelated, so sqrt(n) at large V",
    ),
    Step(
        name="LayerNorm by its norm",
        quantity=r"\mathrm{RMS}_i \|h_i\| \|J_i\|_2 \|g_i\|",
        sure=True,
        meaning="||J^T g|| by ||J||_2 ||g||: almost nothing, since J is a multiple of a projector off two directions",
    ),
    Step(
        name="entry by row",
        quantity=r"\sqrt{d}\,\mathrm{RMS}_i \|h_i\| \|J_i\|_2 \|g_i\|",
        sure=True,
        meaning="every entry of a row of a rank-one matrix by the whole row: sqrt(d)",
    ),
    Step(
        name="hidden units by their largest",
        quantity=r"d \sqrt{2 \ln 100 d}\,\mathrm{RMS}_i \|J_i\|_2 \|g_i\|",
        sure=False,
        meaning="the mean square of d hidden units, 1/2, by the largest square, 2 ln(100 d)",
    ),
    Step(
        name="LayerNorm's input by its low tail",
        quantity=r"d \sqrt{2 \ln 100 d}\,\sqrt{d/(\alpha_0 E_{low})}\,\mathrm{RMS}_i \|g_i\|",
        sure=False,
        meaning="the energy before the last LayerNorm by a tenth of Lemma 2's lower bound",
    ),
    Step(
        name="loss gradient by its supremum",
        quantity=r"B\,d \sqrt{2 \ln 100 d}\,\sqrt{d/(\alpha_0 E_{low})}",
        sure=True,
        meaning="||g_i|| by sqrt(2) ||W_emb||_2",
    ),
)


def chain(
    stack: Stack, values: Mapping[str, NDArray[np.floating]], head_norm: NDArray[np.floating] | None = None
) -> Array:
    """Return the seven quantities of Theorem 1's proof, from the gradient norm to the bound.

    They are s0 .. s6, (7, ...), for samples or for a prediction, whose entries are then root mean squares.

    s6 is Theorem 1's bound.

    Args:
        stack: the network.
        values: samples or predictions, by name of the quantity.
        head_norm: ‖W_emb‖₂ of each sample; None for the tail bound on it.
    """
    entries = 2.0 * np.log(100.0 * stack.width)
    jacobian_sq = 1.0 / (float(ALPHA) * float(low_energy(stack.placement).subs({d: 1, L: stack.depth})))
    last = np.asarray(values["grad_sq_W2"])[..., -1].astype(float)
    arrays = {name: np.asarray(values[name], dtype=float) for name in _NAMES}
    bound = np.broadcast_to(bound_value(stack, head_norm).value, last.shape)
    width = float(stack.width)
    squares = [
        last,
        arrays["chain_positions_sq"],
        arrays["chain_jacobian_sq"],
        width * arrays["chain_jacobian_sq"],
        width**2 * entries * arrays["loss_through_norm_sq"],
        width**2 * entries * jacobian_sq * arrays["loss_gradient_sq"],
    ]
    return np.stack([*(np.sqrt(s) for s in squares), bound])


_NAMES = ("chain_positions_sq", "chain_jacobian_sq", "loss_through_norm_sq", "loss_gradient_sq")


def factors(placement: Placement) -> list[sp.Expr]:
    """Return the factor that each of the six inequalities in Theorem 1's proof loses at large width, in symbols.

    They are s_k/s_{k−1}, k = 1..6, in d, L, n, V, σ_e, and P = E‖p‖², the largest for given n and L.

    Step 1 is at large V, where it is largest. Step 5 takes the largest energy that Lemma 2 allows.

    >>> factors("post")[:5]
    [sqrt(n), 1, sqrt(d), 2*sqrt(log(100*d)), sqrt(10)]
    """
    hidden = d * relu_energy(sp.Integer(1), sp.Integer(1))
    largest = energy_range(placement)[1]
    return [
        sp.sqrt(n),
        sp.Integer(1),
        sp.sqrt(d),
        sp.sqrt(d * entry_threshold() / hidden),
        sp.sqrt(sp.simplify(largest * d / (ALPHA * low_energy(placement)))),
        sp.simplify(loss_gradient_bound() / sp.sqrt(own_gradient())),
    ]


@cache  # limits take sympy a second, and a run has several series
def growth(placement: Placement) -> tuple[sp.Expr, ...]:
    """Return, for each inequality in Theorem 1's proof, the power of the width d with which its loss grows.

    It is lim ln(factor)/ln d as d → ∞ at fixed V/d.

    >>> growth("pre")
    (0, 0, 1/2, 0, 0, 0)
    """
    ratio = sp.Symbol("v", positive=True)
    fixed = {V: ratio * d, margin: 1, confidence: 1 / (ratio * d)}
    return tuple(sp.limit(sp.log(factor.subs(fixed)) / sp.log(d), d, sp.oo) for factor in factors(placement))


def product_of_factors(placement: Placement) -> sp.Expr:
    """Return the product of the six lost factors, divided by the bound's total loss: 1 if none is missing.

    The total loss is (bound / root mean square of the gradient norm at large d and V).

    >>> product_of_factors("post")
    1
    """
    mean_square = d * relu_energy(sp.Integer(1), sp.Integer(1)) * own_gradient() / (n * energy_range(placement)[1])
    loose = bound(placement).subs(B, loss_gradient_bound()) / sp.sqrt(mean_square)
    return sp.simplify(sp.Mul(*factors(placement)) / loose)
