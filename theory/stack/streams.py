"""Reject networks in which a norm would divide by zero, because its input is 0 at initialization."""

from typing import Any

import numpy as np


def check_streams(stack: Any) -> None:
    """Raise an error for a network with a norm whose input is 0 at initialization.

    The input is a branch's output or a token.

    Args:
        stack: the `Stack`.

    Raises:
        ValueError: a branch that is normalized is 0, or a token becomes 0.
    """
    composition = stack.composition
    if composition.output_norm and not stack.norm_epsilon:
        if stack.attention_dropout:
            raise ValueError(
                f"norm_epsilon must be above 0 with attention_dropout and placement {stack.placement!r}: if all of a "
                "token's weights are dropped, its branch is 0 and cannot be normalized."
            )
        if first_attention_is_zero(stack):
            raise ValueError(
                f"norm_epsilon must be above 0 with placement {stack.placement!r} and inputs that sum to zero: the "
                "first attention branch is their mean, 0, and cannot be normalized."
            )
    if composition.residual(stack.depth) == 0.0:
        _check_without_residual(stack)


def _check_without_residual(stack: Any) -> None:
    """Raise an error if the residual stream is dropped (residual scale 0) and a branch that replaces it is 0.

    Args:
        stack: the `Stack`.

    Raises:
        ValueError: a branch of the stack is 0, or may be 0.
    """
    alone = stack.layout == "sequential" and stack.branches != "feed_forward"
    reasons = {
        "a branch_scale of 0, the placement's own or a given one": stack.is_idle,
        "attention_dropout, which may drop all of a token's weights": stack.attention_dropout > 0.0,
        "inputs that sum to zero, whose mean the first attention takes": alone and first_attention_is_zero(stack),
    }
    for reason, stands in reasons.items():
        if stands:
            raise ValueError(
                f"residual_scale must be above 0 with {reason}: otherwise nothing of a token is left, got "
                f"{stack.residual_scale!r} with placement {stack.placement!r}."
            )


def first_attention_is_zero(stack: Any) -> bool:
    """Return whether the first attention branch outputs 0, because it averages tokens whose mean is 0."""
    if stack.query_key_scale or stack.mask != "none" or stack.positions != "none":
        return False
    if (gram := stack.gram) is None:  # of a million tokens the covariance is no array to be had
        return bool(1.0 + (stack.tokens - 1) * stack.input_correlation <= 1e-12)
    if stack.composition.input_norm or stack.embedding_norm == "added":
        sizes = np.sqrt(np.diag(gram))
        gram = gram / np.outer(sizes, sizes)
    return bool(gram.sum() <= 1e-12 * np.trace(gram))
