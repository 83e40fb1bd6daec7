"""Corrections of the gradients in Post-LN and Pre-LN for a finite width d, to first order in 1/d.

In Post-LN, from layer to layer the squared gradient is multiplied by a random factor R with E R = 1 + μ/d and
Var ln R = ν/d. Over many layers ln of the product is normal with variance ν (L − l)/d and mean (μ − ν/2)(L − l)/d, so
that the mean square grows like exp(μ (L − l)/d), although it is constant at large width.

The coefficients are those of one token (n = 1), where every factor is explicit. They hold for any n once the tokens
have aligned, as they do exponentially fast in Post-LN: then only the sum of the positions' gradients matters, and it
moves as the gradient of one token. In Pre-LN a branch is small compared with the residual stream, and the same sums
grow like ln L (`pre_norm`, one token). Derived in docs/finite_width.md.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import sympy as sp

from theory.coverage import require
from theory.mean_field.finite_width.branches import (
    BranchMoments,
    attention_branch,
    energy_variance,
    feed_forward_branch,
)
from theory.mean_field.finite_width.pre_norm import pre_coefficients
from theory.mean_field.kernels import Array
from theory.stack import Stack


def inverse_energy(branch: BranchMoments) -> sp.Expr:
    """Return the finite-width correction, times d, of the mean of d/‖y‖² for the residual sum y of a Post-LN layer.

    The correction is relative to 1/(1 + b), the value at infinite width, and y is centred. The mean of ‖y‖²/d is 1 + b
    − b/d, since the branch loses one dimension to centring. The variance of ‖y‖²/d is (4b + 2b² + ω)/d: from the cross
    term, the matrix, and the nonlinearity.
    """
    b = branch.energy
    return sp.simplify(b / (1 + b) + energy_variance(branch) / (1 + b) ** 2)


def backward_energy(branch: BranchMoments) -> sp.Expr:
    """Return the finite-width correction, times the width d, of the squared gradient below a Post-LN residual sum.

    The correction is relative to 1 + b, the value at infinite width. Only the component orthogonal to 1 and to x
    counts.

    u, the gradient at the sum, is orthogonal to 1 and to y, and otherwise uniform. Without its component along x, u
    loses b/((1 + b) d), since x makes an angle of cos² = 1/(1 + b) with y. The branch returns a matrix known on its
    input and fresh elsewhere. So two dimensions of d are lost to 1 and x. Where there is an inner nonlinearity, the
    known direction gives 1/((1 + b) d) and costs 1/d.
    """
    b = branch.energy
    stream = -b / (1 + b)
    return sp.simplify((stream + (1 / (1 + b) - 1 if branch.inner else sp.Integer(0)) - 2 * b) / (1 + b))


def mean_coefficient(branch: BranchMoments) -> sp.Expr:
    """Return μ for a Post-LN sub-layer that multiplies the squared gradient by a random factor with mean 1 + μ/d.

    >>> mean_coefficient(attention_branch()), mean_coefficient(feed_forward_branch())
    (3/4, 7/9)
    """
    return sp.simplify(inverse_energy(branch) + backward_energy(branch) - branch.shared / (1 + branch.energy) ** 2)


def log_variance_coefficient(branch: BranchMoments) -> sp.Expr:
    """Return ν for a sub-layer that multiplies the squared gradient by a random factor R with Var ln R = ν/d.

    ν comes from ‖y‖² below and the gradient's energy above, less what they share.

    >>> log_variance_coefficient(attention_branch()), log_variance_coefficient(feed_forward_branch())
    (3, 28/9)
    """
    return sp.simplify((2 * energy_variance(branch) - 2 * branch.shared) / (1 + branch.energy) ** 2)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The coefficients of 1/d in the finite-width corrections of the gradients of a Post-LN layer.

    Attributes:
        mean: μ of a whole layer.
        log_variance: ν of a whole layer.
        last: coefficients of grad_sq_W1, grad_sq_W2 and grad_sq_WV in the last layer.
    """

    mean: sp.Expr
    log_variance: sp.Expr
    last: dict[str, sp.Expr]


@lru_cache(maxsize=1)
def coefficients() -> Coefficients:
    """Return the coefficients of 1/d in the finite-width corrections of the gradients of a Post-LN layer.

    In the last layer the loss's gradient loses 2/d to the projector of LayerNorm, and ‖∂L/∂W2‖² = ‖h‖² ‖u‖² has
    h in ‖y‖² as well: Cov(‖h‖²/d, ‖y‖²/d) = ω/d. ‖∂L/∂W1‖² = d ‖v‖² with v the gradient at the pre-activations.

    >>> found = coefficients()
    >>> found.mean, found.log_variance, found.last["grad_sq_W2"]
    (55/36, 55/9, -5/3)
    """
    attention, ffn = attention_branch(), feed_forward_branch()
    b = ffn.energy
    head, inverse = sp.Integer(-2), inverse_energy(ffn)
    pre_activations = (1 / (1 + b) - 1) / b - ffn.shared / (b * (1 + b))
    return Coefficients(
        mean=mean_coefficient(attention) + mean_coefficient(ffn),
        log_variance=log_variance_coefficient(attention) + log_variance_coefficient(ffn),
        last={
            "grad_sq_W2": head + inverse - ffn.spread / (b * (1 + b)),
            "grad_sq_W1": head + inverse + pre_activations,
            "grad_sq_WV": head + mean_coefficient(ffn) + inverse_energy(attention),
        },
    )


def corrections(stack: Stack) -> dict[str, Array]:
    """Return the factors by which finite width changes the mean squared gradients of W1, W2 and W^V in each layer.

    Post-LN: exp((c + μ (L − l))/d) with c the last layer's coefficient. Neglects O(L/d²), O(n/d) of the layers in
    which the tokens have not aligned, and 1/(2d) of the first layer's WV, whose input is not normalized. Pre-LN, one
    token: exp(c_l/d), `theory.mean_field.finite_width.pre_norm`.

    Args:
        stack: the network.

    Raises:
        ValueError: the stack is neither Post-LN nor Pre-LN with one token, in the paper's setting.
    """
    require(stack, "finite_width")
    if stack.placement == "pre":
        return {name: np.exp(c / stack.width) for name, c in pre_coefficients(stack.depth).items()}
    expansion = coefficients()
    above = np.arange(stack.depth - 1, -1, -1.0)
    return {
        name: np.exp((float(c) + float(expansion.mean) * above) / stack.width) for name, c in expansion.last.items()
    }
