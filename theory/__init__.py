"""What is claimed and what is predicted: the paper's statements in symbols, and the exact large-width theory."""

from theory.coverage import NoRuleError
from theory.mean_field.prediction import Prediction, predict
from theory.paper.claims import CLAIMS, Claim
from theory.registration import register_activation, register_initialization, register_placement
from theory.stack import Stack
from theory.stack.initializations import Initialization
from theory.stack.placements import Composition
from theory.stack.quantities import QUANTITIES, Quantity

__all__ = [
    "CLAIMS",
    "Claim",
    "Composition",
    "Initialization",
    "NoRuleError",
    "Prediction",
    "QUANTITIES",
    "Quantity",
    "Stack",
    "predict",
    "register_activation",
    "register_initialization",
    "register_placement",
]
