"""What a batch is where nobody says: of a model sequences as long as its context, and words that repeat as a text's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradbounds.actions.batch import law_of
from gradbounds.actions.first_line import cost_of_batch
from gradbounds.budget import Budget
from gradbounds.described_network import Description
from theory import Stack
from theory.configurations import context
from theory.coverage import gaps, has_experts

ZIPF = "zipf:1"
"""The law of text that is taken of a model."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A network and a text, and in words what of it nobody gave.

    Attributes:
        given: fields of the network.
        text: as `law_of` takes it.
        of_tokens: whose number of tokens that is; "" where it was given, or is the default of every network.
        is_zipf: whether words have Zipf's law, as nobody gave another.
    """

    given: Mapping[str, Any]
    text: str | None
    of_tokens: str = ""
    is_zipf: bool = False


def batch_asked(
    given: Mapping[str, Any], of: Description, *, text: str | None, patterns: int | None, max_time: str | None,
    memory: str | None = None,
) -> Asked:  # fmt: skip
    """What a batch is asked of: of a model its own context, or the half, quarter, ... that the budget holds.

    Raises:
        ValueError: the configuration or a law cannot be read.
    """
    if not of.is_model:
        return Asked(given, text)
    fields, of_tokens = dict(given), ""
    if "tokens" not in given and (longest := context(of.read(given)[1])) is not None:
        tokens = _within(longest, given, of, text, patterns, Budget.of(max_time, memory))
        if tokens is not None:
            fields["tokens"] = tokens
            most = f"the most within --max-time and --memory of the configuration's context of {longest}"
            of_tokens = ", the context of the configuration" if tokens == longest else f", {most}"
    stack, _ = of.read(fields)
    law = _law(stack, text)
    return Asked(fields, law, of_tokens, is_zipf=text is None and law is not None)


def _law(stack: Stack, text: str | None) -> str | None:
    """The law that was given, or the one of a model, where theory has a rule for text."""
    refused = gaps(replace(stack, sequences=2), "grouped") or has_experts(stack) or stack.input_correlation
    return ZIPF if text is None and not refused else text


def _within(
    longest: int, given: Mapping[str, Any], of: Description, text: str | None, patterns: int | None, budget: Budget
) -> int | None:
    """The most tokens, by halves, whose batch is within the budget; None if there are none."""
    tokens = longest
    while tokens > 1:
        try:
            stack, _ = of.read({**given, "tokens": tokens})
            if budget.holds(cost_of_batch(stack, law_of(stack, _law(stack, text)), patterns)[0]):
                return tokens
        except ValueError:  # a mask of its own asks for its number of tokens, or words are fewer
            pass
        tokens //= 2
    return None
