"""What an optimizer makes of one matrix's gradient, as seen by the tokens that meet the matrix.

The gradient of a matrix is g = Hᵀ Δ, with H (N, d_in) the rows that it multiplies and Δ (N, d_out) the gradients at
what comes out. Every step u here is a function of g such that H u = C Δ, with a matrix of coefficients C (N, N) and,
for the sign alone, a remainder across Δ. A rule gives C from the laws of H and Δ, mostly from their Gram matrices.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from scipy.special import gamma

from theory.first_step.samples import gaussian_samples
from theory.mean_field.kernels import Array
from theory.stack.optimizers import Optimizer

RANGE_CUT = 1e-10
"""Directions of a gradient whose squared singular value is below this share of its largest count as none."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""a, b, c of the step X ← a X + b X Xᵀ X + c (X Xᵀ)² X. Source: Jordan et al. (2024), and torch.optim.Muon."""

_ITERATIONS = 5

# ln t of a quadrature, from and to: of its errors e^(−2π²) is that of steps of 1, and less is beyond its ends.
_LOGARITHMS = (-36, 36)


@dataclass(frozen=True, slots=True, eq=False)
class MatrixUse:
    """A matrix, the rows that it meets, and what an elementwise function behind it does to gradients.

    Attributes:
        role: of the matrix.
        shape: (d_in, d_out).
        rows: H Hᵀ, (N, N) with or without leading axes.
        inputs: samples of a coordinate of the rows, (samples, N).
        factor: E f_i f_j of the factors by which gradients are multiplied on their way down to what comes out of the
            matrix, φ'(u) for W1; None where nothing stands between.
        factors: samples of them, (samples, N).
    """

    role: str
    shape: tuple[int, int]
    rows: Array
    inputs: Array
    factor: Array | None = None
    factors: Array | None = None

    def below(self, gradient: Array) -> Array:
        """ΔΔᵀ from the Gram matrix of the gradients above the factors."""
        return gradient if self.factor is None else gradient * self.factor


_SHARE = 0.25
"""Of samples, for those of gradients in the remainder of a sign."""

Rule = Callable[[MatrixUse, Array], Array]
"""From a matrix and the Gram matrix ΔΔᵀ of its gradients to C, (..., N, N)."""


def gradient_rule(use: MatrixUse, gradient: Array) -> Array:
    """SGD: u = g, so that C = H Hᵀ."""
    del gradient
    return use.rows


def sign_rule(use: MatrixUse, gradient: Array) -> Array:
    """Adam's first step as ε → 0: u = sign g, entry by entry.

    Coordinates of Δ are Gaussian, times the factors f. By Stein's lemma the part of Σ_α h_α sign(h_α·δ) along δ is

        C_ij = d_in √(2/π) E [h_i h_j f_i f_j / √((fh)' Σ (fh))] / E f_i f_j,      Σ = ΔΔᵀ/d_out above the factors.
    """
    seen = use.inputs if use.factors is None else use.inputs * use.factors
    above = gradient if use.factor is None else _over(gradient, use.factor)
    sizes = np.sqrt(np.maximum(((seen @ above) * seen).sum(-1), 0.0) / use.shape[1])
    weights = _over(np.ones(1), sizes) * (2 / np.pi) ** 0.5 * use.shape[0] / len(seen)
    c = (seen.T * weights[..., None, :]) @ seen
    return c if use.factor is None else _over(c, use.factor)


def sign_remainder(use: MatrixUse, gradient: Array, coefficients: Array) -> Array:
    """The Gram matrix of what sign g makes of the rows across Δ, behind the factors, (N, N); of mean kernels."""
    gradient, c = (array.reshape(-1, *array.shape[-2:]).mean(0) for array in (gradient, coefficients))
    above = gradient if use.factor is None else _over(gradient, use.factor[0])
    c = c if use.factor is None else c * use.factor[0]
    deltas = gaussian_samples(above / use.shape[1], np.random.default_rng(1), _SHARE)
    factors = np.ones((1, 1))
    if use.factors is not None:
        factors = use.factors[np.random.default_rng(2).integers(len(use.factors), size=len(deltas))]
    mean = np.sign(deltas * factors @ use.inputs.T) @ use.inputs / len(use.inputs) * factors
    whole = use.shape[1] * use.shape[0] ** 2 * mean.T @ mean / len(mean)
    return np.asarray(whole - c @ above @ c.T)


def _over(first: Array, second: Array) -> Array:
    """A quotient that is 0 where the divisor is."""
    return np.divide(first, second, out=np.zeros(np.broadcast_shapes(first.shape, second.shape)), where=second > 0)


def sign_coefficients(rows: Array, gradient: Array) -> Array:
    """C/d_in of signs where rows are Gaussian: √(2/π) E h h'/√(h'Σh).

    It is 0 where all gradients are.

    Args:
        rows: covariance K of a coordinate of the rows, (..., N, N).
        gradient: Σ of a coordinate of the gradients, (..., N, N).
    """
    return (2 / np.pi) ** 0.5 * _gaussian_quotient(rows, gradient, 0.5)


