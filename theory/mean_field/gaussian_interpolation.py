"""Expectations over two Gaussians for many variances and correlations, by Chebyshev interpolation."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev, chebpts1, chebval, chebvander
from numpy.typing import NDArray

Array = NDArray[np.float64]

PairFunction = Callable[[float, float, float], float]
"""A function of two variances and a covariance; equal functions should be equal objects, for the cache."""

# Degree of an interpolant in the angle.
_DEGREE = 32
# Logarithms of variances that differ by less are one.
_ALIKE = 2e-7
# Entries whose polynomials are evaluated at once.
_AT_ONCE = 20_000
# Decimals of a range of ln v: several kernels of a layer have one range but for rounding, and share coefficients.
_DIGITS = 9
# Ranges of ln v that layers share, each half a range above the last, and their nodes, which leave 2e-9.
_RANGE, _RANGE_NODES = 0.25, 5


@lru_cache(maxsize=256)
def correlation_curve(function: PairFunction, variance: float) -> Callable[[Array], Array]:
    """Interpolate an expectation over two Gaussians of equal variance as a function of their correlation.

    In θ = arccos ρ an expectation over a Gaussian pair is smooth up to ρ = ±1.

    Args:
        function: the pair function.
        variance: the variance of both Gaussians.
    """
    curve = Chebyshev.interpolate(
        lambda theta: _table(function, np.array([variance]), np.cos(theta))[0, 0], _angles(function), [0.0, np.pi]
    )
    return lambda correlation: curve(np.arccos(correlation))


def pair_values(function: PairFunction, variances: Array, correlation: Array) -> Array:
    """Evaluate a function of two variances and a covariance for all pairs of Gaussian variables, (..., n, n).

    The arguments are v_i, v_j and √(v_i v_j) ρ_ij, for all i and j.

    Few distinct arguments are computed one by one. Otherwise the function is interpolated in (ln v_i, ln v_j, arccos
    ρ), or only in the angle if variances agree to 7 digits, as a norm's epsilon leaves them.

    Args:
        function: the pair function.
        variances: v, (..., n).
        correlation: ρ, (..., n, n).
    """
    smallest, largest = _range(variances)
    if largest - smallest < _ALIKE:
        return correlation_curve(function, float(f"{math.exp((smallest + largest) / 2):.7g}"))(correlation)
    turns = np.round(correlation, 10)
    count, angles = _nodes(variances), _angles(function)
    few = count * (count + 1) // 2 * (angles + 1)
    # Of many, the correlations alone differ too often, which is seen much sooner than which rows do.
    if len(np.unique(turns.ravel()[: 4 * few])) <= few and len(np.unique(turns)) <= few:
        first, second = np.broadcast_arrays(variances[..., :, None], variances[..., None, :])
        # To 10 digits: kernels of equal tokens differ by rounding.
        low, high = (_rounded(end(first, second)) for end in (np.minimum, np.maximum))
        distinct, where = np.unique(np.stack([low, high, turns], -1).reshape(-1, 3), axis=0, return_inverse=True)
        if len(distinct) <= few:
            values = np.array([function(float(a), float(b), float(c) * math.sqrt(a * b)) for a, b, c in distinct])
            return np.asarray(values[where].reshape(correlation.shape))
    return _interpolated(function, variances, correlation, count, angles)


def values_at(function: Callable[[float], float], variances: Array) -> Array:
    """Evaluate a function of one variance v at all entries of an array, interpolated in ln v if many are distinct."""
    distinct, where = np.unique(_rounded(variances), return_inverse=True)
    count = _nodes(variances)
    if len(distinct) <= count:
        return np.array([function(float(v)) for v in distinct])[where].reshape(variances.shape)
    low, high = _range(variances)
    curve = Chebyshev.interpolate(lambda x: np.array([function(math.exp(u)) for u in x]), count - 1, [low, high])
    return curve(np.log(variances))


def _interpolated(function: PairFunction, variances: Array, correlation: Array, count: int, angles: int) -> Array:
    """Interpolate a function of two variances and a covariance for all i and j, from values at Chebyshev points."""
    (low, high), n = (round(end, _DIGITS) for end in _range(variances)), variances.shape[-1]
    start = math.floor(2 * low / _RANGE) * _RANGE / 2
    # A standard deviation of 100 is the largest of a moment.
    if high <= start + _RANGE <= 9.2 and _is_tabled(function, start + _RANGE):
        low, high, count = start, start + _RANGE, _RANGE_NODES
    turns = 2 / np.pi * np.arccos(correlation.reshape(-1, n, n)) - 1
    values, together = np.empty(turns.shape), max(1, _AT_ONCE // n**2)
    # Large polynomials are not kept.
    polynomials = _polynomials if n**2 <= _AT_ONCE else _polynomials.__wrapped__
    for start in range(0, len(turns), together):
        part = slice(start, start + together)
        of_pairs = polynomials(function, low, high, count, angles, variances.reshape(-1, n)[part].tobytes(), n)
        values[part] = chebval(turns[part], of_pairs, tensor=False)
    return values.reshape(correlation.shape)


@lru_cache(maxsize=2)  # the averages of a layer differ in their correlations only
def _polynomials(
    function: PairFunction, low: float, high: float, count: int, angles: int, variances: bytes, n: int
) -> Array:
    """Return the coefficients of the angle for all pairs of n variances per entry, (angles + 1, entries, n, n)."""
    powers = chebvander(2 * (np.log(np.frombuffer(variances).reshape(-1, n)) - low) / (high - low) - 1, count - 1)
    return np.asarray(powers @ _coefficients(function, low, high, count, angles)[:, None] @ powers.mT)


@lru_cache(maxsize=256)
def _coefficients(function: PairFunction, low: float, high: float, count: int, angles: int) -> Array:
    """Return the coefficients of the angle and of both variances, (angles + 1, count, count), for ln v in a range."""
    points, around = chebpts1(count), np.pi / 2 * (chebpts1(angles + 1) + 1)
    # Of opposite signs exactly, whose pair functions are to be had together.
    cosines = (np.cos(around) - np.cos(around)[::-1]) / 2
    table = _table(function, np.exp(low + (high - low) * (points + 1) / 2), cosines)
    along, turned = (np.linalg.inv(chebvander(chebpts1(k), k - 1)) for k in (count, angles + 1))
    return np.asarray(np.einsum("ai,bj,ck,ijk->cab", along, along, turned, table, optimize=True))


def _table(function: PairFunction, nodes: Array, cosines: Array) -> Array:
    """Return a pair function at all pairs of variances and all correlations, (nodes, nodes, cosines).

    A function may have a method `table`, which is faster; pairs are NaN there if computing them one by one is faster.
    """
    unknown = np.full((len(nodes), len(nodes), len(cosines)), np.nan)
    table = function.table(nodes, cosines) if hasattr(function, "table") else unknown
    for i, j in np.argwhere(np.tril(np.isnan(table).any(-1))):
        v, w = nodes[i], nodes[j]
        at = [function(float(w), float(v), math.sqrt(v * w) * float(cosine)) for cosine in cosines]
        table[i, j] = table[j, i] = at
    return table


@lru_cache(maxsize=256)
def _is_tabled(function: PairFunction, largest: float) -> bool:
    """Return whether a function has a fast table up to a logarithm of the variance."""
    return hasattr(function, "table") and not np.isnan(function.table(np.exp([largest]), np.zeros(1))).any()


def _angles(function: PairFunction) -> int:
    return int(getattr(function, "degree", _DEGREE))


def _nodes(variances: Array) -> int:
    """Return how many variances between the smallest and the largest determine a pair function to six digits."""
    low, high = _range(variances)
    half = (high - low) / 2
    return 2 if half < 1e-3 else 3 + math.ceil(7 * half)


def _rounded(values: Array) -> Array:
    """Return positive numbers of any sizes with 10 digits or a few more."""
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.round(mantissas, 11), exponents)


def _range(*variances: Array) -> tuple[float, float]:
    return math.log(min(v.min() for v in variances)), math.log(max(v.max() for v in variances))
