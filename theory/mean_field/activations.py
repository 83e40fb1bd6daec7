"""The expectations E[φ(u_i) φ(u_j)] and E[φ'(u_i) φ'(u_j)] of an activation φ for Gaussian pre-activations u."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.polynomial.chebyshev import chebpts1, chebvander
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from theory.mean_field.gaussian import normal_rule, relu_kernel, relu_slope_kernel, relu_squared_kernel
from theory.mean_field.kernels import Kernel, KernelLayout
from theory.stack.activations import ACTIVATIONS as NAMES, LEAK, Function, Moment

# Poles of tanh and SiLU are at distances of π/2 and π; the trapezoidal rule at this step per unit leaves 1e-10, and
# 4e-7 where u = v, whose poles are double (the slope of tanh; GELU is entire).
_STEP = 0.4
_LARGEST = 100.0
# Numbers of Hermite polynomials, the first of which counts whose last eighth has at most this share of E f².
_HERMITE = {64: 1e-12, 256: 1e-12, 1024: 1e-12, 2048: 1e-12, 4096: 1e-9}
# Scales above which series are interpolated; the width of a range of ln(scale) and its nodes, which leave 3e-15.
_WIDE, _RANGE, _RANGE_NODES = 2.0, 0.25, 12

# Hendrycks and Gimpel (2016): GELU's form by tanh, as torch has it.
_ROOT, _CUBIC = math.sqrt(2 / math.pi), 0.044715

# Of registered activations: nodes in r and in each of four arcs of t, doubled until the moment settles; and the radius
# beyond which nothing is expected, which is checked.
_POLAR_NODES = (32, 64, 128, 256, 512)
_RADIUS = 14.0
_SETTLED = 1e-9


class Activation(Protocol):
    """The interface of an activation function φ: its values, its slopes, and their Gaussian expectations."""

    def kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        """Return E[φ(u_i) φ(u_j)] for all pairs of tokens, for Gaussian pre-activations u with covariance K."""

    def slope_kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        """Return E[φ'(u_i) φ'(u_j)] for all pairs of tokens, for Gaussian pre-activations u with covariance K."""

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the activation φ(u) for every entry u of an array."""

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the derivative φ'(u) of the activation for every entry u of an array."""


@dataclass(frozen=True, slots=True)
class Homogeneous:
    """An activation with φ(u) = u for u > 0 and φ(u) = leak · u for u < 0, such as ReLU and the identity.

    Its kernels are functions of the correlation at unit variance, times the scales of the pre-activations.

    Attributes:
        at_unit: E[φ(u) φ(v)] at unit variances as a function of the correlation.
        slope_at_unit: E[φ'(u) φ'(v)] as a function of the correlation.
        leak: slope for u < 0.
    """

    at_unit: Callable[[Any], Any]
    slope_at_unit: Callable[[Any], Any]
    leak: float

    def kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        return tokens.entrywise(self.at_unit, tokens.correlation(kernel)) * tokens.scales(kernel)

    def slope_kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        return tokens.entrywise(self.slope_at_unit, tokens.correlation(kernel))

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return u * self.slope(u)

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(u > 0, 1.0, self.leak)


@dataclass(frozen=True, slots=True)
class ReluSquared:
    """The activation φ(u) = ReLU(u)², whose Gaussian expectations are known in closed form.

    Its kernel is half the arc-cosine kernel of degree 2. The kernel of its slope is twice that of degree 1.

    Source: Cho and Saul (2009), equation 6.
    """

    def kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        scales = tokens.scales(kernel)
        return tokens.entrywise(relu_squared_kernel, tokens.correlation(kernel)) * (scales * scales)

    def slope_kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        return tokens.entrywise(relu_kernel, tokens.correlation(kernel)) * tokens.scales(kernel) * 4.0

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(u, 0.0) ** 2

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2.0 * np.maximum(u, 0.0)


