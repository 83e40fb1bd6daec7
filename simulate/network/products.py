"""Multiply matrices for many random networks at once, with the library that is faster for their sizes.

On a CPU, torch multiplies with MKL, whose kernels for other makers' processors use only half of the vector unit and
copy small matrices. NumPy's OpenBLAS takes 0.4 of the time for 8 to 64 rows on an EPYC with AVX-512, and no more time
without AVX-512 (docs/report.md). It multiplies draw by draw, so rounding does not depend on the number of draws.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# Below, a call for each draw costs NumPy more than the product.
LEAST_ROWS = 8


def product(
    first: Float[Tensor, "draws a b"],
    second: Float[Tensor, "draws b c"],
    out: Tensor | None = None,
    onto: Tensor | None = None,
) -> Float[Tensor, "draws a c"]:
    """Return the matrix product A B for every random network in a batch.

    Args:
        first: the matrices A, (draws, a, b).
        second: the matrices B, (draws, b, c); A or B may be a transposed view.
        out: output tensor; None allocates memory.
        onto: a tensor to which the product is added in place, and which is returned.
    """
    draws, a, b = first.shape
    if onto is not None:
        return onto.baddbmm_(first, second) if first.device.type != "cpu" else onto.add_(product(first, second))
    if first.device.type != "cpu" or min(a, b) < LEAST_ROWS or not (_plain(first) and _plain(second)):
        return torch.bmm(first, second, out=out)
    if out is None:
        out = torch.empty(draws, a, second.shape[2], dtype=first.dtype)
    np.matmul(first.detach().numpy(), second.detach().numpy(), out=out.numpy())
    return out


def _plain(matrices: Tensor) -> bool:
    """Return whether matrices have contiguous rows or columns; for others, NumPy uses a slow loop."""
    (_, rows, columns), (_, down, along) = matrices.shape, matrices.stride()
    return (along == 1 and down >= columns) or (down == 1 and along >= rows)
