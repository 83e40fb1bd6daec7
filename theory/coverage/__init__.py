"""The networks that theory has no rule for: one table of gaps, read by every prediction and by the pages."""

from theory.coverage.networks import (
    attends_randomly,
    has_experts,
    holds_words,
    is_exchangeable,
    is_fluctuating,
    is_tied,
)
from theory.coverage.table import GAPS, SUBJECTS, Gap
from theory.stack import Stack

__all__ = [
    "GAPS",
    "SUBJECTS",
    "Gap",
    "NoRuleError",
    "attends_randomly",
    "gaps",
    "has_experts",
    "holds_words",
    "is_exchangeable",
    "is_fluctuating",
    "is_tied",
    "require",
]


class NoRuleError(ValueError):
    """Error for a network that can be sampled but not yet predicted by large-width theory."""


def gaps(stack: Stack, subject: str) -> list[Gap]:
    """Return why theory has no rule for something of a stack; nothing where it has one.

    Raises:
        ValueError: the subject is not one of `SUBJECTS`.
    """
    if subject not in SUBJECTS:
        raise ValueError(f"subject must be one of {', '.join(SUBJECTS)}, got {subject!r}.")
    return [gap for gap in GAPS if subject in gap.subjects and gap.contains(stack)]


def require(stack: Stack, subject: str) -> None:
    """Refuse a stack for which there is no rule.

    Raises:
        NoRuleError: there is none; the error says what the stack must have, and what is missing.
    """
    if missing := gaps(stack, subject):
        needs = " and ".join(f"{gap.needs} ({gap.because})" for gap in missing)
        raise NoRuleError(f"stack must have {needs} for {SUBJECTS[subject]}, got {stack.non_default()}.")
