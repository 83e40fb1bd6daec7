"""Claims and predictions: the paper's statements in symbols, and the exact theory at large width.

A name is loaded when it is first asked for: a command's help and a list of claims need no recursion and no scipy.
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
        """A public name, loaded now and kept.

        Raises:
            AttributeError: there is none.
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
