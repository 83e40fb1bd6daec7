"""Kernels of activations: E[φ(u_i) φ(u_j)] and E[φ'(u_i) φ'(u_j)] of Gaussian pre-activations u with a kernel K."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from theory.mean_field.gaussian import normal_rule, relu_kernel, relu_slope_kernel
from theory.mean_field.kernels import Kernel, Tokens

LEAK = 0.01
"""Slope of leaky ReLU left of 0, as in torch."""

# Poles of tanh and SiLU are at distances of π/2 and π; the trapezoidal rule at this step per unit leaves 1e-10.
_STEP = 0.4
_LARGEST = 100.0


class Activation(Protocol):
    """What the recursion needs of an activation φ."""

    def kernel(self, tokens: Tokens, kernel: Kernel) -> Kernel:
        """E[φ(u_i) φ(u_j)] for u ~ N(0, K)."""

    def slope_kernel(self, tokens: Tokens, kernel: Kernel) -> Kernel:
        """E[φ'(u_i) φ'(u_j)] for u ~ N(0, K)."""

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """φ(u)."""

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """φ'(u)."""


@dataclass(frozen=True, slots=True)
class Homogeneous:
    """φ(u) = u, or a multiple of it where u < 0: kernels are functions of the correlation, given at unit variance."""

    at_unit: Callable[[Any], Any]
    slope_at_unit: Callable[[Any], Any]
    leak: float

    def kernel(self, tokens: Tokens, kernel: Kernel) -> Kernel:
        return tokens.entrywise(self.at_unit, tokens.correlation(kernel)) * tokens.scales(kernel)

    def slope_kernel(self, tokens: Tokens, kernel: Kernel) -> Kernel:
        return tokens.entrywise(self.slope_at_unit, tokens.correlation(kernel))

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return u * self.slope(u)

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(u > 0, 1.0, self.leak)


@dataclass(frozen=True, slots=True)
class GaussianMoment:
    """E[f(u) f(v)] as a function of Var u, Var v and Cov(u, v), by quadrature; f is analytic near the real line."""

    function: Callable[[NDArray[np.float64]], NDArray[np.float64]]

    def __call__(self, first: float, second: float, covariance: float) -> float:
        """The moment.

        Raises:
            ValueError: the variances are so large that the quadrature would not fit into memory.
        """
        return _moment(self.function, min(first, second), max(first, second), covariance)


@dataclass(frozen=True, slots=True)
class Smooth:
    """An activation and its derivative as functions of arrays."""

    moment: GaussianMoment
    slope_moment: GaussianMoment

    def kernel(self, tokens: Tokens, kernel: Kernel) -> Kernel:
        return tokens.gaussian(self.moment, kernel)

    def slope_kernel(self, tokens: Tokens, kernel: Kernel) -> Kernel:
        return tokens.gaussian(self.slope_moment, kernel)

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.moment.function(u)

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.slope_moment.function(u)


@lru_cache(maxsize=4096)
def _moment(function: Callable[[Any], Any], first: float, second: float, covariance: float) -> float:
    scales = math.sqrt(first), math.sqrt(second)
    if scales[1] > _LARGEST:
        raise ValueError(
            f"activation must be homogeneous (relu, leaky_relu, identity) for a prediction where pre-activations are "
            f"this large: their standard deviation is {scales[1]:.3g}, and the quadrature reaches {_LARGEST:g}."
        )
    correlation = min(1.0, max(-1.0, covariance / (scales[0] * scales[1])))
    # Given what u and v share, w, they are independent; what is not shared has nodes of its own.
    nodes, weights = normal_rule(scales[1] / _STEP)
    shared, own = math.sqrt(abs(correlation)), math.sqrt(1.0 - abs(correlation))
    points = shared * nodes[:, None] + own * nodes
    given_shared = [function(scale * points) @ weights for scale in scales]
    # A negative correlation shares w with opposite signs; the rule in w is symmetric.
    other = given_shared[1] if correlation >= 0 else given_shared[1][::-1]
    return float((given_shared[0] * other) @ weights)


def _leaky(kernel: Any, sign: float) -> Callable[[Any], Any]:
    """Of φ(u) = ReLU(u) − LEAK ReLU(−u), or of its slope: bilinear in the kernel of ReLU at ±ρ."""
    return lambda rho: (1 + LEAK**2) * kernel(rho) + sign * 2 * LEAK * kernel(-rho)


def _identity(rho: Any) -> Any:
    return rho


def _one(rho: Any) -> Any:
    return 0.0 * rho + 1.0


def _gelu(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return u * ndtr(u)


def _gelu_slope(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return ndtr(u) + u * np.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)


def _silu(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return u * expit(u)


def _silu_slope(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return expit(u) * (1 + u * expit(-u))


def _tanh_slope(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 - np.tanh(u) ** 2


ACTIVATIONS: dict[str, Activation] = {
    "relu": Homogeneous(relu_kernel, relu_slope_kernel, 0.0),
    "leaky_relu": Homogeneous(_leaky(relu_kernel, -1.0), _leaky(relu_slope_kernel, 1.0), LEAK),
    "identity": Homogeneous(_identity, _one, 1.0),
    "gelu": Smooth(GaussianMoment(_gelu), GaussianMoment(_gelu_slope)),
    "silu": Smooth(GaussianMoment(_silu), GaussianMoment(_silu_slope)),
    "tanh": Smooth(GaussianMoment(np.tanh), GaussianMoment(_tanh_slope)),
}
"""By the value of `Stack.activation`."""
