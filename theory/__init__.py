"""What is claimed and what is predicted: the paper's statements in symbols, and the exact large-width theory."""

from theory.mean_field.prediction import NoRuleError, Prediction, predict
from theory.paper.claims import CLAIMS, Claim
from theory.stack import Stack
from theory.stack.quantities import QUANTITIES, Quantity

__all__ = ["CLAIMS", "QUANTITIES", "Claim", "NoRuleError", "Prediction", "Quantity", "Stack", "predict"]
