"""The largest eigenvalue of a stack's Hessian over that of its Gauss-Newton matrix, and the residual alone."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.special import softmax
from scipy.stats import sem

from simulate.runs.sample import one_thread
from studies.hessian.dyson import Curvature, edge
from studies.hessian.dyson_matrices import OUTPUT, Matrices, matrices_of
from theory.coverage import require
from theory.mean_field.inputs import sampled_labels
from theory.mean_field.kernels import Array
from theory.stack import Stack

# Positions times classes up to which the output matrix's own block is kept.
_MOST_ROWS = 1100


@dataclass(frozen=True, slots=True)
class LargestEigenvalues:
    """Means over networks and standard errors over samples of their outputs.

    Attributes:
        hessian: λ_max of the Hessian.
        hessian_sem: its standard error.
        gauss_newton: that of the Gauss-Newton matrix.
        gauss_newton_sem: its standard error.
        ratio: of one over the other.
        ratio_sem: its standard error.
    """

    hessian: float
    hessian_sem: float
    gauss_newton: float
    gauss_newton_sem: float
    ratio: float
    ratio_sem: float


def largest_eigenvalues(stack: Stack, *, samples: int = 8, seed: int = 0) -> LargestEigenvalues:
    """λ_max of Hessian and Gauss-Newton matrix, all parameters, by the Dyson equation.

    The n outputs of norm √d and the output matrix are sampled, and with them logits, softmax and labels; everything
    below is the equation's. Where n V > 1100 the output matrix's own block is left out, of order d/V beside the rest.

    Args:
        stack: of exchangeable tokens, plain ReLU units and uniform attention.
        samples: of outputs.
        seed: of them.

    Raises:
        NoRuleError: the stack is not such a one, or its output has no norm.
        ValueError: fewer than two samples.
    """
    require(stack, "hessian_eigenvalue")
    if samples < 2:
        raise ValueError(f"samples must be at least 2 for a standard error, got {samples}.")
    matrices, draw, rows = matrices_of(stack), np.random.default_rng(seed), []
    hessian = gauss_newton = stack.output_scale**2
    with one_thread():  # thousands of products of matrices of some tens of rows
        for _ in range(samples):
            outputs = SampledOutputs(matrices, draw)
            gauss_newton = edge(matrices, outputs.gauss_newton, residual=False, start=gauss_newton)
            hessian = edge(matrices, outputs.hessian, start=hessian)
            rows.append((hessian, gauss_newton, hessian / gauss_newton))
    means, errors = np.mean(rows, 0), sem(rows)
    return LargestEigenvalues(*(float(number) for pair in zip(means, errors, strict=True) for number in pair))


class SampledOutputs:
    """Curvature of the loss at sampled outputs: of position i, (W F_i Wᵀ − (p_i − y_i)·z_i/d)/n, F = diag(p) − p pᵀ.

    The second term, of the Hessian alone, is what keeps the output on its sphere.
    """

    def __init__(self, matrices: Matrices, draw: np.random.Generator) -> None:
        stack = matrices.stack
        n, d, vocab = stack.tokens, stack.width, stack.vocab
        mean, differences = matrices.each[OUTPUT].inputs / d
        x = draw.standard_normal((n, d))
        centre = x.mean(0)
        x = (x - centre) * differences**0.5 + centre * mean**0.5
        x *= (d / (x**2).sum(1, keepdims=True)) ** 0.5
        weights = draw.standard_normal((d, vocab)) * stack.output_scale / d**0.5
        logits = x @ weights
        p = softmax(logits, axis=-1)
        labels = sampled_labels(stack, 1, draw)[0]
        self._radial = ((p * logits).sum(1) - logits[np.arange(n), labels]) / (d * n)
        self._n, self._d = n, d
        self._own = n * vocab <= _MOST_ROWS
        if self._own:
            blocks = np.zeros((n, vocab, n, vocab))
            for i in range(n):
                of_softmax, vectors = np.linalg.eigh(np.diag(p[i]) - np.outer(p[i], p[i]))
                blocks[i, :, i] = (vectors * np.sqrt(np.maximum(of_softmax, 0.0) / n)) @ vectors.T
            root = blocks.reshape(n * vocab, n * vocab)
            # The output matrix's own block has the same root about x xᵀ ⊗ 1.
            self._values, vectors = np.linalg.eigh(root @ np.kron(x @ x.T, np.eye(vocab)) @ root)
            # Tokens' mean first, then differences.
            self._basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, : n - 1]]))[0]
            self._through = np.kron(self._basis.T, weights) @ root @ vectors
        else:
            centres = p @ weights.T
            self._values, self._vectors = np.linalg.eigh(
                np.array([(weights * p[i]) @ weights.T - np.outer(centres[i], centres[i]) for i in range(n)]) / n
            )

    def hessian(self, value: float) -> Curvature | None:
        """At λ; None inside the spectrum of the output matrix's own block."""
        return self._at(value, self._radial)

    def gauss_newton(self, value: float) -> Curvature | None:
        """The same without the sphere's."""
        return self._at(value, np.zeros(self._n))

    def _at(self, value: float, radial: Array) -> Curvature | None:
        if not self._own:
            return lambda kernel: self._of_positions(kernel, radial)
        if self._values[-1] >= value:
            return None
        whole = (self._through / (1.0 - self._values / value)) @ self._through.T
        if radial.any():
            whole -= np.kron(self._basis.T @ np.diag(radial) @ self._basis, np.eye(self._d))
        return lambda kernel: self._of_whole(kernel, whole)

    def _of_whole(self, kernel: Array, curvature: Array) -> Array | None:
        """From one (nd, nd) matrix B, in the basis of `_basis`, in which G is diagonal."""
        n, d = self._n, self._d
        given = np.repeat(kernel, [d, (n - 1) * d])
        root = np.sqrt(given)
        factor, failed = dpotrf(np.eye(n * d) - root[:, None] * curvature * root)
        if failed:  # not positive
            return None
        inverse, _ = dpotri(factor)
        diagonal = given * np.diagonal(inverse)
        return self._returned(kernel, float(diagonal[:d].sum()) / d, float(diagonal.sum()) / d)

    def _of_positions(self, kernel: Array, radial: Array) -> Array | None:
        """From one matrix B_i (d, d) a position: (G⁻¹ − B)⁻¹ by Woodbury, since G⁻¹ is a + c 11ᵀ over positions."""
        n, d = self._n, self._d
        values = self._values - radial[:, None]
        alone = 1.0 / kernel[-1 if n > 1 else 0]
        coupling = (1.0 / kernel[0] - alone) / n
        if alone <= values.max():
            return None
        parts = 1.0 / (alone - values)
        flat = self._vectors.transpose(1, 0, 2).reshape(d, -1)
        summed, squares = ((flat * (parts**power).ravel()) @ flat.T for power in (1, 2))
        of_sum, vectors = np.linalg.eigh(summed)
        if -coupling * of_sum[-1] >= 1.0:
            return None
        left = 1.0 / (1.0 + coupling * of_sum)
        trace = parts.sum() - coupling * float((((vectors * left) @ vectors.T) * squares).sum())
        return self._returned(kernel, float((of_sum * left).sum()) / (n * d), trace / d)

    def _returned(self, kernel: Array, mean: float, trace: float) -> Array:
        """B (1 − G B)⁻¹ = G⁻¹ (G⁻¹ − B)⁻¹ G⁻¹ − G⁻¹ of the mean token and of differences."""
        if self._n == 1:
            return np.array([(mean / kernel[0] - 1.0) / kernel[0], 0.0])
        resolved = np.array([mean, (trace - mean) / (self._n - 1)])
        return (resolved / kernel - 1.0) / kernel
