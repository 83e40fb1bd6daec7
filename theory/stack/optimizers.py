"""The names of the optimizers whose steps are predicted, measured or used in training."""

from typing import Literal, get_args

Optimizer = Literal["sgd", "normalized", "adam", "polar", "muon"]
"""The optimizer's step for the gradient g of a matrix, without the learning rate.

"sgd" is g, "normalized" is g/|g|, and "adam" is sign g (Adam as ε → 0). "polar" is the exact polar factor of g, and
"muon" the five Newton-Schulz steps of `torch.optim.Muon`; these two are multiplied by √max(1, d_out/d_in).
"""

OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)

LINEAR: tuple[Optimizer, ...] = ("sgd", "normalized")
"""The optimizers whose step has the direction of the gradient."""

NAMES: dict[str, str] = {
    "sgd": "SGD", "normalized": "normalized SGD", "adam": "AdamW", "polar": "polar factor", "muon": "Muon",
}  # fmt: skip
"""The name of each optimizer in text and figures."""
