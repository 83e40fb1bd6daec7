"""Means of products of functions of two Gaussians, for many tokens at once, by Hermite polynomials."""

from collections.abc import Iterator

import numpy as np

from theory.mean_field.gaussian import normal_rule
from theory.mean_field.kernels import Array
from theory.mean_field.token_groups import with_diagonal

# Orders at most; what is left out of the mean square; and nodes per unit.
_ORDERS, _LEFT_OUT = 40, 1e-9
_DENSITY = 4.0


def gaussian_nodes() -> tuple[Array, Array]:
    """Return quadrature nodes and weights of N(0, 1) for functions that vary on a scale of about 1."""
    return normal_rule(_DENSITY)


def _coefficients(values: Array) -> Iterator[Array]:
    """Yield the coefficients E f_i(u) He_k(u)/√k!, (..., n), for k = 0, 1, ... until their squares sum to E f².

    Args:
        values: f_i at the nodes, (..., n, nodes).
    """
    nodes, weights = gaussian_nodes()
    before, polynomial = np.zeros_like(nodes), np.ones_like(nodes)
    square = left = values**2 @ weights
    for order in range(_ORDERS):
        part = values @ (weights * polynomial)
        yield part
        left = left - part**2
        if (left <= _LEFT_OUT * square).all():
            return
        before, polynomial = polynomial, ((nodes * polynomial - order**0.5 * before) / (order + 1.0) ** 0.5)


def pair_means(values: Array, correlation: Array) -> Array:
    """Return E[f_i(u) f_j(v)] for standard normal variables u and v with correlation ρ_ij, (..., n, n).

    The result is Σ_k ρ^k α_ik α_jk with α_ik = E f_i(u) He_k(u)/√k!. On the diagonal it is the mean of the square.

    Args:
        values: f_i at `gaussian_nodes`, (..., n, nodes).
        correlation: ρ, (..., n, n).
    """
    total, power = np.zeros(correlation.shape), np.ones(correlation.shape)
    for part in _coefficients(values):
        total += power * (part[..., :, None] * part[..., None, :])
        power *= correlation
    return with_diagonal(total, values**2 @ gaussian_nodes()[1])


def shifted_means(values: Array, shifts: Array) -> Array:
    """Return E[f_i(u + b_ij)] for a standard normal variable u and shifts b_ij, (..., n, n).

    The result is Σ_k α_ik b^k/√k! with α_ik as in `pair_means`.

    Args:
        values: f_i at `gaussian_nodes`, (..., n, nodes).
        shifts: b, (..., n, n).
    """
    total, power = np.zeros(shifts.shape), np.ones(shifts.shape)
    for order, part in enumerate(_coefficients(values)):
        total += power * part[..., :, None]
        power *= shifts / (order + 1.0) ** 0.5
    return total
