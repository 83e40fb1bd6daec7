"""Derive the paper's Lemmas 3 and 4 on LayerNorm and its Jacobian, from vectors with symbolic entries.

Source: Xiong et al. (2020), arXiv:2002.04745v2, Lemmas 3 and 4 (4.1), appendix D.
"""

import math

import sympy as sp


def layer_norm(vector: sp.Matrix) -> sp.Matrix:
    """Return LayerNorm of a symbolic row vector, with scale 1 and bias 0.

    It is √d (x − mean(x)) / ‖x − mean(x)‖.
    """
    y = centred(vector)
    return y * sp.sqrt(vector.cols) / sp.sqrt(squared_norm(y))


def layer_norm_energy(width: int) -> sp.Expr:
    """Return the squared length of LayerNorm's output for a symbolic vector: the width, for every input.

    >>> layer_norm_energy(3)
    3
    """
    return sp.simplify(sum(entry**2 for entry in layer_norm(row("x", width))))


def layer_norm_jacobian(vector: sp.Matrix) -> sp.Matrix:
    """Return the Jacobian matrix of LayerNorm at a symbolic row vector, by differentiation.

    Source: Lemma 3, appendix D, where the printed form has ‖y‖^(3/2) instead of (‖y‖²)^(3/2).
    """
    return layer_norm(vector).jacobian(vector)


def layer_norm_projector(vector: sp.Matrix) -> sp.Matrix:
    """Return LayerNorm's Jacobian divided by its norm: an orthogonal projector off two directions.

    It is J_LN(x) ‖y‖/√d with y = x − mean(x), which projects off the constant vector and off y.

    The tests prove P = Pᵀ = P², P1 = Py = 0 and rank d − 2 for symbolic entries, so ‖J_LN(x)‖₂ = √d/‖y‖ exactly
    for d ≥ 3 (and J = 0 for d = 2).
    """
    projector = layer_norm_jacobian(vector) * sp.sqrt(squared_norm(centred(vector))) / sp.sqrt(vector.cols)
    # Entries are rational: a common denominator is their simplest form, and found much sooner than by a search.
    return projector.applyfunc(sp.cancel)


def uncentred_ratio(noise: sp.Matrix, offset: sp.Expr) -> sp.Expr:
    """Return the ratio of LayerNorm's exact Jacobian norm to the paper's value, for a vector whose mean is not 0.

    The ratio is ‖J_LN(x)‖₂ / (√d/‖x‖) = ‖x‖/‖y‖, with y the centred x, for x = offset · 1 + noise.

    >>> a = sp.Symbol("a", positive=True)
    >>> sp.limit(uncentred_ratio(sp.Matrix([[1, -1, 0]]), a) / a, a, sp.oo)
    sqrt(6)/2
    """
    x = noise + sp.ones(1, noise.cols) * offset
    y = noise - sp.ones(1, noise.cols) * (sum(noise) / noise.cols)
    return sp.sqrt(squared_norm(x)) / sp.sqrt(squared_norm(y))


def post_jacobian_square() -> sp.Expr:
    """Return the mean squared norm of LayerNorm's Jacobian in Post-LN for one token, at large width.

    It is E||J_LN(x5)||₂² = E[d/‖y‖²] to first order in 1/d, with y the centred x5.

    It follows from the first two moments of ‖y‖²: d + (d − 1)/2, since the mean of the branch is removed, and 15 d/4.

    >>> post_jacobian_square()
    2/3 + 4/(3*d)
    """
    d = sp.Symbol("d", positive=True)
    mean, variance = d + (d - 1) / sp.Integer(2), sp.Rational(15, 4) * d
    inverse, small = d / mean * (1 + variance / mean**2), sp.Symbol("u", positive=True)
    return sp.expand(sp.series(inverse.subs(d, 1 / small), small, 0, 2).removeO().subs(small, 1 / d))


def post_jacobian_size(width: int) -> float:
    """Return the root mean squared norm of LayerNorm's Jacobian in Post-LN at a given width.

    It is the root of `post_jacobian_square`, and tends to √(2/3) for large widths.

    >>> round(post_jacobian_size(64), 3)
    0.829
    """
    return float(sp.sqrt(post_jacobian_square()).subs(sp.Symbol("d", positive=True), width))


