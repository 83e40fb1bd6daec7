"""The mean of the Hessian over the output matrix: exactly 0 on all parameters below it, at every width.

A position's logits are z = x W, x (d,) the output of the last norm, W (d, V) the output matrix. Let the norm have no
ε, so that |x|² = d for all parameters θ below W, and let the law of W be the same as that of R W for every rotation R,
as a Gaussian's is. Then the law of z does not depend on θ. If labels do not depend on W, neither does E_W of the loss,
and all its derivatives in θ vanish: E_W of the Hessian's block of θ is 0.

Term by term, along a line θ + t v, with x' and x'' the derivatives at t = 0, p = softmax(z) and y the target, for W
with N(0, σ_e²/d) entries:

    v'Gv      = (x' W)(diag p − p pᵀ)(x' W)ᵀ,        mean  (σ_e²/d) |x'|² (1 − E Σ_k p_k²)
    radial    = −(|x'|²/d) (p − y)·z,                mean −(σ_e²/d) |x'|² (1 − E Σ_k p_k²)
    tangent   = (p − y)·(x'' W) − radial,            mean 0
    v'Hv      = v'Gv + radial + tangent,             mean 0

averaged over positions. |x|² = d twice derived is x·x'' = −|x'|²: the output is curved toward the centre of its sphere.
x' ⊥ x, and the part of x'' across x, give logits that are independent of z; Stein's lemma, E (p − y)·z =
σ_e² E Σ_k ∂p_k/∂z_k = σ_e² (1 − E Σ_k p_k²), makes the radial term what the softmax's variance is in the mean.

So E tr H of the whole is that of the output matrix alone, in which the logits are linear: d (1 − E Σ_k p_k²) with
logits N(0, σ_e²), whatever depth, placement, masks or labels are. And E of the residual's trace below is minus that of
the Gauss-Newton matrix.

Not so with an ε, without a norm after the last sum, where the output is a sum of two normalized streams (ResiDual), or
with tied embeddings: |x|, or the joint law of x and W, depends on θ there. Scales and offsets of the last norm are not
below it in this sense, for they change |x|.

Source: this project.
"""

import sympy as sp

from theory.coverage import require
from theory.mean_field.gaussian import softmax_overlap
from theory.stack import Stack


def mean_hessian_trace(stack: Stack) -> float:
    """E tr of the whole Hessian, over the output matrix: its own block's, d (1 − E Σ_k p_k²), exact at every width.

    Raises:
        NoRuleError: the mean below the output matrix is not 0.

    >>> round(mean_hessian_trace(Stack(width=4, vocab=2, output_scale=1e-6)), 6)  # p = 1/2 each: d/2
    2.0
    """
    require(stack, "mean_hessian")
    return round(stack.width * softmax_left(stack), 12)


def softmax_left(stack: Stack) -> float:
    """1 − E Σ_k p_k² of logits N(0, σ_e²), which a normalized output has at every width."""
    return 1.0 - softmax_overlap(1.0, stack.output_scale, stack.vocab)


# The proof's steps, which the study's command runs.

t, s, d, speed, left = sp.symbols("t s d v q", positive=True)


def sphere_curvature() -> sp.Expr:
    """x·x'' + |x'|² at t = 0 for x(t) = N(a + t b) with N(y) = √2 y/|y| of two symbolic entries: 0."""
    a, b = sp.Matrix(sp.symbols("a1 a2", real=True)), sp.Matrix(sp.symbols("b1 b2", real=True))
    line = a + t * b
    x = sp.sqrt(2) * line / sp.sqrt(line.dot(line))
    first, second = (x.diff(t, order).subs(t, 0) for order in (1, 2))
    return sp.simplify(x.subs(t, 0).dot(second) + first.dot(first))


def softmax_divergence(classes: int = 3) -> sp.Expr:
    """Σ_k ∂p_k/∂z_k − (1 − Σ_k p_k²) of a softmax of symbolic logits: 0."""
    z = sp.symbols(f"z1:{classes + 1}", real=True)
    p = [sp.exp(logit) / sum(map(sp.exp, z)) for logit in z]
    divergence = sum(sp.diff(p[k], z[k]) for k in range(classes))
    return sp.simplify(divergence - (1 - sum(probability**2 for probability in p)))


def stein_step() -> sp.Expr:
    """φ'(z) s² + z φ(z) of the density of N(0, s²): 0, so that E z f(z) = s² E f'(z) by parts."""
    z = sp.Symbol("z", real=True)
    density = sp.exp(-(z**2) / (2 * s**2)) / (s * sp.sqrt(2 * sp.pi))
    return sp.simplify(sp.diff(density, z) * s**2 + z * density)


def gauss_newton_share() -> sp.Expr:
    """E v'Gv of a position, v = |x'|, q = 1 − E Σ p²: E g M gᵀ = (s² v²/d) tr M for independent N(0, s² v²/d) g."""
    return s**2 * speed**2 / d * left


def radial_share() -> sp.Expr:
    """E of −(|x'|²/d) (p − y)·z by Stein's lemma; y·z has mean 0."""
    return -(speed**2) / d * s**2 * left


def mean_of_both() -> sp.Expr:
    """What is left of E v'Hv: 0."""
    return sp.simplify(gauss_newton_share() + radial_share())


def output_trace() -> sp.Expr:
    """E tr of the output matrix's block: Σ_k p_k (1 − p_k) = q in the mean, once for every squared entry of x."""
    return d * left


DERIVATION = (
    (
        "x x'' + |x'|^2 of a normalized x along a line: the output is curved toward its sphere's centre",
        sphere_curvature,
    ),
    ("sum_k dp_k/dz_k - (1 - sum p^2) of a softmax", softmax_divergence),
    ("f'(z) s^2 + z f(z) of the density f of N(0, s^2): Stein's lemma by parts", stein_step),
    ("E v'Gv of a position, v = |x'|, q = 1 - E sum p^2", gauss_newton_share),
    ("E of the radial term -(|x'|^2/d) (p - y).z, by both steps", radial_share),
    ("E v'Hv: their sum, as the part of x'' across x adds nothing", mean_of_both),
    ("E tr H, of the output matrix alone", output_trace),
)
"""The steps of the proof, each in words and as the function that derives it."""
