"""Expectations over Gaussians: ReLU kernels, products of softmax outputs, and the cross-entropy of random logits."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
Entry = TypeVar("Entry", float, Array)

# Every integrand below is analytic and varies on a scale of at least 1 in ln t, so the trapezoidal rule on the line
# converges like exp(-π²/step): 0.4 leaves about 1e-11. Gaussian tails are cut at 9 standard deviations (1e-18).
_STEP = 0.4
_LARGEST_TABLE = 2e7

# Gauss's rule of few nodes has the same accuracy below a scale of 0.2: its error is like k! (scale/(π/2))^(2k).
_SMALL, _FEW = 0.2, 10
# Spacing in ln t below which a common line of points would be longer than the table.
_FINEST = 0.02

LARGEST_SCALE = 2000.0
"""The largest standard deviation of logits that the quadratures support: √d for a width of four million."""
# Density in ln t below which what is left out is less than 1/V by many digits.
_UNLIKELY = 1e-30
_PER_TURN = 0.5 / math.pi
_TAIL = 9.0
_BELOW_ONE = np.nextafter(1.0, 0.0)


def relu_kernel(correlation: Entry) -> Entry:
    """Return E[ReLU(u) ReLU(v)] for standard normal variables u and v with a given correlation.

    The correlation is a float, or an array for entrywise results.

    It is (√(1 − ρ²) + ρ (π − arccos ρ)) / (2π): 1/2 at ρ = 1 (Lemma 1 per entry), 1/(2π) at ρ = 0.
    Source: Cho and Saul (2009), the arc-cosine kernel of degree 1, halved.

    >>> relu_kernel(1.0)
    0.5
    """
    # On plain floats math is ten times faster than NumPy, and a deep stack asks thousands of times.
    sqrt, arccos = (math.sqrt, math.acos) if isinstance(correlation, float) else (np.sqrt, np.arccos)
    return (sqrt(1.0 - correlation * correlation) + correlation * (math.pi - arccos(correlation))) * _PER_TURN


def relu_slope_kernel(correlation: Entry) -> Entry:
    """Return E[ReLU'(u) ReLU'(v)] for standard normal variables u and v with a given correlation.

    It is (π − arccos ρ)/(2π) for the correlation ρ.

    Source: Cho and Saul (2009), the arc-cosine kernel of degree 0, halved.
    """
    arccos = math.acos if isinstance(correlation, float) else np.arccos
    return (math.pi - arccos(correlation)) * _PER_TURN


def relu_squared_kernel(correlation: Entry) -> Entry:
    """Return E[ReLU(u)² ReLU(v)²] for standard normal variables u and v with a given correlation.

    It is (3 ρ √(1 − ρ²) + (π − arccos ρ)(1 + 2 ρ²)) / (2π).
    Source: Cho and Saul (2009), the arc-cosine kernel of degree 2, halved.
    """
    sqrt, arccos = (math.sqrt, math.acos) if isinstance(correlation, float) else (np.sqrt, np.arccos)
    square = correlation * correlation
    return (3 * correlation * sqrt(1.0 - square) + (math.pi - arccos(correlation)) * (1.0 + 2.0 * square)) * _PER_TURN


@lru_cache(maxsize=4096)
def softmax_overlap(correlation: float, scale: float, vocab: int, other_scale: float | None = None) -> float:
    """Return E[p·p'] for softmax vectors p and p' of correlated Gaussian logits a and a', by quadrature.

    (a_v, a'_v) are independent over the V classes, each pair Gaussian with standard deviations scale and other_scale
    (the same, if None) and the given correlation. From 1/S = ∫ exp(−tS) dt for both sums, with t = e^τ and u = e^υ,
    E[p·p'] = V ∫∫ N(τ, υ) M(τ, υ)^(V−1) dτ dυ, where M = E[exp(−e^(τ+a) − e^(υ+a'))] and
    N = E[e^(τ+a) e^(υ+a') exp(−e^(τ+a) − e^(υ+a'))] over one pair. Given the part w that a and a' share, both factor.

    Args:
        correlation: correlation of a_v and a'_v.
        scale: standard deviation of a_v.
        vocab: number of classes V.
        other_scale: standard deviation of a'_v; None for the same as that of a_v.

    Raises:
        ValueError: scale is so large, at a correlation so near 1, that the quadrature would not fit into memory.

    >>> round(softmax_overlap(0.0, 1.0, 10), 9)  # independent rows: V · (1/V)²
    0.1
    """
    if other_scale is None or other_scale == scale:
        if correlation == 1.0:
            return _softmax_concentration(scale, vocab)
        scales = [scale]
    else:
        scales = [scale, other_scale]
    sides = [_Side(std * math.sqrt(abs(correlation)), std * math.sqrt(1.0 - abs(correlation)), vocab) for std in scales]
    # Nodes in w do for both sides if they do for the one that needs the more.
    w, weights = _smooth_rule(max(side.shared for side in sides), max(side.shared / side.step for side in sides))
    if len(w) * max(len(side.log_t(side.step)) for side in sides) > _LARGEST_TABLE:
        raise ValueError(
            f"output_scale must be smaller for tokens this alike, got a logit scale of {scale:g} at correlation "
            f"{correlation:.6f}; the prediction's quadrature reaches a scale of about 50 there."
        )
    tables = [_where_likely(*side.table(w), weights, vocab) for side in sides]
    (step, p, n), (other_step, p_other, n_other) = tables[0], tables[-1]
    if correlation < 0:  # a and a' share w with opposite signs; the rule in w is symmetric
        p_other, n_other = p_other[:, ::-1], n_other[:, ::-1]
    # 1 − M, kept as such: M^(V−1) needs it to relative accuracy when V is large.
    complement = (p @ weights)[:, None] + (p_other @ weights)[None, :] - (p * weights) @ p_other.T
    integrand = ((n * weights) @ n_other.T) * _power(complement, vocab - 1)
    return float(vocab * np.trapezoid(np.trapezoid(integrand, dx=other_step), dx=step))


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two softmax vectors in an overlap.

    Attributes:
        shared: standard deviation of the part of the logits that both vectors share.
        own: standard deviation of its own part.
        vocab: number of classes.
    """

    shared: float
    own: float
    vocab: int

    @property
    def step(self) -> float:
        """The largest step of the grid in ln t."""
        return _step(self.own, self.vocab)

    def log_t(self, step: float) -> Array:
        """Return the grid in ln t with a given step."""
        return _log_t_grid(math.hypot(self.shared, self.own), self.vocab, step)

    def table(self, w: Array) -> tuple[float, Array, Array]:
        """Return a step in ln t, and the factors of 1 − M and N for every ln t and every node w.

        Args:
            w: nodes of a rule for the shared part.
        """
        spacing = self.shared * float(w[1] - w[0])
        if len(w) == _FEW or spacing < _FINEST:
            log_t = self.log_t(self.step)
            columns = [_conditional_factors(self.own, log_t + self.shared * float(node)) for node in w]
            miss, hit = (np.stack(values, axis=1) for values in zip(*columns, strict=True))
            return self.step, miss, hit
        # With a step of so many spacings, ln t + shared · w is a point of one line for every t and w.
        stride = max(1, int(self.step / spacing * (1 + 1e-12)))
        log_t = self.log_t(stride * spacing)
        line = log_t[0] + self.shared * w[0] + spacing * np.arange((len(log_t) - 1) * stride + len(w))
        miss, hit = (sliding_window_view(row, len(w))[::stride].copy() for row in _conditional_factors(self.own, line))
        return stride * spacing, miss, hit


