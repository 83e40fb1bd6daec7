"""Random queries and keys of exchangeable tokens in closed form, products of attention weights replaced by means.

Rows of logits have independent entries of variance σ² = s⁴ q (q − c), up to a shift, and two rows have correlation
ρ = c/q. So what a layer needs is the overlap of two softmaxes of n logits, β(ρ) = E Σ_j A_ij A_kj, at ρ and at 1,
which the loss needs of V logits; and its derivative: by Price's theorem

    dβ/dρ = σ² E Σ_jm ∂_j A_im ∂_j A_km = σ² E Σ_m A_im A_km (1 − A_im − A_km + A_i·A_k),

which is what the gradient of queries and keys asks for. Logits are Gaussian, as d_k → ∞. Exact for one layer of such
heads and for many of them, but for what norms remove (docs/queries.md); what the layers above and below make of one
pattern is not.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from functools import lru_cache

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev

from theory.mean_field.gaussian import SoftmaxOverlap, cross_entropy
from theory.mean_field.kernels import KernelLayout, Pair
from theory.mean_field.sublayers import Branch, BranchPullback, Overlaps, Recorded, SquaredNorms
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio

# Degree in ρ of an interpolant of the overlap; and the variance below which softmaxes are linear in their logits.
_DEGREE = 20
_SMALL = 1e-3


def annealed_attention(stack: Stack) -> Branch[Pair]:
    """softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O; every number of heads is the same."""
    n, of_queries, of_keys = stack.tokens, gain(stack, "WQ"), gain(stack, "WK")
    value_gain = gain(stack, "WV")
    projection_gain = 1.0 if stack.output_projection == "identity" else gain(stack, "WO")

    def branch(tokens: KernelLayout[Pair], kernel: Pair) -> tuple[Pair, BranchPullback[Pair], Recorded]:
        q, c = kernel.diagonal, kernel.off
        variance = float(stack.logit_factor**2 * of_queries * of_keys * q * (q - c))
        own_overlap, cross, own_slope, cross_slope = softmax_moments(variance, float(c / q), n)
        values = Pair(c + (q - c) * own_overlap, c + (q - c) * cross) * value_gain

        def pullback(gradient: Pair, _: Overlaps[Pair]) -> tuple[Pair, SquaredNorms]:
            energies: SquaredNorms = {}
            if stack.output_projection == "random":
                energies["WO"] = tokens.total(values * gradient) * inner_ratio(stack)
            above = gradient * projection_gain
            back = own_overlap * above.diagonal + (n - 1) * cross * above.off
            # Every row of weights sums to 1, so that the total over pairs stays.
            to_values = Pair(back, (above.diagonal + (n - 1) * above.off - back) / max(1, n - 1))
            energies["WV"] = tokens.total(kernel * to_values)
            slopes = Pair(above.diagonal * own_slope, above.off * cross_slope) * (value_gain * (q - c))
            slopes = slopes * stack.logit_factor**2
            to_queries = slopes * (q - c) * of_keys
            key = q * slopes.diagonal + (n - 1) * c * slopes.off
            to_keys = Pair(key, -key / max(1, n - 1)) * of_queries
            energies |= {"WQ": tokens.total(kernel * to_queries), "WK": tokens.total(kernel * to_keys)}
            return to_values * value_gain + to_queries * of_queries + to_keys * of_keys, energies

        # E Σ A a = σ² (1 − E Σ A²), by parts.
        entropy = cross_entropy(variance**0.5, n) - variance * (1.0 - own_overlap)
        return values * projection_gain, pullback, {"attention_squares": own_overlap, "attention_entropy": entropy}

    return branch


def softmax_moments(variance: float, correlation: float, n: int) -> tuple[float, float, float, float]:
    """Of two rows of softmaxed N(0, σ²) logits: E Σ_j A_ij², E Σ_j A_ij A_kj, and dβ/dρ / σ² at 1 and at ρ.

    >>> [round(moment, 6) for moment in softmax_moments(0.0, 0.5, 4)]  # uniform: 1/n, and (1 - 1/n)/n
    [0.25, 0.25, 0.1875, 0.1875]
    """
    if n == 1 or variance < _SMALL:
        slope = (1.0 - 1.0 / n) / n
        return 1.0 / n + variance * slope, 1.0 / n + variance * correlation * slope, slope, slope
    curve = _overlap_curve(float(f"{variance:.12g}"), min(0.0, correlation), n)
    slope_curve = curve.deriv()
    moments = (curve(1.0), curve(correlation), slope_curve(1.0) / variance, slope_curve(correlation) / variance)
    own_overlap, cross, own_slope, cross_slope = map(float, moments)
    return own_overlap, cross, own_slope, cross_slope


@lru_cache(maxsize=256)
def _overlap_curve(variance: float, lowest: float, n: int) -> Chebyshev:
    overlap = SoftmaxOverlap(variance**0.5, n)
    return Chebyshev.interpolate(
        lambda rho: np.array([overlap(1.0, 1.0, float(r)) for r in rho]), _DEGREE, [lowest, 1.0]
    )
