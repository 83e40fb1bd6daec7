"""A sharp form of Theorem 1: both bounds on the last W2's gradient norm have the same powers of width and depth.

‖∂L/∂W^{2,L}‖_F is Θ(√d) for Post-LN and Θ(√(d/L)) for Pre-LN, with constants.

As d → ∞ at fixed n, L, V and σ_e,

    E‖∂L/∂W^{2,L}‖_F² / d → (1/q) Σ_ij H_ij G_ij,

with H_ij = κ₀(ρ_ij) the kernel of the hidden units, G the gradient kernel at the last LayerNorm's output, and q the
energy that LayerNorm divides by: 3/2, or q_L of Pre-LN. Independent inputs keep ρ_ij ≥ 0, so 0 ≤ H_ij ≤ H_ii = 1/2
and 0 ≤ G_ij for i ≠ j: leaving the off-diagonal terms out, or completing them, brackets the limit. Proved in
docs/theorem_1.md.
"""

import sympy as sp

from theory.paper.lemmas import L, d, layer, n, post_ln_energies, pre_ln_band, relu_energy
from theory.paper.theorem1 import V, sigma_e
from theory.stack import Placement

confidence = sp.Symbol("P", positive=True)
"""The symbol P for E‖p‖² of a position's softmax p, between 1/V and 1."""


def own_gradient() -> sp.Expr:
    """Return the mean squared gradient of the loss at one output token, at large width, in symbols.

    It is E‖∂L_i/∂x_out,i‖² = σ_e² E‖p − e_y‖² for a label independent of the logits.

    ‖p − e_y‖² = ‖p‖² − 2 p_y + 1, and E p_y = 1/V.

    >>> own_gradient()
    sigma_e**2*(P + 1 - 2/V)
    """
    return sigma_e**2 * (confidence - 2 / V + 1)


def shared_gradient() -> sp.Expr:
    """Return the largest mean inner product of the loss gradients at two output tokens, in symbols.

    It is E⟨∂L_i/∂x_out,i, ∂L_j/∂x_out,j⟩ = σ_e² (E‖p‖² − 1/V), which identical tokens attain.

    E p_i·p_j ≤ E‖p‖² by Cauchy-Schwarz; the three terms with a label give −1/V together. For ρ_ij ≥ 0 it is at least
    0: given the common part of the logits the two are independent, so E p_i·p_j = Σ_v E[E[p_v | shared]²] ≥ 1/V.

    >>> shared_gradient()
    sigma_e**2*(P - 1/V)
    """
    return sigma_e**2 * (confidence - 2 / V + 1 / V)


def energy_range(placement: Placement) -> tuple[sp.Expr, sp.Expr]:
    """Return the smallest and largest mean squared activation before the last LayerNorm, by Lemma 2."""
    if placement == "post":
        energy = sp.simplify(post_ln_energies()[1] / d)
        return energy, energy
    low, high = (sp.simplify(bound.subs(layer, L) / d) for bound in pre_ln_band())
    return low, high


def bracket(placement: Placement) -> tuple[sp.Expr, sp.Expr]:
    """Return a lower and an upper bound on the mean squared gradient of the last W2, divided by the width d.

    They bound lim E‖∂L/∂W^{2,L}‖_F²/d for every n, L, V ≥ 2 and σ_e.

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