def _where_likely(step: float, miss: Array, hit: Array, weights: Array, vocab: int) -> tuple[float, Array, Array]:
    """Return a side's table restricted to the part of the grid in ln t where the integrand is not negligible.

    For large scales this is a small part. Integrated over the other side's ln t, the integrand is at most
    f = E[hit] (1 − E[miss])^(V−1), and V ∫ f is the sum of a softmax, 1.
    """
    (likely,) = np.nonzero((vocab * (hit @ weights) * _power(miss @ weights, vocab - 1)) > _UNLIKELY)
    kept = slice(likely[0], likely[-1] + 1)
    return step, miss[kept], hit[kept]


def _softmax_concentration(scale: float, vocab: int) -> float:
    """Return E[p·p] for one softmax p, V ∫ E[e^(2(τ+a)) exp(−e^(τ+a))] M(τ)^(V−1) dτ.

    Logits a are N(0, scale²), and M(τ) = E[exp(−e^(τ+a))].
    """
    z, weights = normal_rule(scale / _STEP)
    step = _step(scale, vocab)
    s = np.minimum(_log_t_grid(scale, vocab, step)[:, None] + scale * z, 700.0)
    twice = np.exp(2.0 * s - np.exp(s)) @ weights
    return float(vocab * np.trapezoid(twice * _power(_miss(s) @ weights, vocab - 1), dx=step))


@dataclass(frozen=True, slots=True)
class SoftmaxOverlap:
    """The expected product E[p·p'] of two tokens' softmax outputs, as a function of the tokens' second moments.

    The logits are σ_e √q z with z a standard normal.

    Attributes:
        output_scale: σ_e.
        vocab: number of classes.
    """

    output_scale: float
    vocab: int

    @property
    def degree(self) -> int:
        """The degree of the polynomial that interpolates the expected product of two softmax outputs.

        It is a polynomial in arccos of the correlation, for mean squares up to 1.
        """
        return 24 + int(4 * self.output_scale)

    def __call__(self, first: float, second: float, covariance: float) -> float:
        """Return E[p·p'] for two tokens with given mean squared activations and a given covariance.

        Args:
            first: mean squared activation of the first token.
            second: mean squared activation of the second token.
            covariance: mean product of their coordinates.
        """
        if first == second:
            return softmax_overlap(_bounded(covariance / first), self.output_scale * math.sqrt(first), self.vocab)
        scales = math.sqrt(first), math.sqrt(second)
        correlation = _bounded(covariance / (scales[0] * scales[1]))
        return softmax_overlap(correlation, self.output_scale * scales[0], self.vocab, self.output_scale * scales[1])


