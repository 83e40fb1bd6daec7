"""Tests of claims against samples: comparisons with theory, verdicts, and their report.

A name is loaded when it is first asked for: what is committed can be listed without torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checks.fits import PowerLaw, power_law
    from checks.stacks.judge import verdicts
    from checks.stacks.own_claims import register_claim
    from checks.statistics import Estimate, estimate
    from checks.theory_and_samples import comparison
    from checks.verdict import Verdict
else:
    _HOMES = {
        "Estimate": "checks.statistics",
        "PowerLaw": "checks.fits",
        "Verdict": "checks.verdict",
        "comparison": "checks.theory_and_samples",
        "estimate": "checks.statistics",
        "power_law": "checks.fits",
        "register_claim": "checks.stacks.own_claims",
        "verdicts": "checks.stacks.judge",
    }

    def __getattr__(name):
        """A public name, loaded now and kept.

        Raises:
            AttributeError: there is none.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'checks' has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = ["Estimate", "PowerLaw", "Verdict", "comparison", "estimate", "power_law", "register_claim", "verdicts"]
