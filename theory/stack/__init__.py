"""What a network is: fields, placements, initializations, weights and the names of quantities; no formula."""

from theory.stack.activations import Activation
from theory.stack.stack import PAPER, SIZES, TITLES, Placement, Stack, title

__all__ = ["Activation", "PAPER", "Placement", "SIZES", "Stack", "TITLES", "title"]
