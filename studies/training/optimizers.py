"""Optimizers: SGD with momentum and weight decay and polar factors, whose steps are of low rank, and Adam."""

from dataclasses import dataclass
from typing import Literal, get_args

TrainingOptimizer = Literal["sgd", "polar", "adam"]
TRAINING_OPTIMIZERS: tuple[TrainingOptimizer, ...] = get_args(TrainingOptimizer)
"""Those of whole trainings. Steps of the first two have the rank of the batch and commute with orthonormal maps, so
that no matrix need be drawn; Adam's are elementwise."""

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
