"""Kernels, the products of all pairs of tokens: n x n matrices, or two numbers if all tokens are alike.

The rules of the recursion are written once, with +, * and / on kernels and the few operations of `KernelLayout`.
Matrices may have leading axes, which batch over windows of text. A pair consists of plain floats, so that a thousand
layers take milliseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from theory.mean_field.gaussian_interpolation import PairFunction, correlation_curve, pair_values


@dataclass(slots=True, eq=False)  # frozen would double the cost of each of the many made
class Pair:
    """The products of tokens that are all alike: one number K_ii, and one number K_ij for all i ≠ j.

    Arithmetic is entrywise; numbers broadcast.

    Attributes:
        diagonal: K_ii.
        off: K_ij for i ≠ j.
    """

    diagonal: float
    off: float

    def __add__(self, other: "Pair | float") -> "Pair":
        if isinstance(other, Pair):
            return Pair(self.diagonal + other.diagonal, self.off + other.off)
        return Pair(self.diagonal + other, self.off + other)

    def __mul__(self, other: "Pair | float") -> "Pair":
        if isinstance(other, Pair):
            return Pair(self.diagonal * other.diagonal, self.off * other.off)
        # Most scales are 1, and pairs are never changed.
        return self if other == 1.0 else Pair(self.diagonal * other, self.off * other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: "Pair | float") -> "Pair":
        if isinstance(other, Pair):
            return Pair(self.diagonal / other.diagonal, self.off / other.off)
        return self if other == 1.0 else Pair(self.diagonal / other, self.off / other)


_JITTER = 1e-12

Array = NDArray[np.float64]
# One per entry of a batch, or what scales a kernel: a float beside pairs, an array beside arrays.
Number = float | Array


class Entrywise(Protocol):
    """The arithmetic of kernels, the matrices of token products, with kernels of the same class and with numbers."""

    def __add__(self, other: Any, /) -> Self: ...

    def __mul__(self, other: Any, /) -> Self: ...

    def __truediv__(self, other: Any, /) -> Self: ...


# Pair, or a float64 array of shape (..., n, n); one and the same within a call.
Kernel = TypeVar("Kernel", bound=Entrywise)


class KernelLayout(Protocol[Kernel]):
    """The interface of operations on kernels, the matrices K_ij of products of tokens i and j.

    There are n tokens. Results broadcast against kernels or are one number per batch entry.
    """

    @property
    def count(self) -> int:
        """The number of tokens n in all sequences."""

    @property
    def attention(self) -> Array | None:
        """The fixed attention weights A, (n, n), or None for uniform attention over all tokens."""

    @property
    def mirrored(self) -> bool:
        """Return whether the batch consists of pairs of entries with attention logits of opposite signs."""

    @property
    def apart(self) -> bool:
        """Return whether sums over token pairs are reported separately within a sequence and between two sequences."""

    @property
    def is_text(self) -> bool:
        """Return whether the tokens represent random text, so that pairs of tokens are averages."""

    def same_word(self, words: Any) -> Kernel:
        """Return a kernel matrix that is 1 where two positions have equal token ids, and 0 elsewhere.

        Args:
            words: token ids, (..., n); None if all differ.
        """

    def scales(self, kernel: Kernel, epsilon: float = 0.0) -> Number:
        """Return the divisors √((K_ii + ε)(K_jj + ε)) by which a normalization layer divides a kernel K_ij."""

    def correlation(self, kernel: Kernel) -> Kernel:
        """Return the correlations K_ij / √(K_ii K_jj) of a kernel K, clipped to [−1, 1] against rounding."""

    def entrywise(self, function: Callable[..., Any], kernel: Kernel) -> Kernel:
        """Apply a function of one number (float or array) to every entry of a kernel matrix."""

    def gaussian(self, function: PairFunction, kernel: Kernel) -> Kernel:
        """Apply a function of two variances and a covariance to (K_ii, K_jj, K_ij) of a kernel, for all i and j."""

    def plus(self, kernel: Kernel, added: Kernel, coordinates: int, means: Array | None = None) -> Kernel:
        """Return the kernel of the sum x + y with an independent Gaussian y; at large width, both kernels add up.

        Args:
            kernel: kernel of x.
            added: kernel of y.
            coordinates: number of independent Gaussian coordinates of y.
            means: mean of each token's coordinates in x; None if the means vanish.
        """

    def images(self, kernel: Kernel, coordinates: int, copies: int = 0) -> Kernel:
        """Return the kernel of x W for a random matrix W; at large width, it equals the kernel of x.

        Args:
            kernel: kernel of x.
            coordinates: number of columns of W.
            copies: number of different matrices W, along an axis before the tokens' axes; 0 for one without an axis.
        """

    def features(self, kernel: Kernel, function: Callable[..., Array], given: Sequence[Kernel], units: int) -> Kernel:
        """Return the kernel of hidden units at finite width; at large width, it equals their expected kernel.

        Hidden units are a function of Gaussian rows.

        Args:
            kernel: expected kernel of the function.
            function: function of the Gaussian rows.
            given: kernels of the rows.
            units: number of coordinates of the rows.
        """

    def scale_diagonal(self, kernel: Kernel, factor: float) -> Kernel:
        """Multiply the diagonal entries K_ii of a kernel matrix by a factor."""

    def attend(self, kernel: Kernel) -> Kernel:
        """Return A K Aᵀ, the kernel after attention with weights A, from the kernel K before it."""

    def attended_at_ends(self, kernel: Kernel, attended: Kernel) -> Kernel:
        """Return the kernel after attention, A K Aᵀ, for texts that share more or fewer token ids than the mean text.

        The backward pass needs it.

        Args:
            kernel: K.
            attended: A K Aᵀ for the mean text; the result, unless the layout is that of a text.
        """

    def attend_back(self, kernel: Kernel) -> Kernel:
        """Return Aᵀ K A, the kernel of gradients before attention with weights A, from the kernel K after it."""

    def total(self, kernel: Kernel) -> Number:
        """Return the sum Σ_ij K_ij of a kernel matrix over all pairs of tokens.

        If the layout is `apart`, the result is (2, ...): sums over pairs in one sequence and over all others.
        """

    def positive_total(self, kernel: Kernel) -> Number:
        """Return the sum of a kernel matrix over all pairs of tokens, raised to 0 if rounding made it negative.

        Sums over pairs of two sequences may be negative.
        """

    def diagonal(self, kernel: Kernel) -> Number:
        """Return the mean of the diagonal entries K_ii of a kernel over all tokens i."""

    def diagonal_mean(self, function: Callable[..., Any], kernel: Kernel) -> Number:
        """Return the mean over all tokens i of a given function of a kernel's diagonal entry K_ii."""

    def off_diagonal(self, kernel: Kernel) -> Number:
        """Return the mean of K_ij over all pairs i ≠ j of tokens of one sequence; NaN for one token."""


