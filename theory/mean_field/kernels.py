"""Second moments between tokens: n x n matrices or, for exchangeable tokens, their two distinct entries.

The rules of the recursion are written once, with +, * and / on kernels and the few operations named by `KernelLayout`.
Matrices may carry leading axes, which batch over windows of text; a pair holds plain floats, which makes a
thousand layers a matter of milliseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from theory.mean_field.gaussian_interpolation import PairFunction, correlation_curve, pair_values


@dataclass(slots=True, eq=False)  # frozen would double the cost of each of the many made
class Pair:
    """A kernel of exchangeable tokens: K_ii and, for i ≠ j, K_ij. Arithmetic is entrywise; numbers broadcast."""

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
    """The interface of a kernel in the rules: arithmetic with kernels of its kind and with numbers that broadcast."""

    def __add__(self, other: Any, /) -> Self: ...

    def __mul__(self, other: Any, /) -> Self: ...

    def __truediv__(self, other: Any, /) -> Self: ...


# Pair, or a float64 array of shape (..., n, n); one and the same within a call.
Kernel = TypeVar("Kernel", bound=Entrywise)


class KernelLayout(Protocol[Kernel]):
    """How a kernel K_ij over n tokens is laid out. Results broadcast against kernels or are one per batch entry."""

    @property
    def count(self) -> int:
        """The number of tokens n."""

    @property
    def attention(self) -> Array | None:
        """Fixed weights A of attention, (n, n), or None for uniform attention over all tokens."""

    @property
    def mirrored(self) -> bool:
        """Whether entries of a batch come in pairs whose sampled logits are each other's negatives."""

    @property
    def apart(self) -> bool:
        """Whether sums over pairs of tokens tell those within a sequence from those of two sequences."""

    def same_word(self, words: Any) -> Kernel:
        """1 where two positions hold one word, by the words' ids (..., n); where these are None all words differ."""

    def scales(self, kernel: Kernel, epsilon: float = 0.0) -> Number:
        """√((K_ii + ε)(K_jj + ε)): what a norm divides by."""

    def correlation(self, kernel: Kernel) -> Kernel:
        """K_ij / √(K_ii K_jj), kept inside [−1, 1] against rounding."""

    def entrywise(self, function: Callable[..., Any], kernel: Kernel) -> Kernel:
        """A function of one entry (float or array) applied to every entry."""

    def gaussian(self, function: PairFunction, kernel: Kernel) -> Kernel:
        """A function of two variances and a covariance applied to (K_ii, K_jj, K_ij) for all i and j."""

    def plus(self, kernel: Kernel, added: Kernel, coordinates: int, means: Array | None = None) -> Kernel:
        """The kernel of x + y, where y has so many independent Gaussian coordinates: at large width the sum of both.

        `means` are those of x's coordinates, where they do not vanish.
        """

    def images(self, kernel: Kernel, coordinates: int, copies: int = 0) -> Kernel:
        """The kernel of x W with as many columns: at large width x's. Of several W along an axis before the tokens'."""

    def features(self, kernel: Kernel, function: Callable[..., Array], given: Sequence[Kernel], units: int) -> Kernel:
        """The kernel of a function of Gaussian rows of given kernels, with so many coordinates.

        At large width it is the mean, `kernel`.
        """

    def scale_diagonal(self, kernel: Kernel, factor: float) -> Kernel:
        """K with K_ii times a factor."""

    def attend(self, kernel: Kernel) -> Kernel:
        """A K Aᵀ with the attention weights A."""

    def attended_at_ends(self, kernel: Kernel, attended: Kernel) -> Kernel:
        """A K Aᵀ as gradients go along with it: for a text more than its mean (`TextLayout.ends`)."""

    def attend_back(self, kernel: Kernel) -> Kernel:
        """Aᵀ K A."""

    def total(self, kernel: Kernel) -> Number:
        """Σ_ij K_ij; where sequences are told apart, (2, ...): over pairs within a sequence, and over all others."""

    def positive_total(self, kernel: Kernel) -> Number:
        """The same of a squared norm, which rounding must not make negative; products of two sequences may be."""

    def diagonal(self, kernel: Kernel) -> Number:
        """The mean of K_ii."""

    def diagonal_mean(self, function: Callable[..., Any], kernel: Kernel) -> Number:
        """The mean of a function (float or array) of K_ii."""

    def off_diagonal(self, kernel: Kernel) -> Number:
        """The mean of K_ij over i ≠ j of one sequence; NaN for one token."""


@dataclass(frozen=True, slots=True)
class PairLayout:
    """Kernels of exchangeable tokens, as pairs."""

    count: int
    attention: ClassVar[None] = None
    mirrored: ClassVar[bool] = False
    apart: ClassVar[bool] = False

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
    """Kernels of tokens that differ from one another (repeated words, a mask, ...), as arrays (..., n, n).

    Attributes:
        count: the number of tokens n, of all sequences.
        attention: the weights A, (n, n), or None for uniform attention over all tokens.
        sequences: into how many sequences of equal length the tokens fall, one after another.
        mirrored: whether entries of a batch come in pairs, one after another, whose sampled logits are each other's
            negatives.
        apart: whether sums over pairs of tokens tell those within a sequence from those of two sequences.
    """

    count: int
    attention: Array | None = None
    sequences: int = 1
    mirrored: bool = False
    apart: bool = False

    @property
    def entries_together(self) -> int:
        """Entries of a batch that are one sample: of sampled logits those of both signs."""
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
        if factor == 1.0:
            return kernel
        return kernel * (1.0 + (factor - 1.0) * np.eye(self.count))

    def attend(self, kernel: Array) -> Array:
        if self.attention is None:
            return np.broadcast_to(kernel.mean((-2, -1), keepdims=True), kernel.shape)
        return self.attention @ kernel @ self.attention.T

    def attended_at_ends(self, kernel: Array, attended: Array) -> Array:
        return attended

    def attend_back(self, kernel: Array) -> Array:
        if self.attention is None:
            return self.attend(kernel)
        return self.attention.T @ kernel @ self.attention

    def total(self, kernel: Array) -> Array:
        return self.of_sequences(kernel) if self.apart else kernel.sum((-2, -1))

    def positive_total(self, kernel: Array) -> Array:
        total = self.total(kernel)
        return np.concatenate([np.maximum(total[:1], 0.0), total[1:]]) if self.apart else np.maximum(total, 0.0)

    def of_sequences(self, kernel: Array) -> Array:
        """Σ_ij K_ij over pairs within a sequence, and over pairs of two, (2, ...)."""
        rows = kernel.shape[-1] // self.sequences
        blocks = kernel.reshape(*kernel.shape[:-2], self.sequences, rows, self.sequences, rows).sum((-3, -1))
        within = np.trace(blocks, axis1=-2, axis2=-1)
        others = (blocks * (1.0 - np.eye(self.sequences))).sum((-2, -1))
        return np.stack([within, others])

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
    """The factor of a kernel; tokens that have aligned make it singular, and its root needs no inverse."""
    size = np.trace(kernel, axis1=-2, axis2=-1)[..., None, None] / kernel.shape[-1]
    return np.linalg.cholesky(kernel + _JITTER * size * np.eye(kernel.shape[-1]))


def eigen_root(kernel: Array) -> Array:
    """A square root of a kernel, which having one entry for a group may have made slightly indefinite."""
    values, vectors = np.linalg.eigh(kernel)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])