def sign_energy(rows: Array, gradient: Array) -> Array:
    """The Gram matrix of H sign(HᵀΔ) over d_in² d_out, for Gaussian rows: (2/π) K E [δδ'/(δ'Kδ)] K over δ ~ N(0, Σ)."""
    return np.asarray(2 / np.pi * rows @ _gaussian_quotient(gradient, rows, 1.0) @ rows)


def _gaussian_quotient(covariance: Array, form: Array, power: float) -> Array:
    """E x x'/(x'Fx)^p over x ~ N(0, K), by s^(−p) = ∫ t^(p−1) e^(−ts) dt/Γ(p).

    With the eigenvalues λ of F in a root of K the mean of x_i² e^(−ts) is Π_j (1 + 2tλ_j)^(−1/2)/(1 + 2tλ_i), which the
    trapezoidal rule in ln t integrates with an exponentially small error.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    values, turned = np.linalg.eigh(root.mT @ form @ root)
    largest = np.where(values[..., -1:] > np.finfo(float).tiny ** 0.5, values[..., -1:], np.inf)
    shares = np.maximum(values / largest, RANGE_CUT)[..., None]
    t = np.exp(np.arange(*_LOGARITHMS, dtype=float))
    grown = 1.0 + t * shares
    integrand = t**power * np.exp(-0.5 * np.log(grown).sum(-2, keepdims=True)) / grown
    means = integrand.sum(-1) / gamma(power) * (2.0 * largest) ** -power
    turned = root @ turned
    return np.asarray((turned * means[..., None, :]) @ turned.mT)


def polar_rule(use: MatrixUse, gradient: Array) -> Array:
    """The polar factor of g on its numerical range, times Muon's factor for shapes √max(1, d_out/d_in).

    With S = √(HHᵀ) ΔΔᵀ √(HHᵀ), whose eigenvalues are the squared singular values of g, C is √(HHᵀ) S^(−1/2) √(HHᵀ).
    """
    return _spectral(use, gradient, lambda values: values**-0.5)


def muon_rule(use: MatrixUse, gradient: Array) -> Array:
    """Five Newton-Schulz steps from g/|g| instead of the polar factor, as torch.optim.Muon has them; odd in g.

    A polynomial x p(x²) of the singular values x of g/|g|, in exact arithmetic; torch computes it in bfloat16.
    """

    def factor(values: Array) -> Array:
        scale = values.sum(-1, keepdims=True) ** 0.5
        return newton_schulz(values**0.5 / scale) / values**0.5

    return _spectral(use, gradient, factor)


def newton_schulz(singular: Array) -> Array:
    """What five steps make of singular values in [0, 1]."""
    a, b, c = NEWTON_SCHULZ
    for _ in range(_ITERATIONS):
        square = singular**2
        singular = singular * (a + b * square + c * square**2)
    return singular


def _spectral(use: MatrixUse, gradient: Array, function: Callable[[Array], Array]) -> Array:
    """√(HHᵀ) f(S) √(HHᵀ) with f of the eigenvalues of S on the numerical range, and 0 outside it."""
    values, vectors = np.linalg.eigh(use.rows)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ vectors.mT
    squared, vectors = np.linalg.eigh(root @ gradient @ root)
    inside = squared > RANGE_CUT * np.maximum(squared[..., -1:], np.finfo(float).tiny)
    # Outside the range 0 stands in the norm, and 1 under a root whose value is dropped.
    with np.errstate(divide="ignore", invalid="ignore"):
        chosen = np.where(inside, function(np.where(inside, squared, 0.0)), 0.0)
    shape = max(1.0, use.shape[1] / use.shape[0]) ** 0.5
    turned = root @ vectors
    return np.asarray(shape * (turned * chosen[..., None, :]) @ turned.mT)


def steps_of(
    uses: Collection[MatrixUse], rule: Rule, gradients: dict[str, Array], matrices: Collection[str]
) -> dict[str, Array]:
    """C of the matrices that move, by role, and "ROLE remainder" of signs."""
    coefficients = {use.role: rule(use, gradients[use.role]) for use in uses if use.role in matrices}
    if rule is sign_rule:
        coefficients |= {
            f"{use.role} remainder": sign_remainder(use, gradients[use.role], coefficients[use.role])
            for use in uses if use.role in coefficients
        }  # fmt: skip
    return coefficients


def parts_of(uses: Collection[MatrixUse], steps: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
    """What every matrix that moves adds to the product of a step with gradients, by role."""
    return {use.role: (steps[use.role] * gradients[use.role]).sum((-2, -1)) for use in uses if use.role in steps}


RULES: dict[Optimizer, Rule] = {
    "sgd": gradient_rule,
    "normalized": gradient_rule,
    "adam": sign_rule,
    "polar": polar_rule,
    "muon": muon_rule,
}
