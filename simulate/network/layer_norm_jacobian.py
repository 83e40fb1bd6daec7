"""Sample the full Jacobian matrix of LayerNorm for tokens with a mean, to test the paper's Lemma 3."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from simulate.network.transformer import layer_norm


@dataclass(frozen=True, slots=True, eq=False)
class JacobianNorms:
    """The sampled norms of LayerNorm's Jacobian, with the norms that two forms of Lemma 3 predict.

    They are spectral norms at x = offset · 1 + z, z ~ N(0, I_d), (draws,).

    Attributes:
        exact: ‖J_LN(x)‖₂, the largest singular value of the differentiated Jacobian.
        centred: √d/‖x − mean(x)‖, the corrected lemma.
        uncentred: √d/‖x‖, the lemma as printed.
    """

    exact: NDArray[np.float64]
    centred: NDArray[np.float64]
    uncentred: NDArray[np.float64]


def jacobian_norms(*, width: int, offset: float, draws: int, seed: int) -> JacobianNorms:
    """Sample tokens with a given mean, and compute the spectral norm of LayerNorm's Jacobian at each token.

    The mean is `offset`, and computations are in float64.
    """
    x = offset + torch.randn(draws, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # One copy of a token for each row of its Jacobian: the gradient of one output.
    copies = x[:, None].repeat(1, width, 1).requires_grad_()
    (jacobians,) = torch.autograd.grad(layer_norm(copies), copies, torch.eye(width, dtype=x.dtype).expand_as(copies))
    centred = x - x.mean(1, keepdim=True)
    return JacobianNorms(
        exact=torch.linalg.matrix_norm(jacobians, 2).numpy(),
        centred=(width**0.5 / centred.norm(dim=1)).numpy(),
        uncentred=(width**0.5 / x.norm(dim=1)).numpy(),
    )
