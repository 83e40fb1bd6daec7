"""What a network is: fields, placements, initializations, weights and the names of quantities; no formula."""

from theory.stack.activations import Activation
from theory.stack.groups import Attention, FeedForward, Inputs, Loss, Matrices, Residual, Sizes
from theory.stack.stack import PAPER, SIZES, TITLES, Placement, Stack, check_stack, title

__all__ = [
    "Activation",
    "Attention",
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
