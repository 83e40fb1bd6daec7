"""The only place where claims meet samples: comparisons, verdicts and their report."""

from checks.comparison import comparison
from checks.fits import PowerLaw, power_law
from checks.stacks.judge import verdicts
from checks.stacks.own_claims import register_claim
from checks.statistics import Estimate, estimate
from checks.verdict import Verdict

__all__ = ["Estimate", "PowerLaw", "Verdict", "comparison", "estimate", "power_law", "register_claim", "verdicts"]
