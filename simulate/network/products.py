"""Products of many small matrices, one of each draw, by the library that has the faster kernels for them.

On a CPU torch multiplies by MKL, whose kernels for processors of other makers leave out half of the vector unit, and
which copies a few rows into the order of large matrices. NumPy's OpenBLAS takes 0.4 of the time for 8 to 64 rows on an
EPYC with AVX-512, and no more without it (docs/report.md). It multiplies draw by draw, so that how a product is
rounded does not depend on how many draws there are.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# Below, a call for each draw costs NumPy more than the product.
_LEAST_ROWS = 8


def product(
    first: Float[Tensor, "draws a b"],
    second: Float[Tensor, "draws b c"],
    out: Tensor | None = None,
    onto: Tensor | None = None,
) -> Float[Tensor, "draws a c"]:
    """The matrix product A B, for every draw.

    Args:
        first: A.
        second: B; either may be a transposed view.
        out: contiguous output tensor; None allocates memory.
        onto: what it is added to and written into in its place.
    """
    draws, a, b = first.shape
    if onto is not None:
        return onto.baddbmm_(first, second) if first.device.type != "cpu" else onto.add_(product(first, second))
    if first.device.type != "cpu" or min(a, b) < _LEAST_ROWS or not (_plain(first) and _plain(second)):
        return torch.bmm(first, second, out=out)
    if out is None:
        out = torch.empty(draws, a, second.shape[2], dtype=first.dtype)
    np.matmul(first.detach().numpy(), second.detach().numpy(), out=out.numpy())
    return out


def _plain(matrices: Tensor) -> bool:
    """Whether rows or columns are contiguous and apart; of others, such as expanded ones, NumPy multiplies by hand."""
    (_, rows, columns), (_, down, along) = matrices.shape, matrices.stride()
    return (along == 1 and down >= columns) or (down == 1 and along >= rows)
