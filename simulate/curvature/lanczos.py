"""Stochastic Lanczos quadrature: the spectral measure of a symmetric operator, as seen by random probes.

Libraries return a density smoothed onto a grid. What is asked here, the nodes and weights of every probe, from which
mass, moments, tails and their errors follow without smoothing, none was found to return.

Source: Ubaru, Chen and Saad (2017); Ghorbani, Krishnan and Xiao (2019), appendix.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Quadrature:
    """The spectral measure of one probe: Σ_k w_k f(θ_k) is vᵀ f(A) v for a probe v of norm 1.

    Attributes:
        nodes: Ritz values θ, ascending; the outer ones approach A's extreme eigenvalues from within.
        weights: w, nonnegative, of sum 1.
        dimension: of A.
    """

    nodes: Array
    weights: Array
    dimension: int

    def moment(self, power: int) -> float:
        """One probe's estimate of tr A^power; exact in its mean over probes for powers below twice the steps."""
        return float(self.dimension * (self.weights @ self.nodes**power))

    def mass_below(self, value: float) -> float:
        """Share of the spectrum below a value."""
        return float(self.weights[self.nodes < value].sum())


def quadrature(
    product: Callable[[Tensor], Tensor], probe: Tensor, steps: int, *, reorthogonalize: bool = True
) -> Quadrature:
    """Lanczos from one probe.

    It ends early where the Krylov space is exhausted (a probe with components in few eigenspaces, a repeated
    eigenvalue): the quadrature is exact then.

    Args:
        product: A x of a symmetric A, (n,) to (n,).
        probe: of any norm, (n,), of the precision in which products are wanted.
        steps: products, at most.
        reorthogonalize: keep all steps' vectors, steps * n numbers, and make each new one orthogonal to them, twice.
            Without it converged eigenvalues come back as copies, which share their weight.

    Raises:
        ValueError: the probe is 0, or a product is not finite.
    """
    norm = torch.linalg.vector_norm(probe)
    if not norm > 0 or steps < 1:
        raise ValueError(f"probe must not be 0, and steps at least 1, got norm {float(norm):g} and {steps} steps.")
    direction = probe / norm
    basis, before = [direction], torch.zeros_like(direction)
    alphas: list[float] = []
    betas: list[float] = []
    scale = 0.0
    tiny = torch.finfo(probe.dtype).eps
    for step in range(min(steps, probe.numel())):
        image = product(direction)
        if not torch.isfinite(image).all():
            raise ValueError("operator must give finite products, and gave one that is not: is the loss finite?")
        alphas.append(float(direction @ image))
        scale = max(scale, float(torch.linalg.vector_norm(image)))
        image = image - alphas[-1] * direction - (betas[-1] if betas else 0.0) * before
        for _ in range(2 if reorthogonalize else 0):
            for vector in basis:
                image = image - (vector @ image) * vector
        beta = float(torch.linalg.vector_norm(image))
        # What is left of an exhausted space is rounding.
        if beta <= 10 * tiny * scale * (step + 1) ** 0.5 or step + 1 == min(steps, probe.numel()):
            break
        betas.append(beta)
        before, direction = direction, image / beta
        if reorthogonalize:
            basis.append(direction)
    nodes, vectors = eigh_tridiagonal(np.array(alphas), np.array(betas[: len(alphas) - 1]))
    return Quadrature(nodes, vectors[0] ** 2, probe.numel())
