"""The public Python interface: predict, measure and judge the gradients of Transformers at initialization.

    import gradbounds as gb

    stack = gb.Stack(placement="pre", width=256, depth=4, tokens=8, vocab=256)
    gb.predict(stack)["grad_sq_W2"]  # (L,): large-width theory of E||dL/dW2||_F^2
    gb.sample(stack, draws=64, seed=0)["grad_sq_W2"]  # (draws, L): what networks do

A name is loaded when it is first asked for: importing this package loads no other library.
"""

from typing import TYPE_CHECKING

from gradbounds.shadowing import allow_names_of_programs as _allow_names_of_programs

_allow_names_of_programs()

__version__ = "0.2.0"

if TYPE_CHECKING:
    from checks.first_step import FirstStep, first_step
    from checks.fits import power_law
    from checks.models.judge import probe
    from checks.models.report import ProbeReport
    from checks.stacks.judge import verdicts
    from checks.stacks.own_claims import register_claim
    from checks.statistics import estimate
    from checks.theory_and_samples import comparison
    from checks.verdict import Verdict
    from gradbounds.actions.statements import verify_claims
    from gradbounds.actions.step_one import StepOne, step_one_callback
    from gradbounds.actions.sweep_tables import compare, relax
    from gradbounds.actions.verify import check
    from gradbounds.result import Result
    from simulate import Cell, Execution, Run, Samples, TextWindows, read_windows, sample, sweep
    from theory import (
        CLAIMS as claims,
        QUANTITIES as quantities,
        Claim,
        Composition,
        Initialization,
        NoRuleError,
        Prediction,
        Quantity,
        Stack,
        predict,
        register_activation,
        register_initialization,
        register_placement,
    )
    from theory.configurations import stack_from_config
    from theory.first_step.noise_scale import NoiseScale, noise_scale
    from theory.mean_field.text_law import TextLaw
    from theory.paper.theorem1 import bound_value
else:
    # Where each name is: its module, and its name there where that is another. The imports above say the same to
    # editors and type checkers; a test compares both.
    _HOMES = {
        "Stack": "theory",
        "predict": "theory",
        "Prediction": "theory",
        "NoRuleError": "theory",
        "claims": "theory:CLAIMS",
        "Claim": "theory",
        "quantities": "theory:QUANTITIES",
        "Quantity": "theory",
        "register_activation": "theory",
        "register_placement": "theory",
        "Composition": "theory",
        "register_initialization": "theory",
        "Initialization": "theory",
        "register_claim": "checks.stacks.own_claims",
        "first_step": "checks.first_step",
        "FirstStep": "checks.first_step",
        "StepOne": "gradbounds.actions.step_one",
        "step_one_callback": "gradbounds.actions.step_one",
        "noise_scale": "theory.first_step.noise_scale",
        "NoiseScale": "theory.first_step.noise_scale",
        "TextLaw": "theory.mean_field.text_law",
        "stack_from_config": "theory.configurations",
        "bound_value": "theory.paper.theorem1",
        "sample": "simulate",
        "Samples": "simulate",
        "sweep": "simulate",
        "Run": "simulate",
        "Cell": "simulate",
        "Execution": "simulate",
        "TextWindows": "simulate",
        "read_windows": "simulate",
        "comparison": "checks.theory_and_samples",
        "verdicts": "checks.stacks.judge",
        "Verdict": "checks.verdict",
        "power_law": "checks.fits",
        "estimate": "checks.statistics",
        "check": "gradbounds.actions.verify",
        "compare": "gradbounds.actions.sweep_tables",
        "relax": "gradbounds.actions.sweep_tables",
        "verify_claims": "gradbounds.actions.statements",
        "Result": "gradbounds.result",
        "probe": "checks.models.judge",
        "ProbeReport": "checks.models.report",
    }

    def __getattr__(name):
        """Return a public name, which is loaded at its first use and then kept.

        Raises:
            AttributeError: there is none.
            ImportError: another module shadows a package of gradbounds.
        """
        if name not in _HOMES:
            raise AttributeError(_unknown(name))
        from importlib import import_module

        from gradbounds.shadowing import check_own_packages

        module, _, attribute = _HOMES[name].partition(":")
        check_own_packages(module.partition(".")[0])
        globals()[name] = value = getattr(import_module(module), attribute or name)
        return value

    def _unknown(name):
        from difflib import get_close_matches

        spelled = {known.lower(): known for known in __all__}
        close = get_close_matches(name.lower(), spelled, n=1)
        hint = f"; did you mean {spelled[close[0]]!r}?" if close else ""
        return f"module 'gradbounds' has no attribute {name!r}{hint}"

    def __dir__():
        return sorted({*__all__, "__version__"})


__all__ = [
    "Cell",
    "Claim",
    "Composition",
    "Execution",
    "FirstStep",
    "Initialization",
    "NoRuleError",
    "NoiseScale",
    "Prediction",
    "ProbeReport",
    "Quantity",
    "Result",
    "Run",
    "Samples",
    "Stack",
    "StepOne",
    "TextLaw",
    "TextWindows",
    "Verdict",
    "bound_value",
    "check",
    "claims",
    "compare",
    "comparison",
    "estimate",
    "first_step",
    "noise_scale",
    "power_law",
    "predict",
    "probe",
    "quantities",
    "read_windows",
    "register_activation",
    "register_claim",
    "register_initialization",
    "register_placement",
    "relax",
    "sample",
    "stack_from_config",
    "step_one_callback",
    "sweep",
    "verdicts",
    "verify_claims",
]
