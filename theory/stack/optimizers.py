"""Names of optimizers: what each step is, wherever one is predicted, measured or trained with."""

from typing import Literal, get_args

Optimizer = Literal["sgd", "normalized", "adam", "polar", "muon"]
"""With g the gradient: g, g/|g|, sign g (Adam as ε → 0), the exact polar factor of every matrix's g, and the five
Newton-Schulz steps that `torch.optim.Muon` has in its place; the latter two times √max(1, d_out/d_in)."""

OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)

LINEAR: tuple[Optimizer, ...] = ("sgd", "normalized")
"""Steps along the gradient itself."""

NAMES: dict[str, str] = {
    "sgd": "SGD", "normalized": "normalized SGD", "adam": "Adam", "polar": "polar factor", "muon": "Muon",
}  # fmt: skip
"""As prose and pictures have them."""
