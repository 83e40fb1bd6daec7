"""The Gauss-Newton matrix of a random stack at large width: traces of its blocks, Frobenius norm, largest eigenvalue.

The matrix is the mean over positions of J_iᵀ H_i J_i, with J_i the derivative of a position's logits by the parameters
and H = diag(p) − p pᵀ of its softmax.

Traces. H is E (p − e_y)(p − e_y)ᵀ over labels y that the softmax itself draws, so that the trace of a matrix's block is
the mean over positions of E‖∂ℓ_i/∂W‖² for such labels: the backward recursion from a kernel without products of
positions, σ_e² (1 − E Σ_k p_k²)/P on its diagonal. Of the last layer's W2 in the paper's setting that is, with the
factor of Theorem 1 squared,

    E tr = E[‖h‖² d/‖y‖²] σ_e² (1 − E Σ_k p_k²).

Norm and largest eigenvalue. The rows of W_emb are nearly orthogonal where V is small beside d, and every matrix acts on
them like an independent one, so that J_i J_jᵀ is Θ_ij I (V, V), a number for each pair of positions that the same
recursion gives. What is not zero of the spectrum is that of the nV × nV matrix of blocks Θ_ij F_iᵀ F_j/n, F Fᵀ = H,
whose logits N(0, σ_e² Q) are sampled.

Assumes d → ∞ at fixed L, n and V (V ≪ d for norm and eigenvalue); corrections are O(L/d) and O(V/d).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import sem

from theory.coverage import is_exchangeable, require
from theory.mean_field.gaussian import SoftmaxOverlap
from theory.mean_field.inputs import (
    Inputs,
    attention_pattern,
    exchangeable_inputs,
    gaussian_inputs,
    loss_positions,
)
from theory.mean_field.kernels import Array, Kernel, KernelLayout, MatrixLayout, Pair, cholesky
from theory.mean_field.recursion import gradients_from
from theory.stack import Stack

_MOST_ROWS = 512


@dataclass(frozen=True, slots=True, eq=False)
class GaussNewtonNorms:
    """Means over networks.

    Attributes:
        trace: of the whole matrix.
        frobenius: the root of the mean of its square.
        frobenius_sem: its standard error, for the logits are sampled.
        largest: eigenvalue.
        largest_sem: its standard error.
    """

    trace: float
    frobenius: float
    frobenius_sem: float
    largest: float
    largest_sem: float


def gauss_newton_traces(stack: Stack) -> dict[str, Array]:
    """E of the trace of the block of every matrix of parameters.

    Returns:
        By role: shape (L,), layer l at index l − 1; "Wemb": shape (). Roles of an encoder begin with "encoder_".

    Raises:
        NoRuleError: attention is random, embeddings are tied, or something is dropped.

    >>> float(gauss_newton_traces(Stack(width=512, vocab=16))["W2"][-1].round(1))  # d/3, and what the softmax leaves
    148.1
    """
    require(stack, "gauss_newton")
    tokens: KernelLayout[Any]
    inputs: Inputs[Any]
    if is_exchangeable(stack):
        tokens, inputs = exchangeable_inputs(stack)
    else:
        tokens = MatrixLayout(stack.rows, attention_pattern(stack), stack.sequences)
        inputs = gaussian_inputs(stack)
    traces = gradients_from(stack, tokens, inputs, np.random.default_rng(0), lambda q: _own_labels(stack, tokens, q))
    arrays = {name.replace("grad_sq_", ""): np.array(value) for name, value in traces.items()}
    return arrays if is_exchangeable(stack) else {name: value[..., 0] for name, value in arrays.items()}


def _own_labels(stack: Stack, tokens: KernelLayout[Kernel], output: Kernel) -> Kernel:
    """The gradient kernel at the output for labels that the softmax draws, of every position by itself."""
    counted = loss_positions(stack)
    overlap = tokens.gaussian(SoftmaxOverlap(stack.output_scale, stack.vocab), output)
    whole = (overlap * -1.0 + 1.0) * (stack.output_scale**2 / counted.sum())
    diagonal = whole + tokens.scale_diagonal(whole, 0.0) * -1.0
    return diagonal if counted.all() else diagonal * np.outer(counted, counted)


def gauss_newton_norms(stack: Stack, *, samples: int = 200, seed: int = 0) -> GaussNewtonNorms:
    """Trace, Frobenius norm and largest eigenvalue of the whole matrix.

    Args:
        stack: of exchangeable tokens.
        samples: of the logits.
        seed: of them.

    Raises:
        NoRuleError: as `gauss_newton_traces`, or tokens are not exchangeable.
        ValueError: fewer than two samples, or more than 512 positions times classes, which take seconds.
    """
    n, vocab = stack.tokens, stack.vocab
    require(stack, "gauss_newton_norms")
    if samples < 2 or n * vocab > _MOST_ROWS:
        raise ValueError(
            f"samples must be at least 2, and tokens * vocab at most {_MOST_ROWS} for an eigenvalue, got {samples} and "
            f"{n * vocab}."
        )
    energy, tangent = _tangent_kernel(stack)
    root, draw = cholesky(energy), np.random.default_rng(seed)
    traces, squares, largest = [], [], []
    for _ in range(samples):
        factors = _factors(softmax(stack.output_scale * root @ draw.standard_normal((n, vocab)), axis=-1))
        dual = np.einsum("iba,jbc,ij->iajc", factors, factors, tangent, optimize=True).reshape(n * vocab, -1) / n
        values = np.linalg.eigvalsh(dual)
        traces.append(values.sum())
        squares.append((values**2).sum())
        largest.append(values[-1])
    frobenius = float(np.mean(squares)) ** 0.5
    return GaussNewtonNorms(
        trace=float(np.mean(traces)),
        frobenius=frobenius,
        frobenius_sem=float(sem(squares)) / (2 * frobenius),
        largest=float(np.mean(largest)),
        largest_sem=float(sem(largest)),
    )


def _factors(p: Array) -> Array:
    """F with F Fᵀ = diag(p) − p pᵀ, of every row."""
    root = np.sqrt(p)
    return root[:, :, None] * (np.eye(p.shape[1]) - root[:, :, None] * root[:, None, :])


def _tangent_kernel(stack: Stack) -> tuple[Array, Array]:
    """(n, n): Q of the outputs, and Θ_ij = Σ_W ⟨∂f_ia/∂W, ∂f_ja/∂W⟩ of one class a, over all matrices."""
    tokens, inputs = exchangeable_inputs(stack)
    n, kernels = stack.tokens, list[Pair]()

    def sum_over(gradient: Pair) -> float:
        def at(output: Pair) -> Pair:
            kernels.append(output)
            return gradient

        squares = gradients_from(stack, tokens, inputs, np.random.default_rng(0), at)
        return float(sum(np.sum(np.array(value)) for value in squares.values()))

    # A kernel of 1 in all entries is a sum over all pairs of positions.
    diagonal = sum_over(Pair(stack.output_scale**2 / n, 0.0))
    crossed = sum_over(Pair(0.0, stack.output_scale**2 / (n * (n - 1)))) if n > 1 else 0.0
    return _matrix(kernels[0], n), _matrix(Pair(diagonal, crossed), n)


def _matrix(pair: Pair, n: int) -> Array:
    return np.full((n, n), pair.off) + np.eye(n) * (pair.diagonal - pair.off)
