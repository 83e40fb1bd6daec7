"""The networks for which the theory has no rule, in one table that every prediction checks.

The manual's pages print the same table.
"""

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
    """An error for a network that can be sampled, but that large-width theory cannot predict yet."""


def gaps(stack: Stack, subject: str) -> list[Gap]:
    """Return the reasons why theory cannot predict a subject for a network; an empty list if it can.

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
    """Raise an error if the theory has no rule to predict a subject, such as gradient norms, for a network.

    Args:
        stack: the network.
        subject: the kind of prediction, a key of `SUBJECTS`.

    Raises:
        NoRuleError: there is no rule; the message says what the stack must have, and what is missing in the theory.
    """
    if missing := gaps(stack, subject):
        needs = " and ".join(f"{gap.needs} ({gap.because})" for gap in missing)
        raise NoRuleError(f"stack must have {needs} for {SUBJECTS[subject]}, got {stack.non_default()}.")
