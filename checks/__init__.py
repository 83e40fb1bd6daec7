"""The only place where claims meet samples: comparisons, verdicts and their report."""

from checks.comparison import comparison
from checks.judge import verdicts
from checks.statistics import Estimate, PowerLaw, estimate, power_law
from checks.verdict import Verdict

__all__ = ["Estimate", "PowerLaw", "Verdict", "comparison", "estimate", "power_law", "verdicts"]
