"""Lanczos' method: the spectral measure of a symmetric operator as seen by a probe, and its extreme eigenvalues.

Both come from one run. Libraries return a density smoothed onto a grid, or eigenvalues without the measure. What is
asked here, the nodes and weights of every probe with the residuals of the outer ones, none was found to return.

Source: Ubaru, Chen and Saad (2017); Ghorbani, Krishnan and Xiao (2019), appendix; Parlett (1980), chapter 13.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from studies.hessian.krylov import Krylov

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Quadrature:
    """The spectral measure of one probe: Σ_k w_k f(θ_k) is vᵀ f(A) v for a probe v of norm 1.

    Attributes:
        nodes: Ritz values θ, ascending; the outer ones approach A's extreme eigenvalues from within.
        weights: w, nonnegative, of sum 1.
        residuals: |A x − θ x| of every node's unit vector x, but for rounding: A has an eigenvalue so near to θ.
        dimension: of A.
    """

    nodes: Array
    weights: Array
    residuals: Array
    dimension: int

    def moment(self, power: int) -> float:
        """One probe's estimate of tr A^power; exact in its mean over probes for powers below twice the steps."""
        return float(self.dimension * (self.weights @ self.nodes**power))

    def mass_below(self, value: float) -> float:
        """Share of the spectrum below a value."""
        return float(self.weights[self.nodes < value].sum())


def quadrature(
    product: Callable[[Tensor], Tensor],
    probe: Tensor,
    steps: int,
    *,
    reorthogonalize: bool = True,
    kept: Krylov | None = None,
    until: Callable[[Quadrature], bool] | None = None,
) -> Quadrature:
    """Lanczos from one probe.

    It ends early where the Krylov space is exhausted (a probe with components in few eigenspaces, a repeated
    eigenvalue): the quadrature is exact then. Sums over a vector's numbers are in float64, whatever its precision.

    Args:
        product: A x of a symmetric A, (n,) to (n,).
        probe: of any norm, (n,), of the precision in which products are wanted and vectors kept.
        steps: products, at most.
        reorthogonalize: keep all steps' vectors, steps * n numbers, and make each new one orthogonal to them, twice.
            Without it converged eigenvalues come back as copies, which share their weight.
        kept: steps that were done before, from which it goes on, and where those of now are kept.
        until: whether what was found so far is enough.

    Raises:
        ValueError: the probe is 0, a product is not finite, or kept steps are of another probe.
    """
    norm = torch.linalg.vector_norm(probe)
    if not norm > 0 or steps < 1:
        raise ValueError(f"probe must not be 0, and steps at least 1, got norm {float(norm):g} and {steps} steps.")
    kept = Krylov() if kept is None else kept
    kept.begin(probe / norm)
    most = min(steps, probe.numel())
    while len(kept.alphas) < most and not kept.exhausted:
        if until is not None and kept.alphas and until(from_coefficients(kept.alphas, kept.betas, probe.numel())):
            break
        direction = kept.vectors[-1].to(probe.device)  # a folder's are the CPU's
        image = product(direction)
        if not torch.isfinite(image).all():
            raise ValueError("operator must give finite products, and gave one that is not: is the loss finite?")
        image = image.to(torch.float64, copy=True)  # it may be the direction itself
        alpha = float(direction.double() @ image)
        image -= alpha * direction.double()
        if kept.betas:
            image -= kept.betas[-1] * kept.vectors[-2].to(image)
        for _ in range(2 if reorthogonalize else 0):
            for vector in kept.vectors:
                wide = vector.to(image)
                image -= (wide @ image) * wide
        beta = float(torch.linalg.vector_norm(image))
        scale = max(float(np.linalg.norm(row)) for row in zip([*kept.alphas, alpha], [*kept.betas, beta], strict=True))
        # What is left of an exhausted space is rounding.
        if beta <= 10 * torch.finfo(probe.dtype).eps * scale * len(kept.vectors) ** 0.5:
            beta = 0.0
        kept.append(alpha, beta, (image / beta).to(probe.dtype) if beta else None)
        if not reorthogonalize:
            kept.forget()
    return from_coefficients(kept.alphas, kept.betas, probe.numel())


def from_coefficients(alphas: Sequence[float], betas: Sequence[float], dimension: int) -> Quadrature:
    """The measure that finished steps have found.

    Args:
        alphas: the diagonal of Lanczos' tridiagonal matrix, one a step.
        betas: what stands beside it, one a step, the last of which is the next vector's norm.
        dimension: of the operator.
    """
    nodes, vectors = eigh_tridiagonal(np.array(alphas), np.array(betas[:-1]))
    return Quadrature(nodes, vectors[0] ** 2, betas[-1] * np.abs(vectors[-1]), dimension)
