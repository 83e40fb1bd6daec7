"""The polar factor of a gradient: the update of the optimizer Muon without Newton-Schulz steps."""

import torch
from jaxtyping import Float
from torch import Tensor

# Of a polar factor: singular values below so much of the largest are rounding, squared 1e-10 as in docs/first_step.md.
_NUMERICAL_RANGE = 1e-5


def polar_factor(
    matrix: Float[Tensor, "draws rows columns"], d_in: int, d_out: int
) -> Float[Tensor, "draws rows columns"]:
    """Return the polar factor of gradient matrices, with the scale that Muon gives it.

    It is the polar factor on the numerical range, times √max(1, d_out/d_in).

    For Pᵀ C R with orthonormal rows in P and R, the polar factor is Pᵀ polar(C) R.

    Args:
        matrix: the matrices, or their cores C; one per draw.
        d_in: number of rows of the matrix itself, not of C.
        d_out: number of columns of the matrix itself.
    """
    if not matrix.numel():
        return matrix
    # LAPACK refuses what is not finite; of a draw that has diverged the step is NaN.
    finite = matrix.isfinite().all(2, keepdim=True).all(1, keepdim=True)
    left, values, right = torch.linalg.svd(matrix.where(finite, 0.0), full_matrices=False)
    left = left.where(finite, torch.nan)
    inside = (values > _NUMERICAL_RANGE * values[:, :1]).to(matrix.dtype)
    return (left * inside[:, None]) @ right * max(1.0, d_out / d_in) ** 0.5
