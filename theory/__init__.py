"""The theory package: the paper's claims in symbols, and predictions of gradient norms at large width.

The predictions are exact in the limit of large width.

A public name is imported on first access, so that command help and lists of claims load neither the recursion nor
scipy.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from theory.coverage import NoRuleError
    from theory.mean_field.prediction import Prediction, predict
    from theory.paper.claims import CLAIMS, Claim
    from theory.registration import register_activation, register_initialization, register_placement
    from theory.stack import Stack
    from theory.stack.initializations import Initialization
    from theory.stack.placements import Composition
    from theory.stack.quantities import QUANTITIES, Quantity
else:
    _HOMES = {
        "CLAIMS": "theory.paper.claims",
        "Claim": "theory.paper.claims",
        "Composition": "theory.stack.placements",
        "Initialization": "theory.stack.initializations",
        "NoRuleError": "theory.coverage",
        "Prediction": "theory.mean_field.prediction",
        "QUANTITIES": "theory.stack.quantities",
        "Quantity": "theory.stack.quantities",
        "Stack": "theory.stack",
        "predict": "theory.mean_field.prediction",
        "register_activation": "theory.registration",
        "register_initialization": "theory.registration",
        "register_placement": "theory.registration",
    }

    def __getattr__(name):
        """Import a public name of the package on first access and keep it.

        Raises:
            AttributeError: the package has no public name of this spelling.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'theory' has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


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
