"""Names of optimizers: what each step is, wherever one is predicted, measured or trained with."""

from typing import Literal, get_args

Optimizer = Literal["sgd", "normalized", "adam", "polar", "muon"]
"""With g the gradient: g, g/|g|, sign g (Adam as ε → 0), the exact polar factor of every matrix's g, and the five
Newton-Schulz steps that `torch.optim.Muon` has in its place; the latter two times √max(1, d_out/d_in)."""

OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)

ModuleOptimizer = Literal["sgd", "adam", "polar", "muon"]
MODULE_OPTIMIZERS: tuple[ModuleOptimizer, ...] = get_args(ModuleOptimizer)
"""Those whose first step is taken from any module."""

TrainingOptimizer = Literal["sgd", "polar", "adam"]
TRAINING_OPTIMIZERS: tuple[TrainingOptimizer, ...] = get_args(TrainingOptimizer)
"""Those of whole trainings. Steps of the first two have the rank of the batch and commute with orthonormal maps, so
that no matrix need be drawn; Adam's are elementwise."""

LINEAR: tuple[Optimizer, ...] = ("sgd", "normalized")
"""Steps along the gradient itself."""

NAMES: dict[str, str] = {
    "sgd": "SGD", "normalized": "normalized SGD", "adam": "Adam", "polar": "polar factor", "muon": "Muon",
}  # fmt: skip
"""As prose and pictures have them."""
