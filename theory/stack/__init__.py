"""The description of a network: its fields, LayerNorm placements, initializations, weights and quantities."""

from theory.stack.activations import Activation
from theory.stack.groups import Attention, Experts, FeedForward, Inputs, Loss, Matrices, Residual, Sizes
from theory.stack.stack import PAPER, SIZES, TITLES, Placement, Stack, title

__all__ = [
    "Activation",
    "Attention",
    "Experts",
    "FeedForward",
    "Inputs",
    "Loss",
    "Matrices",
    "PAPER",
    "Placement",
    "Residual",
    "SIZES",
    "Sizes",
    "Stack",
    "TITLES",
    "check_stack",
    "title",
]


def check_stack(value: object) -> None:
    """Raise an error if an argument is not a network description (a `Stack`), for example a bare width.

    Args:
        value: the argument to check.

    Raises:
        ValueError: the argument is not a `Stack`.
    """
    if not isinstance(value, Stack):
        raise ValueError(f"stack must be a Stack, such as Stack(width=512), got {value!r}.")
