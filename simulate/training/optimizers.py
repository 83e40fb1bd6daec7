"""Optimizers: SGD with momentum and weight decay and polar factors, whose steps are of low rank, and Adam."""

from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theory.stack.optimizers import TRAINING_OPTIMIZERS, TrainingOptimizer

# Of a polar factor: singular values below so much of the largest are rounding, squared 1e-10 as in docs/first_step.md.
_NUMERICAL_RANGE = 1e-5

_NOT_TRAINED = {
    "muon": ": training has 'polar', its exact polar factor, of every matrix, and no Newton-Schulz or Nesterov's steps"
}

SECOND, EPSILON = 0.999, 1e-8
"""Of Adam: the decay of the mean square, and what is added to its root; the defaults of torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """How a matrix moves along its gradients.

    With g the gradient, v the momentum and η the rate, "sgd" is that of `torch.optim.SGD`: v ← μ v + g + λ W,
    W ← W - η v. "polar" is v ← μ v + g, W ← (1 - η λ) W - η polar(v) √max(1, d_out/d_in): `torch.optim.Muon` without
    Nesterov's step, and with the exact polar factor where it has Newton-Schulz steps. "adam" is that of
    `torch.optim.AdamW` with betas (μ, 0.999) and its ε, 1e-8: where μ is 0 and gradients are far above ε its first step
    is η times their sign.

    Attributes:
        name: "sgd", "polar" or "adam".
        momentum: μ, at least 0 and below 1.
        weight_decay: λ, at least 0.

    Raises:
        ValueError: an argument is outside its range.
    """

    name: TrainingOptimizer = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in TRAINING_OPTIMIZERS:
            raise ValueError(
                f"optimizer must be 'sgd', 'polar' or 'adam', got {self.name!r}{_NOT_TRAINED.get(self.name, '')}."
            )
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be a number in [0, 1), got {self.momentum!r}.")
        if not 0.0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay must be a finite number of at least 0, got {self.weight_decay!r}.")

    @property
    def decoupled(self) -> bool:
        """Whether weight decay stays out of the momentum, as Muon's and AdamW's does."""
        return self.name != "sgd"

    @property
    def stored(self) -> dict[str, str | float]:
        """As keys of cells have it: there "polar" is called "muon", as in run folders that have landed."""
        return asdict(self) | {"name": "muon" if self.name == "polar" else self.name}


def polar_factor(
    matrix: Float[Tensor, "draws rows columns"], d_in: int, d_out: int
) -> Float[Tensor, "draws rows columns"]:
    """The polar factor on the numerical range, times √max(1, d_out/d_in).

    Of Pᵀ C R with orthonormal rows in P and R it is Pᵀ polar(C) R.

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
