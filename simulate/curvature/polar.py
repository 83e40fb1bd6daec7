"""The polar factor of a gradient, which is Muon's direction without Newton-Schulz steps."""

import torch
from jaxtyping import Float
from torch import Tensor

# Of a polar factor: singular values below so much of the largest are rounding, squared 1e-10 as in docs/first_step.md.
_NUMERICAL_RANGE = 1e-5


def polar_factor(
    matrix: Float[Tensor, "draws rows columns"], d_in: int, d_out: int
) -> Float[Tensor, "draws rows columns"]:
    """Return the polar factor of a matrix on its numerical range, times √max(1, d_out/d_in).

    For a product Pᵀ C R, where P and R have orthonormal rows, it is Pᵀ polar(C) R.

    Args:
        matrix: the matrix, or its core C.
        d_in: rows of the matrix itself.
        d_out: columns of the matrix itself.
    """
    if not matrix.numel():
        return matrix
    # LAPACK refuses what is not finite; of a draw that has diverged the step is NaN.
    finite = matrix.isfinite().all(2, keepdim=True).all(1, keepdim=True)
    left, values, right = torch.linalg.svd(matrix.where(finite, 0.0), full_matrices=False)
    left = left.where(finite, torch.nan)
    inside = (values > _NUMERICAL_RANGE * values[:, :1]).to(matrix.dtype)
    return (left * inside[:, None]) @ right * max(1.0, d_out / d_in) ** 0.5
