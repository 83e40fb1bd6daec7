"""Which first steps there is theory of."""

from collections.abc import Collection

from theory.first_step.rules import OPTIMIZERS, Optimizer
from theory.mean_field.attention.sampled import is_fluctuating
from theory.mean_field.prediction import NoRuleError
from theory.stack import Stack
from theory.stack.weights import weight_shapes

MOST_ROWS = 64
"""Tokens of all sequences that a prediction is for: means of four slopes are n⁴ numbers a sample."""

_LARGEST_SHARE = 4.0  # of V/d, up to which the law of the logits' change has been compared with networks


def check(stack: Stack, optimizer: Optimizer, matrices: Collection[str] | None) -> tuple[str, ...]:
    """Roles that are stepped; what there is no theory of is refused.

    Raises:
        ValueError: the optimizer or a role is unknown.
        NoRuleError: the stack has no rule.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.")
    if is_fluctuating(stack) or stack.embeddings == "tied" or stack.dropout or stack.attention_dropout:
        raise NoRuleError(
            "stack must have fixed attention, untied embeddings and no dropout for a prediction of its first step, "
            f"got {stack.non_default()}."
        )
    if stack.source_tokens or stack.composition.second_stream:
        raise NoRuleError(
            "stack must be one stream without a source for a prediction of its first step, got placement "
            f"{stack.placement!r} with {stack.source_tokens} source tokens."
        )
    heads_alike = stack.key_heads == stack.heads and not stack.head_width
    if stack.label_groups or stack.branches != "both" or stack.layout == "parallel" or not heads_alike:
        raise NoRuleError(
            "stack must have a label of its own at every position, both branches, one after the other, and values for "
            f"every head, of width d/h, for a prediction of its first step, got {stack.non_default()}."
        )
    if stack.rows > MOST_ROWS or stack.vocab > _LARGEST_SHARE * stack.width:
        raise NoRuleError(
            f"tokens of all sequences must be at most {MOST_ROWS} and vocab at most {_LARGEST_SHARE:g} * width for a "
            f"prediction of the first step, got {stack.rows} and {stack.vocab / stack.width:g}."
        )
    known = (*weight_shapes(stack), "Wemb")
    if matrices is None:
        return known
    if isinstance(matrices, str) or not matrices or not set(matrices) <= set(known):
        raise ValueError(f"matrices must be some of {', '.join(known)}, got {matrices!r}.")
    return tuple(role for role in known if role in matrices)
