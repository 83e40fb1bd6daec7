"""What is claimed and what is predicted: the paper's statements in symbols, and the exact large-width theory."""

from theory.claims import CLAIMS, Claim
from theory.prediction import NoRuleError, Prediction, predict
from theory.quantities import QUANTITIES, Quantity
from theory.stack import Stack

__all__ = ["CLAIMS", "QUANTITIES", "Claim", "NoRuleError", "Prediction", "Quantity", "Stack", "predict"]