@dataclass(frozen=True, slots=True)
class GaussianMoment:
    """The expectation E[f(u) f(v)] over two Gaussians u and v, by quadrature, for a smooth function f.

    The function f must be analytic near the real line.

    Attributes:
        function: f, for arrays of any shape.
    """

    function: Callable[[NDArray[np.float64]], NDArray[np.float64]]

    def __call__(self, first: float, second: float, covariance: float) -> float:
        """Return E[f(u) f(v)] for Gaussians u and v with given variances and a given covariance.

        Args:
            first: Var u.
            second: Var v.
            covariance: Cov(u, v).

        Raises:
            ValueError: the variances are so large that the quadrature would not fit into memory.
        """
        both = _moments(self.function, min(first, second), max(first, second), abs(covariance))
        return both[0] if covariance >= 0 else both[1]

    def table(self, variances: NDArray[np.float64], correlations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return E[f(u) f(v)] for all pairs of n variances and all c correlations, as an array (n, n, c).

        Pairs are NaN where the Hermite series of f would need too many terms.

        Args:
            variances: Var u and Var v, (n,).
            correlations: correlations of u and v, (c,).

        Raises:
            ValueError: as for one moment.
        """
        series = _hermite_series(self.function, tuple(np.sqrt(variances)))
        products = series[:, :, None] * series[:, None]
        powers = np.vander(correlations, len(series), increasing=True)
        return np.asarray(np.moveaxis(np.tensordot(powers, products, 1), 0, -1))


@dataclass(frozen=True, slots=True)
class PolarMoment:
    """The expectation E[f(u) f(v)] over two Gaussians u and v, by quadrature, for a function f.

    The function f may have a kink or a jump at 0.

    Attributes:
        function: f, for arrays of any shape.
    """

    function: Function

    def __call__(self, first: float, second: float, covariance: float) -> float:
        """Return E[f(u) f(v)] for Gaussians u and v with given variances and a given covariance.

        Args:
            first: Var u.
            second: Var v.
            covariance: Cov(u, v).

        Raises:
            ValueError: the quadrature does not converge, or the moment is infinite.
        """
        return _polar_moment(self.function, min(first, second), max(first, second), covariance)


@dataclass(frozen=True, slots=True)
class Given:
    """An activation that is defined by a function φ, its derivative, and their Gaussian expectations.

    Attributes:
        function: φ.
        derivative: φ'.
        moment: E[φ(u) φ(v)] as a function of Var u, Var v and Cov(u, v).
        slope_moment: E[φ'(u) φ'(v)] as a function of Var u, Var v and Cov(u, v).
    """

    function: Function
    derivative: Function
    moment: Moment
    slope_moment: Moment

    def kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        return tokens.gaussian(self.moment, kernel)

    def slope_kernel(self, tokens: KernelLayout[Kernel], kernel: Kernel) -> Kernel:
        return tokens.gaussian(self.slope_moment, kernel)

    def value(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.function(u)

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.derivative(u)


@lru_cache(maxsize=2**16)
def _moments(function: Callable[[Any], Any], first: float, second: float, covariance: float) -> tuple[float, float]:
    """Return E[f(u) f(v)] at a covariance of at least 0, and at the negative covariance, which costs nothing more.

    Args:
        function: f.
        first: Var u.
        second: Var v, at least Var u.
        covariance: the covariance of at least 0.

    Raises:
        ValueError: the variances are so large that the quadrature would not fit into memory.
    """
    scales = math.sqrt(first), math.sqrt(second)
    correlation = round(min(1.0, covariance / (scales[0] * scales[1])), 14)
    series, other_series = (_hermite_series(function, (scale,))[:, 0] for scale in scales)
    if np.isfinite(series[0] + other_series[0]):
        count = min(len(series), len(other_series))
        terms = series[:count] * other_series[:count] * np.vander([correlation], count, increasing=True)[0]
        even, odd = float(terms[::2].sum()), float(terms[1::2].sum())
        return even + odd, even - odd
    # Given what u and v share, w, they are independent. Nodes in steps, and correlations without their last digit, let
    # pairs of near variances have their sides in common.
    density = 2.0 ** (math.ceil(4.0 * math.log2(max(1e-3, scales[1] / _STEP))) / 4.0)
    given_shared, other = (_given_shared(function, scale, correlation, density) for scale in scales)
    _, weights = normal_rule(density)
    # A negative correlation shares w with opposite signs; the rule in w is symmetric.
    return float((given_shared * other) @ weights), float((given_shared * other[::-1]) @ weights)


@lru_cache(maxsize=512)
def _hermite_series(function: Callable[[Any], Any], scales: tuple[float, ...]) -> NDArray[np.float64]:
    """Return E f(scale z) h_k(z) for the normalized Hermite polynomials h_k, (k, scales); NaN for too many k.

    By Mehler's formula, moments are sums of products of these and powers of the correlation. Large scales are
    interpolated within a range that all layers share, with an error of rounding.

    Raises:
        ValueError: as in `_integrated_series`.
    """
    if min(scales) < _WIDE or max(scales) > _LARGEST / 2:
        return _integrated_series(function, scales)
    columns = []
    for scale in scales:
        start, place = divmod(math.log(scale), _RANGE)
        if (coefficients := _series_in_range(function, start)) is None:
            return _integrated_series(function, scales)
        columns.append(coefficients @ chebvander([2 * place / _RANGE - 1], _RANGE_NODES - 1)[0])
    count = max(len(column) for column in columns)
    return np.stack([np.pad(column, (0, count - len(column))) for column in columns], -1)


@lru_cache(maxsize=64)
def _series_in_range(function: Callable[[Any], Any], start: float) -> NDArray[np.float64] | None:
    """Return the coefficients of a Hermite series in the logarithm of the scale, (k, nodes); None for too many k.

    Args:
        function: f.
        start: number of the range.

    Raises:
        ValueError: as in `_integrated_series`.
    """
    points = chebpts1(_RANGE_NODES)
    series = _integrated_series(function, tuple(np.exp(_RANGE * (start + (points + 1) / 2))))
    return None if np.isnan(series).any() else series @ np.linalg.inv(chebvander(points, _RANGE_NODES - 1)).T


@lru_cache(maxsize=512)
def _integrated_series(function: Callable[[Any], Any], scales: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the numbers of `_hermite_series` by quadrature.

    Raises:
        ValueError: a scale is so large that a quadrature would not fit into memory.
    """
    if (largest := max(scales)) > _LARGEST:
        raise ValueError(
            f"activation must be homogeneous (relu, leaky_relu, identity) for a prediction with pre-activations this "
            f"large: their standard deviation is {largest:.3g}, and the quadrature allows at most {_LARGEST:g}."
        )
    for count, share in _HERMITE.items():
        nodes, rows = _hermite_rows(count)
        points, series = np.outer(nodes, scales), np.empty((count, len(scales)))
        above, below = function(points), function(-points)
        series[::2], series[1::2] = rows[::2] @ (above + below), rows[1::2] @ (above - below)
        squares = np.square(series)
        short = squares[-count // 8 :].sum(0) <= share * squares.sum(0)
        if short.all():
            return series
    return np.where(short, series, np.nan)


@lru_cache(maxsize=len(_HERMITE))
def _hermite_rows(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes z ≥ 0 of a quadrature for N(0, 1), and normalized Hermite polynomials times the nodes' weights."""
    step = 6.0 / (4.0 * math.sqrt(count) + 12.0)
    nodes: NDArray[np.float64] = step * np.arange(math.ceil(12.5 / step) + 1, dtype=float)
    rows = np.empty((count, len(nodes)))
    rows[0] = step / math.sqrt(2 * math.pi) * np.exp(-0.5 * nodes**2)
    rows[0, 0] /= 2  # counted on both sides
    rows[1] = nodes * rows[0]
    for k in range(1, count - 1):
        rows[k + 1] = (nodes * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1)
    return nodes, rows


@lru_cache(maxsize=4096)
def _given_shared(
    function: Callable[[Any], Any], scale: float, correlation: float, density: float
) -> NDArray[np.float64]:
    """Return E f(u) at every node w, for u = scale (√ρ w + √(1 − ρ) z) with z a standard normal."""
    nodes, weights = normal_rule(density)
    points = math.sqrt(correlation) * nodes[:, None] + math.sqrt(1.0 - correlation) * nodes
    return function(scale * points) @ weights


@lru_cache(maxsize=4096)
def _polar_moment(function: Function, first: float, second: float, covariance: float) -> float:
    """Return E[f(u) f(v)] over two Gaussians u and v, by quadrature in polar coordinates.

    With u = √q r cos t and v = √q' r cos(t − θ), cos θ = ρ, the signs of u and v change at four angles t only.

    Args:
        function: f.
        first: q = Var u.
        second: q' = Var v.
        covariance: Cov(u, v).

    Raises:
        ValueError: the quadrature does not converge, or the moment is infinite.
    """
    a, b = math.sqrt(first), math.sqrt(second)
    theta = math.acos(min(1.0, max(-1.0, covariance / (a * b))))
    before = math.nan
    for nodes in _POLAR_NODES:
        x, weights = np.polynomial.legendre.leggauss(nodes)
        r, radial = _RADIUS / 2 * (x + 1), _RADIUS / 2 * weights
        radial = radial * r * np.exp(-0.5 * r**2) / (2 * math.pi)
        total = size = rim = 0.0
        for start, width in ((-0.5, theta), (theta / math.pi - 0.5, math.pi - theta)):
            t = math.pi * start + width / 2 * (x + 1)
            # The opposite arc, t + π, has both signs turned.
            for sign in (1.0, -1.0):
                u, v = (sign * scale * np.outer(r, np.cos(t - by)) for scale, by in ((a, 0.0), (b, theta)))
                with np.errstate(all="ignore"):
                    values = function(u) * function(v)
                    total += width / 2 * float(radial @ values @ weights)
                    each = np.abs(values) @ weights * radial * width / 2
                size, rim = size + float(each.sum()), rim + float(each[r > 0.9 * _RADIUS].sum())
        if not math.isfinite(size) or rim > _SETTLED * size:
            raise ValueError(
                f"activation must have finite Gaussian moments, but {_name(function)} grows too fast for "
                f"pre-activations of variance {second:.3g}."
            )
        if abs(total - before) <= _SETTLED * size:
            return total
        before = total
    raise ValueError(
        f"activation must be smooth on either side of 0, and its slope too, or be registered with moment= and "
        f"slope_moment=: the quadrature of {_name(function)} does not settle for pre-activations of variances "
        f"{first:.3g} and {second:.3g}. A root such as that of the slope of u^1.5 does not settle."
    )


def _name(function: Function) -> str:
    return getattr(function, "__name__", repr(function))


def activation_of(name: str, leak: float = LEAK) -> Activation:
    """Return the built-in or registered activation with a given name.

    Args:
        name: value of `Stack.activation`.
        leak: slope of leaky ReLU for negative inputs.
    """
    rule = NAMES[name]
    if name == "leaky_relu":
        return _leaky_relu(leak)
    if rule is None:
        return ACTIVATIONS[name]
    moment, slope_moment = rule.moment or PolarMoment(rule.function), rule.slope_moment or PolarMoment(rule.derivative)
    return Given(rule.function, rule.derivative, moment, slope_moment)


def _leaky_relu(leak: float) -> Homogeneous:
    """Return leaky ReLU with slope a = `leak` for negative inputs, φ(u) = ReLU(u) − a ReLU(−u).

    Its kernels are sums of ReLU's kernels at the correlations ρ and −ρ.
    """

    def kernel(rho: Any) -> Any:
        return (1 + leak**2) * relu_kernel(rho) - 2 * leak * relu_kernel(-rho)

    def slope_kernel(rho: Any) -> Any:
        return (1 + leak**2) * relu_slope_kernel(rho) + 2 * leak * relu_slope_kernel(-rho)

    return Homogeneous(kernel, slope_kernel, leak)


def _gelu_slope(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return ndtr(u) + u * np.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)


def _gelu_tanh(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * u * (1 + np.tanh(_ROOT * (u + _CUBIC * u**3)))


def _gelu_tanh_slope(u: NDArray[np.float64]) -> NDArray[np.float64]:
    t = np.tanh(_ROOT * (u + _CUBIC * u**3))
    return 0.5 * (1 + t) + 0.5 * u * (1 - t**2) * _ROOT * (1 + 3 * _CUBIC * u**2)


def _silu_slope(u: NDArray[np.float64]) -> NDArray[np.float64]:
    s = expit(u)
    return s * (1 + u * (1 - s))


def _smooth(function: Function, derivative: Function) -> Given:
    """Return an analytic activation, whose Gaussian expectations are computed by quadrature."""
    return Given(function, derivative, GaussianMoment(function), GaussianMoment(derivative))


ACTIVATIONS: dict[str, Activation] = {
    "relu": Homogeneous(relu_kernel, relu_slope_kernel, 0.0),
    "leaky_relu": _leaky_relu(LEAK),
    "relu_squared": ReluSquared(),
    "identity": Homogeneous(lambda rho: rho, lambda rho: 0.0 * rho + 1.0, 1.0),
    "gelu": _smooth(lambda u: u * ndtr(u), _gelu_slope),
    "gelu_tanh": _smooth(_gelu_tanh, _gelu_tanh_slope),
    "silu": _smooth(lambda u: u * expit(u), _silu_slope),
    "tanh": _smooth(np.tanh, lambda u: 1 - np.tanh(u) ** 2),
}
"""The built-in activations by the value of `Stack.activation`."""