def pre_eigenvalue_radius(layer: int) -> float:
    """Return the radius of the disc that the eigenvalues of a Pre-LN attention sub-layer's Jacobian fill.

    It is (1 + 3l/2)^(−1/2) around 1, for the eigenvalues of I + J_LN(x) W^V at ‖x‖² = (1 + 3l/2) d.

    J_LN(x) is 1/√q times a projector of rank d − 2, and the eigenvalues of W^V fill the unit disc at large width.
    Source: the circular law, Ginibre (1965).

    Args:
        layer: l.

    >>> pre_eigenvalue_radius(2)
    0.5
    """
    return float((1 + 1.5 * layer) ** -0.5)


def uncentred_ratio_mean(width: int, offset: float) -> float:
    """Return the mean ratio of a vector's length to its length after centring, for a large mean.

    It is E‖x‖/‖y‖, with y the centred x, for x = offset · 1 + N(0, I_width) with a large offset.

    ‖y‖² is chi-square with d − 1 degrees of freedom. Neglects relative O(1/offset²): ‖x‖² = ‖y‖² + d (offset + mean
    noise)².
    """
    inverse_norm = math.exp(math.lgamma((width - 2) / 2) - math.lgamma((width - 1) / 2)) / math.sqrt(2)
    return offset * math.sqrt(width) * inverse_norm


def printed_jacobian_ratio(vector: sp.Matrix) -> sp.Expr:
    """Return an eigenvalue, which should be 0, of LayerNorm's Jacobian as the paper prints it.

    It is the eigenvalue along y divided by √d/‖y‖.

    The printed derivative is of y/‖y‖ = y (‖y‖²)^(−1/2), whose second term carries (‖y‖²)^(−3/2) yᵀy. With ‖y‖^(−3/2)
    instead, that is with ‖y‖^(3/2) where (‖y‖²)^(3/2) = ‖y‖³ belongs, the matrix has along y the eigenvalue
    √d (1/‖y‖ − ‖y‖^(1/2)) instead of 0.

    Returns:
        The ratio 1 − ‖y‖^(3/2), which is 0 only for ‖y‖ = 1.

    >>> printed_jacobian_ratio(sp.Matrix([[2, -2, 0, 0]]))
    1 - 4*2**(1/4)
    """
    y = centred(vector)
    square = squared_norm(y)
    printed = sp.eye(vector.cols) / sp.sqrt(square) - y.T * y / square ** sp.Rational(3, 4)
    return sp.simplify((printed * y.T)[0, 0] / y[0, 0] * sp.sqrt(square))


def projection_eigenvalues(size: int) -> dict[sp.Expr, int]:
    """Return the eigenvalues, with multiplicities, of the projector I − aᵀa for a unit row vector a.

    The row has `size` symbolic entries.

    They follow from the characteristic polynomial, with a normalized. Lemma 4 states 0 once and 1 otherwise.

    >>> projection_eigenvalues(3)
    {0: 1, 1: 2}
    """
    a = row("a", size)
    eigenvalue = sp.Symbol("lambda")
    matrix = sp.eye(size) - a.T * a / squared_norm(a)
    polynomial = sp.factor(sp.simplify((eigenvalue * sp.eye(size) - matrix).det()))
    return dict(sorted(sp.roots(polynomial, eigenvalue).items(), key=lambda item: item[0]))


def energy_kept(width: int) -> sp.Expr:
    """Return the mean share of a random gradient's squared length that LayerNorm's Jacobian keeps.

    It is E‖J_LN(x) g‖²/(‖J_LN(x)‖₂² ‖g‖²) for g of uniform direction, which is trace(P)/d.

    Here E[gᵀg] = ‖g‖² I/d. So bounding ‖J g‖ by ‖J‖₂ ‖g‖ loses nothing at large d, and a factor 1 − 2/d at finite d.

    >>> energy_kept(3)
    1/3
    """
    return sp.simplify(layer_norm_projector(row("x", width)).trace()) / width


def centred(vector: sp.Matrix) -> sp.Matrix:
    """Return a row vector minus the mean of its entries."""
    return vector - sp.ones(1, vector.cols) * (sum(vector) / vector.cols)


def row(name: str, width: int) -> sp.Matrix:
    """Return a row vector of real symbols."""
    return sp.Matrix(1, width, lambda _, j: sp.Symbol(f"{name}_{j}", real=True))


def squared_norm(vector: sp.Matrix) -> sp.Expr:
    """Return the squared length of a symbolic row vector."""
    return sum((entry**2 for entry in vector), sp.Integer(0))
