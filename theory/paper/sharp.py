"""Theorem 1 made sharp: ‖∂L/∂W^{2,L}‖_F is Θ(√d) for Post-LN and Θ(√(d/L)) for Pre-LN, with constants.

As d → ∞ at fixed n, L, V and σ_e,

    E‖∂L/∂W^{2,L}‖_F² / d → (1/q) Σ_ij H_ij G_ij,

with H_ij = κ₀(ρ_ij) the kernel of the hidden units, G the gradient kernel at the last LayerNorm's output, and q the
energy that LayerNorm divides by: 3/2, or q_L of Pre-LN. Independent inputs keep ρ_ij ≥ 0, so 0 ≤ H_ij ≤ H_ii = 1/2 and
0 ≤ G_ij for i ≠ j: leaving the off-diagonal terms out, or completing them, brackets the limit. Proved in
docs/sharp_theorem.md.
"""

import numpy as np
import sympy as sp
from scipy import integrate

from theory.mean_field.concentration import hidden_energy_law
from theory.mean_field.gaussian import softmax_overlap
from theory.paper.lemmas import L, d, layer, n, post_ln_energies, pre_ln_band, relu_energy
from theory.paper.theorem1 import V, sigma_e
from theory.stack import Placement, Stack

confidence = sp.Symbol("P", positive=True)
"""E‖p‖² of a position's softmax p, between 1/V and 1."""


def own_gradient() -> sp.Expr:
    """E‖∂L_i/∂x_out,i‖² = σ_e² E‖p − e_y‖² for a label independent of the logits, at large width.

    ‖p − e_y‖² = ‖p‖² − 2 p_y + 1, and E p_y = 1/V.

    >>> own_gradient()
    sigma_e**2*(P + 1 - 2/V)
    """
    label = 1 / V
    return sigma_e**2 * (confidence - 2 * label + 1)


def shared_gradient() -> sp.Expr:
    """The largest E⟨∂L_i/∂x_out,i, ∂L_j/∂x_out,j⟩ of two positions: σ_e² (E‖p‖² − 1/V), for identical tokens.

    E p_i·p_j ≤ E‖p‖² by Cauchy and Schwarz; the three terms with a label give −1/V together. For ρ_ij ≥ 0 it is at
    least 0: given what the logits share the two are independent, so E p_i·p_j = Σ_v E[E[p_v | shared]²] ≥ 1/V.

    >>> shared_gradient()
    sigma_e**2*(P - 1/V)
    """
    return sigma_e**2 * (confidence - 2 / V + 1 / V)


def energy_range(placement: Placement) -> tuple[sp.Expr, sp.Expr]:
    """Least and largest energy per coordinate before the last LayerNorm (Lemma 2)."""
    if placement == "post":
        energy = sp.simplify(post_ln_energies()[1] / d)
        return energy, energy
    low, high = (sp.simplify(bound.subs(layer, L) / d) for bound in pre_ln_band())
    return low, high


def bracket(placement: Placement) -> tuple[sp.Expr, sp.Expr]:
    """Bounds on lim E‖∂L/∂W^{2,L}‖_F²/d that hold for every n, L, V ≥ 2 and σ_e.

    >>> bracket("post")[0]
    sigma_e**2*(V - 1)/(3*V*n)
    >>> bracket("pre")[1]
    sigma_e**2*(V - 1)*(n + 1)/(V*n*(L + 2))
    """
    least, largest = energy_range(placement)
    hidden = relu_energy(sp.Integer(1), sp.Integer(1))
    low = hidden * n * own_gradient().subs(confidence, 1 / V) / n**2 / largest
    high = hidden * (n * own_gradient() + n * (n - 1) * shared_gradient()).subs(confidence, 1) / n**2 / least
    return sp.factor(low), sp.factor(high)


def one_token_mean(stack: Stack) -> float:
    """E‖∂L/∂W^{2,L}‖_F² of a Post-LN stack with one token, exact at every width, depth, V and σ_e.

    ‖∂L/∂W^{2,L}‖_F² = ‖h‖² (d/‖y‖²) ‖P g‖², with y the centred x5 and P the projector off 1 and y. W_emb off those two
    directions is independent of the logits, so E‖P g‖² = (1 − 2/d) σ_e² E‖p − e_y‖². Given S = ‖h‖²/d, ‖y‖²/S is
    noncentral chi-square with d − 1 degrees of freedom and noncentrality d/S, since x3 is centred and of norm √d.

    Raises:
        ValueError: the stack is not Post-LN with one token and a width of at least 4: at 3 the mean is infinite, at 2
            all is 0.
    """
    if stack.placement != "post" or stack.tokens != 1 or stack.width < 4 or stack.relaxed:
        raise ValueError(
            f"stack must be Post-LN in the paper's setting with tokens 1 and width at least 4, got "
            f"{stack.non_default()}."
        )
    width, vocab = stack.width, stack.vocab
    shares, weights = hidden_energy_law(width)
    inverse = np.array([_inverse_moment(width - 1, width / share) for share in shares])
    loss = stack.output_scale**2 * (1 - 2 / vocab + softmax_overlap(1.0, stack.output_scale, vocab))
    return float(width * (width * inverse @ weights) * loss * (1 - 2 / width))


def _inverse_moment(freedom: int, noncentrality: float) -> float:
    """E[1/X] of a noncentral chi-square: ½ ∫₀¹ t^(k/2 − 2) exp(λ (t − 1)/2) dt."""
    # With t = exp(−v/c) the integrand is smooth and of scale 1 whatever k and λ.
    rate = freedom / 2 - 1
    scale = rate + noncentrality / 2

    def integrand(v: float) -> float:
        return float(np.exp(-rate * v / scale + noncentrality * np.expm1(-v / scale) / 2))

    return float(integrate.quad(integrand, 0, np.inf, epsabs=0, epsrel=1e-9)[0]) / (2 * scale)
