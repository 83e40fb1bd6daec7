"""Check whether theory can predict a first step for a network, an optimizer and a choice of matrices."""

from collections.abc import Collection

from theory.coverage import holds_words, is_tied, require
from theory.first_step.output_matrix import table_shapes
from theory.stack import Stack
from theory.stack.optimizers import OPTIMIZERS, Optimizer
from theory.stack.weights import weight_shapes


def check(stack: Stack, optimizer: Optimizer, matrices: Collection[str] | None) -> tuple[str, ...]:
    """Check that theory can predict a first step, and return the roles of the matrices that the step updates.

    Args:
        stack: the network.
        optimizer: name of the optimizer.
        matrices: requested roles; None for all matrices.

    Raises:
        ValueError: the optimizer or a role is not known.
        NoRuleError: the stack has no rule.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.")
    require(stack, "first_step")
    known = (*weight_shapes(stack), *(("WH",) if stack.output_transform == "added" else ()), "Wemb")
    if matrices is None:
        return known
    # Inputs that are tied are rows of the output matrix.
    tables = () if holds_words(stack) else tuple(table_shapes(stack))
    known += tables[1:] if is_tied(stack) else tables
    if isinstance(matrices, str) or not matrices or not set(matrices) <= set(known):
        raise ValueError(f"matrices must be some of {', '.join(known)}, got {matrices!r}.")
    return tuple(role for role in known if role in matrices)
