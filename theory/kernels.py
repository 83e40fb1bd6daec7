"""Second moments between tokens: n x n matrices or, for exchangeable tokens, their two distinct entries.

The rules of the recursion are written once, with +, * and / on kernels and the few operations named by `Tokens`.
Matrices may carry leading axes, which batch over windows of text; a pair holds plain floats, which makes a
thousand layers a matter of milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


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
        return Pair(self.diagonal * other, self.off * other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: float) -> "Pair":
        return Pair(self.diagonal / other, self.off / other)


# A Pair, or a float64 array of shape (..., n, n); Tokens says which.
Kernel = Any
# A float, or a float64 array of the batch shape.
Number = Any


class Tokens(Protocol):
    """How a kernel K_ij over n tokens is laid out. Results broadcast against kernels or are one per batch entry."""

    @property
    def count(self) -> int:
        """The number of tokens n."""

    def scales(self, kernel: Kernel) -> Kernel:
        """√(K_ii K_jj): what LayerNorm divides by."""

    def correlation(self, kernel: Kernel) -> Kernel:
        """K_ij / √(K_ii K_jj), kept inside [−1, 1] against rounding."""

    def entrywise(self, function: Callable[..., Any], kernel: Kernel) -> Kernel:
        """A function of one entry (float or array) applied to every entry."""

    def mean(self, kernel: Kernel) -> Kernel:
        """The mean of all n² entries, as a kernel with that one value: uniform attention, both ways."""

    def total(self, kernel: Kernel) -> Number:
        """Σ_ij K_ij."""

    def diagonal(self, kernel: Kernel) -> Number:
        """The mean of K_ii."""

    def inverse_root_diagonal(self, kernel: Kernel) -> Number:
        """The mean of K_ii^(−1/2)."""

    def off_diagonal(self, kernel: Kernel) -> Number:
        """The mean of K_ij over i ≠ j; NaN for one token."""


@dataclass(frozen=True, slots=True)
class Exchangeable:
    """Kernels of exchangeable tokens, as pairs."""

    count: int

    def scales(self, kernel: Pair) -> float:
        return kernel.diagonal

    def correlation(self, kernel: Pair) -> Pair:
        return Pair(1.0, min(1.0, max(-1.0, kernel.off / kernel.diagonal)))

    def entrywise(self, function: Callable[..., Any], kernel: Pair) -> Pair:
        return Pair(function(kernel.diagonal), function(kernel.off))

    def mean(self, kernel: Pair) -> Pair:
        value = (kernel.diagonal + (self.count - 1) * kernel.off) / self.count
        return Pair(value, value)

    def total(self, kernel: Pair) -> float:
        return self.count * (kernel.diagonal + (self.count - 1) * kernel.off)

    def diagonal(self, kernel: Pair) -> float:
        return kernel.diagonal

    def inverse_root_diagonal(self, kernel: Pair) -> float:
        return float(kernel.diagonal**-0.5)

    def off_diagonal(self, kernel: Pair) -> float:
        return kernel.off if self.count > 1 else float("nan")


@dataclass(frozen=True, slots=True)
class Labelled:
    """Kernels of tokens that differ from one another (repeated words, ...), as arrays (..., n, n)."""

    count: int

    def scales(self, kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        root = np.sqrt(np.diagonal(kernel, axis1=-2, axis2=-1))
        return root[..., :, None] * root[..., None, :]

    def correlation(self, kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(kernel / self.scales(kernel), -1.0, 1.0)

    def entrywise(self, function: Callable[..., Any], kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        return function(kernel)

    def mean(self, kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.broadcast_to(kernel.mean((-2, -1), keepdims=True), kernel.shape)

    def total(self, kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        return kernel.sum((-2, -1))

    def diagonal(self, kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.trace(kernel, axis1=-2, axis2=-1) / self.count

    def inverse_root_diagonal(self, kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        return (np.diagonal(kernel, axis1=-2, axis2=-1) ** -0.5).mean(-1)

    def off_diagonal(self, kernel: NDArray[np.float64]) -> NDArray[np.float64]:
        trace = np.trace(kernel, axis1=-2, axis2=-1)
        if self.count == 1:
            return np.full_like(trace, np.nan)
        return (self.total(kernel) - trace) / (self.count * (self.count - 1))
