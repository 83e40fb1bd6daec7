"""The Dyson equation of the Hessian of a random stack, and the edge of its spectrum.

Along v = (Δ_W) the gradient of a matrix's parameters changes by h'ᵀ δ + hᵀ δ', with h (n, d_in) its inputs, δ
(n, d_out) the loss's gradients at its outputs, and a prime for the change. So v is an eigenvector of eigenvalue λ
where λ Δ_W = h'ᵀ δ + hᵀ δ', and what Δ_W does in turn to the output and, on the way back, to the gradient, is

    o' = h' W + h Δ_W = h' W + K δ'/λ,        r' = δ' Wᵀ + δ Δ_Wᵀ = δ' Wᵀ + D h'/λ,

K = h hᵀ and D = δ δᵀ (n, n) beside what h·h' and δ·δ' are, which are O(1/√d). h' of the next matrices is what the
stream carries of o' there, δ' what it carries of r' down; at the output δ' is B h', with B the curvature of the loss.
This is one linear system in Gaussian W, and its mean resolvent solves a Dyson equation in n × n matrices. With τ the
response of h' to a source in the r' below, and σ that of δ' to a source in the o' above,

    K̃ = K/λ + g τ,     D̃ = D/λ + g (d_out/d_in) σ,
    τ = [𝒦 (1 − D̃ 𝒦)⁻¹]_WW,     𝒦 = C K̃ Cᵀ,
    σ = [𝒟 (1 − K̃ 𝒟)⁻¹]_WW,     𝒟 = Cᵀ D̃ C,

C what the stream carries from one matrix to the next (ReLU: 1 or 0 of every token, averaged over their law). Without
D̃ the first line is the recursion of the tangent kernel, over λ; the second is the same from above. Outside of the
spectrum the equation has a real solution, which iteration from 0 finds. The largest λ where there is none is the edge.

Left out: fluctuations of D, the second derivatives of the norms, a matrix of rank of some n for each of them, and what
norms project out. So it is the spectrum but for finitely many eigenvalues. Assumes d → ∞ at fixed n and L; ReLU, whose
second derivative is 0.

Source: this project; Dyson equations as in Ajanki, Erdős and Krüger (2019), Probab. Theory Relat. Fields 173, 293-373.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from studies.hessian.dyson_matrices import OUTPUT, Matrices, Name, entries
from theory.mean_field.kernels import Array

Curvature = Callable[[Array], Array | None]
"""From eigenvalues of E h'h'ᵀ/d at the output without B, G, to those of E B (1 − G B)⁻¹; None inside the spectrum."""
_ITERATIONS = 300
_CONVERGED = 1e-5
_STEP = 1.2
_PRECISION = 1.003


class _InsideSpectrum(Exception):
    """No real solution."""


def is_outside(matrices: Matrices, value: float, curvature: Curvature | None, *, residual: bool = True) -> bool:
    """Whether the equation has a real solution at this λ, and at larger ones.

    Args:
        matrices: of the stack.
        value: λ > 0.
        curvature: of the loss at the output; None for none.
        residual: whether second derivatives count (D); without them it is the Gauss-Newton matrix's equation.
    """
    each = matrices.each
    below = {name: np.zeros(2) for name in each}
    above = {name: np.zeros(2) for name in each}
    try:
        for _ in range(_ITERATIONS):
            inner = {name: matrix for name, matrix in each.items() if name != OUTPUT}
            moved = {name: matrix.inputs / value + matrix.gain * below[name] for name, matrix in inner.items()}
            turned = {name: matrix.gain * matrix.ratio * above[name] for name, matrix in inner.items()}
            turned[OUTPUT] = np.zeros(2)
            if residual:
                turned = {name: part + each[name].gradients / value for name, part in turned.items()}
            new_below, new_above = _responses(matrices, moved, turned, curvature)
            change = max(_change(new_below, below), _change(new_above, above))
            below, above = new_below, new_above
            if change < _CONVERGED:
                return True
    except _InsideSpectrum:
        pass
    return False


def _change(new: dict[Name, Array], old: dict[Name, Array]) -> float:
    return max(
        float(np.abs(kernel - old[name]).max() / (np.abs(kernel).max() + 1e-300)) for name, kernel in new.items()
    )


def _responses(
    matrices: Matrices, moved: dict[Name, Array], turned: dict[Name, Array], curvature: Curvature | None
) -> tuple[dict[Name, Array], dict[Name, Array]]:
    """τ and σ of every matrix from K̃ and D̃.

    Raises:
        _InsideSpectrum: an inverse is not that of a positive matrix.
    """
    n = matrices.stack.tokens
    below = {name: np.zeros(2) for name in matrices.each}
    above = {name: np.zeros(2) for name in matrices.each}
    for layer, law in matrices.active.items():
        first, second = moved["W1", layer], turned["W2", layer]
        below["W2", layer], above["W1", layer] = masked(first, second, law, n), masked(second, first, law, n)
    parts = []
    for sector, reach in enumerate(matrices.reach[: min(n, 2)]):
        sources = np.array([moved[name][sector] for name in matrices.writers])
        sinks = np.array([turned[name][sector] for name in matrices.readers])
        forward, backward = (reach * sources) @ reach.T, (reach.T * sinks) @ reach
        if np.linalg.eigvals(forward * sinks).real.max() >= 1.0:
            raise _InsideSpectrum
        into = np.linalg.solve(np.eye(len(sinks)) - forward * sinks, forward)
        out = np.linalg.solve(np.eye(len(sources)) - backward * sources, backward)
        parts.append((into, out, reach.T @ (np.eye(len(sinks))[:, -1] + sinks * into[:, -1])))
    if curvature is not None:
        returned = curvature(np.array([parts[0][0][-1, -1], parts[-1][0][-1, -1]]))
        if returned is None:
            raise _InsideSpectrum
        parts = [
            (into + np.outer(into[:, -1], into[-1]) * back, out + np.outer(carried, carried) * back, carried)
            for (into, out, carried), back in zip(parts, returned, strict=False)
        ]
    for sector, (into, out, _) in enumerate(parts):
        for place, name in enumerate(matrices.readers):
            below[name][sector] = into[place, place]
        for place, name in enumerate(matrices.writers):
            # What attention adds is the same for all tokens.
            above[name][sector] = 0.0 if sector and name[0] == "WV" else out[place, place]
    return below, above


def masked(kernel: Array, other: Array, law: Array, n: int) -> Array:
    """E φ' K (1 − M φ' K φ')⁻¹ φ' over the tokens that a ReLU lets pass, K and M by their eigenvalues.

    Raises:
        _InsideSpectrum: the inverse is not that of a positive matrix.
    """
    count = np.arange(1.0, n + 1)
    (diagonal, off), (diagonal_other, off_other) = entries(kernel, n), entries(other, n)
    mean, mean_other = diagonal + (count - 1) * off, diagonal_other + (count - 1) * off_other
    if (mean * mean_other).max() >= 1.0 or kernel[1] * other[1] >= 1.0:
        raise _InsideSpectrum
    of_mean, of_differences = mean / (1.0 - mean * mean_other), kernel[1] / (1.0 - kernel[1] * other[1])
    kept = float((law[1:] * (of_mean + (count - 1) * of_differences)).sum()) / n
    crossed = float((law[1:] * (count - 1) * (of_mean - of_differences)).sum()) / (n * max(1, n - 1))
    return np.array([kept + (n - 1) * crossed, kept - crossed if n > 1 else 0.0])


def edge(
    matrices: Matrices, curvature_at: Callable[[float], Any] | None, *, residual: bool = True, start: float = 1.0
) -> float:
    """The largest λ > 0 of the spectrum, to 0.15%.

    Args:
        matrices: of the stack.
        curvature_at: from λ to the `Curvature`, or to None inside the spectrum; None for no curvature of the loss.
        residual: as in `is_outside`.
        start: a first guess.
    """

    def outside(value: float) -> bool:
        if curvature_at is None:
            return is_outside(matrices, value, None, residual=residual)
        curvature = curvature_at(value)
        return curvature is not None and is_outside(matrices, value, curvature, residual=residual)

    high = start
    while not outside(high):
        high *= _STEP
    low = high / _STEP
    while outside(low):
        high, low = low, low / _STEP
    while high > _PRECISION * low:
        middle = (high * low) ** 0.5
        high, low = (middle, low) if outside(middle) else (high, middle)
    return float((high * low) ** 0.5)