def _bounded(correlation: float) -> float:
    return min(1.0, max(-1.0, correlation))


@lru_cache(maxsize=256)
def cross_entropy(scale: float, vocab: int) -> float:
    """Return the expected cross-entropy in nats for V independent N(0, scale²) logits and a label independent of them.

    The expectation is E[log Σ_v e^(a_v)] − E[a_y]. By Frullani's integral, E[log S] = ∫ (e^(−t) − E[e^(−tS)]) dt/t.
    In ln t the first term is a step that no large scale smooths. A Gaussian step of the same centre replaces it,
    which adds Euler's constant γ.

    Args:
        scale: standard deviation of the logits.
        vocab: number of classes V.

    Raises:
        ValueError: scale is beyond `LARGEST_SCALE`.
    """
    z, weights = normal_rule(scale / _STEP)
    step = _step(scale, vocab)
    log_t = _log_t_grid(scale, vocab, step)
    survival = _power(_miss(log_t[:, None] + scale * z) @ weights, vocab)
    return float(np.trapezoid(ndtr(-log_t / max(1.0, scale)) - survival, dx=step) - np.euler_gamma)


def _power(complement: Array, exponent: int) -> Array:
    """Return (1 − complement)^exponent, accurate for a small complement and a large exponent."""
    return np.exp(exponent * np.log1p(-np.minimum(complement, _BELOW_ONE)))


def _step(smoothing: float, vocab: int) -> float:
    """Return a step in ln t for factors smoothed by a Gaussian and raised to V − 1.

    The power narrows the factors to the width of a maximum's distribution.
    """
    return _STEP * max(1.0, 2.0 * smoothing / (1.0 + math.sqrt(2.0 * math.log(vocab))))


def _log_t_grid(scale: float, vocab: int, step: float) -> Array:
    """Return the grid in ln t, from 1/t beyond any likely sum of exponentials to 1/t below any likely term."""
    _check_scale(scale)
    low = -np.log(vocab) - scale * (np.sqrt(2.0 * np.log(vocab)) + _TAIL) - 25.0
    return np.arange(low, max(1.0, scale) * _TAIL + 4.0 + step, step)


def normal_rule(density: float) -> tuple[Array, Array]:
    """Return nodes and weights of a trapezoidal rule for expectations over a standard normal variable.

    Args:
        density: number of nodes per standard deviation; at least 2 are used.

    Raises:
        ValueError: the rule would have more nodes than `LARGEST_SCALE` needs.
    """
    _check_scale(density * _STEP)
    step = 1.0 / max(2.0, density)
    count = int(np.ceil(_TAIL / step))
    nodes: Array = step * np.arange(-count, count + 1, dtype=float)
    return nodes, step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * nodes**2)


def _check_scale(scale: float) -> None:
    """Check that the standard deviation of logits is in the range of the quadratures.

    Raises:
        ValueError: the scale is more than `LARGEST_SCALE`, or not a number.
    """
    if not scale <= LARGEST_SCALE:
        raise ValueError(
            f"output_scale must be at most {LARGEST_SCALE:g} for a prediction, the size of the last tokens included, "
            f"got logits of scale {scale:g}."
        )


def _smooth_rule(scale: float, density: float) -> tuple[Array, Array]:
    """Return nodes and weights of N(0, 1) for functions of s + scale · z that vary in s as the integrands here do.

    A small scale has a few nodes of Gauss's rule, others `normal_rule` with a given density.
    """
    return normal_rule(density) if scale >= _SMALL else _few_nodes()


@lru_cache(maxsize=1)
def _few_nodes() -> tuple[Array, Array]:
    """Return nodes and weights of Gauss's rule for N(0, 1), an eigenvalue problem that is solved once."""
    nodes, weights = hermegauss(_FEW)
    weights /= math.sqrt(2.0 * math.pi)
    for numbers in (nodes, weights):
        numbers.flags.writeable = False
    return nodes, weights


def _conditional_factors(scale: float, s: Array) -> tuple[Array, Array]:
    """Return E[1 − exp(−e^(s+a))] and E[e^(s+a) exp(−e^(s+a))] for a ~ N(0, scale²), at every s."""
    z, weights = _smooth_rule(scale, scale / _STEP)
    points = s[:, None] + scale * z
    return _miss(points) @ weights, _hit(points) @ weights


def _miss(s: Array) -> Array:
    """Return 1 − exp(−e^s), which is 1 for s above 700, where e^s would overflow."""
    return -np.expm1(-np.exp(np.minimum(s, 700.0)))


def _hit(s: Array) -> Array:
    """Return e^s exp(−e^s)."""
    s = np.minimum(s, 700.0)
    return np.exp(s - np.exp(s))