@dataclass(frozen=True, slots=True)
class PairLayout:
    """The operations on kernels of tokens that are all alike: each kernel consists of two numbers.

    Attributes:
        count: the number of tokens n.
    """

    count: int
    attention: ClassVar[None] = None
    mirrored: ClassVar[bool] = False
    apart: ClassVar[bool] = False
    is_text: ClassVar[bool] = False

    def same_word(self, words: None) -> Pair:
        return Pair(1.0, 0.0)

    def scales(self, kernel: Pair, epsilon: float = 0.0) -> float:
        return kernel.diagonal + epsilon

    def correlation(self, kernel: Pair) -> Pair:
        return Pair(1.0, min(1.0, max(-1.0, kernel.off / kernel.diagonal)))

    def entrywise(self, function: Callable[..., Any], kernel: Pair) -> Pair:
        return Pair(function(kernel.diagonal), function(kernel.off))

    def gaussian(self, function: PairFunction, kernel: Pair) -> Pair:
        q = kernel.diagonal
        return Pair(function(q, q, q), function(q, q, min(q, max(-q, kernel.off))))

    def plus(self, kernel: Pair, added: Pair, coordinates: int, means: Array | None = None) -> Pair:
        return kernel + added

    def images(self, kernel: Pair, coordinates: int, copies: int = 0) -> Pair:
        return kernel

    def features(self, kernel: Pair, function: Callable[..., Array], given: Sequence[Pair], units: int) -> Pair:
        return kernel

    def scale_diagonal(self, kernel: Pair, factor: float) -> Pair:
        return kernel if factor == 1.0 else Pair(kernel.diagonal * factor, kernel.off)

    def attend(self, kernel: Pair) -> Pair:
        value = (kernel.diagonal + (self.count - 1) * kernel.off) / self.count
        return Pair(value, value)

    def attended_at_ends(self, kernel: Pair, attended: Pair) -> Pair:
        return attended

    attend_back = attend

    def total(self, kernel: Pair) -> float:
        return self.count * (kernel.diagonal + (self.count - 1) * kernel.off)

    def positive_total(self, kernel: Pair) -> float:
        return max(self.total(kernel), 0.0)

    def diagonal(self, kernel: Pair) -> float:
        return kernel.diagonal

    def diagonal_mean(self, function: Callable[..., Any], kernel: Pair) -> float:
        return float(function(kernel.diagonal))

    def off_diagonal(self, kernel: Pair) -> float:
        return kernel.off if self.count > 1 else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class MatrixLayout:
    """The operations on kernels of tokens that differ from one another: each kernel is a matrix, (..., n, n).

    Tokens differ if words repeat, or under a mask.

    Attributes:
        count: number of tokens n in all sequences.
        attention: attention weights A, (n, n), or None for uniform attention over all tokens.
        sequences: number of sequences of equal length into which the tokens are divided, one after another.
        mirrored: whether entries of a batch come in pairs, one after another, whose sampled logits have opposite
            signs.
        apart: whether sums over pairs of tokens are split into pairs within a sequence and pairs of two sequences.
    """

    count: int
    attention: Array | None = None
    sequences: int = 1
    mirrored: bool = False
    apart: bool = False
    is_text: ClassVar[bool] = False

    @property
    def entries_together(self) -> int:
        """The number of batch entries that form one independent sample: 2 for pairs with opposite logits, else 1."""
        return 1 + self.mirrored

    def same_word(self, words: Any) -> Array:
        return np.eye(self.count) if words is None else (words[..., :, None] == words[..., None, :]) * 1.0

    def scales(self, kernel: Array, epsilon: float = 0.0) -> Array:
        root = np.sqrt(np.linalg.diagonal(kernel) + epsilon)
        return root[..., :, None] * root[..., None, :]

    def correlation(self, kernel: Array) -> Array:
        return np.clip(kernel / self.scales(kernel), -1.0, 1.0)

    def entrywise(self, function: Callable[..., Any], kernel: Array) -> Array:
        return function(kernel)

    def gaussian(self, function: PairFunction, kernel: Array) -> Array:
        variances = np.linalg.diagonal(kernel)
        common = float(variances.flat[0])
        if np.allclose(variances, common, rtol=1e-12, atol=0.0):
            return correlation_curve(function, float(f"{common:.14g}"))(self.correlation(kernel))
        return pair_values(function, variances, self.correlation(kernel))

    def plus(self, kernel: Array, added: Array, coordinates: int, means: Array | None = None) -> Array:
        return kernel + added

    def images(self, kernel: Array, coordinates: int, copies: int = 0) -> Array:
        return kernel[..., None, :, :] if copies else kernel

    def features(self, kernel: Array, function: Callable[..., Array], given: Sequence[Array], units: int) -> Array:
        return kernel

    def scale_diagonal(self, kernel: Array, factor: float) -> Array:
        return kernel if factor == 1.0 else kernel * (1.0 + (factor - 1.0) * np.eye(self.count))

    def attend(self, kernel: Array) -> Array:
        if self.attention is None:
            return np.broadcast_to(kernel.mean((-2, -1), keepdims=True), kernel.shape)
        return self.attention @ kernel @ self.attention.T

    def attended_at_ends(self, kernel: Array, attended: Array) -> Array:
        return attended

    def attend_back(self, kernel: Array) -> Array:
        return self.attend(kernel) if self.attention is None else self.attention.T @ kernel @ self.attention

    def total(self, kernel: Array) -> Array:
        return self.of_sequences(kernel) if self.apart else kernel.sum((-2, -1))

    def positive_total(self, kernel: Array) -> Array:
        total = self.total(kernel)
        return np.concatenate([np.maximum(total[:1], 0.0), total[1:]]) if self.apart else np.maximum(total, 0.0)

    def of_sequences(self, kernel: Array) -> Array:
        """Return the sums of a kernel over token pairs within a sequence, and over pairs of two sequences, (2, ...)."""
        rows = kernel.shape[-1] // self.sequences
        blocks = kernel.reshape(*kernel.shape[:-2], self.sequences, rows, self.sequences, rows).sum((-3, -1))
        return np.stack([np.trace(blocks, axis1=-2, axis2=-1), (blocks * (1.0 - np.eye(self.sequences))).sum((-2, -1))])

    def diagonal(self, kernel: Array) -> Array:
        return np.trace(kernel, axis1=-2, axis2=-1) / self.count

    def diagonal_mean(self, function: Callable[..., Any], kernel: Array) -> Array:
        return function(np.linalg.diagonal(kernel)).mean(-1)

    def off_diagonal(self, kernel: Array) -> Array:
        length = self.count // self.sequences
        trace = np.trace(kernel, axis1=-2, axis2=-1)
        if length == 1:
            return np.full_like(trace, np.nan)
        return (self.of_sequences(kernel)[0] - trace) / (self.count * (length - 1))


def cholesky(kernel: Array) -> Array:
    """Return the Cholesky factor of a kernel matrix, with a small jitter, which nearly parallel tokens require."""
    size = np.trace(kernel, axis1=-2, axis2=-1)[..., None, None] / kernel.shape[-1]
    return np.linalg.cholesky(kernel + _JITTER * size * np.eye(kernel.shape[-1]))


def eigen_root(kernel: Array) -> Array:
    """Return the symmetric matrix F with F F = K for a kernel K of any rank, with negative eigenvalues set to 0.

    Groups of tokens may cause negative eigenvalues. Unlike the eigenvectors, F is a continuous function of K, so that
    samples of tokens are equal to rounding on all processors.
    """
    values, vectors = np.linalg.eigh(kernel)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ vectors.mT)
