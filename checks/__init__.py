"""The comparison of claims and theory with sampled networks: estimates, verdicts and their report.

Each public name is imported at its first use, so committed results can be listed without importing torch.
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
        """Import a public name of `checks` at its first use, keep it, and return it.

        Raises:
            AttributeError: `checks` has no public name like this.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'checks' has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = ["Estimate", "PowerLaw", "Verdict", "comparison", "estimate", "power_law", "register_claim", "verdicts"]
