"""The networks that theory has no rule for: one table of gaps, which every prediction and the manual's pages use."""

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
    """Return the gaps in the theory that apply to a stack and a subject; an empty list if there is a rule.

    Args:
        stack: the network.
        subject: the kind of prediction, a key of `SUBJECTS`.

    Raises:
        ValueError: the subject is not one of `SUBJECTS`.
    """
    if subject not in SUBJECTS:
        raise ValueError(f"subject must be one of {', '.join(SUBJECTS)}, got {subject!r}.")
    return [gap for gap in GAPS if subject in gap.subjects and gap.contains(stack)]


def require(stack: Stack, subject: str) -> None:
    """Raise an error if theory has no rule for a stack and a subject.

    Args:
        stack: the network.
        subject: the kind of prediction, a key of `SUBJECTS`.

    Raises:
        NoRuleError: there is no rule; the message says what the stack must have, and what is missing in the theory.
    """
    if missing := gaps(stack, subject):
        needs = " and ".join(f"{gap.needs} ({gap.because})" for gap in missing)
        raise NoRuleError(f"stack must have {needs} for {SUBJECTS[subject]}, got {stack.non_default()}.")
