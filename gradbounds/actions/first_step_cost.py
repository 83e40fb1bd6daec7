"""The time and memory of predicting first optimizer steps, and of making such steps in sampled networks."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from gradbounds.budget import Budget, OverBudgetError, by_clock
from gradbounds.units import duration, format_bytes
from theory import Stack
from theory.coverage import gaps
from theory.first_step.cost import first_step_cost, measured_pace
from theory.mean_field.cost import Cost
from theory.stack.optimizers import Optimizer
from theory.stack.weights import weight_shapes

# Seconds of a step whatever its size, forward passes that take as long as one step with its search for the break-even
# rate, and multiplications and additions a second, in float64.
_SECONDS_A_STEP, _PASSES, _SPEED = 0.15, 25.0, 4.4e9


def parameter_count(stack: Stack) -> int:
    """Estimate the number of parameters in all matrices of a network."""
    return stack.width * (stack.depth * (stack.width + 2 * stack.ffn_width) + stack.vocab)


def network_seconds(stack: Stack, optimizers: int) -> float:
    """Estimate the seconds, on one core, of the optimizer steps of one sampled network."""
    shapes = sum(rows * columns for rows, columns in weight_shapes(stack).values())
    encoder = (stack.encoder_depth or stack.depth) if stack.source_tokens else 0
    parameters = (stack.depth + encoder) * shapes + stack.width * stack.vocab
    rows = stack.rows + stack.source_tokens * stack.sequences
    return optimizers * (_SECONDS_A_STEP + _PASSES * 2 * parameters * rows / _SPEED)


def steps_cost(stacks: Sequence[Stack], optimizers: Sequence[Optimizer], patterns: int | None) -> Cost:
    """Estimate the time and memory of predicting the first optimizer steps of networks."""
    known = [stack for stack in stacks if not gaps(stack, "first_step")]
    return sum((first_step_cost(stack, name, patterns) for stack in known for name in optimizers), Cost())


def cost_within(stacks: Sequence[Stack], optimizers: Sequence[Optimizer], budget: Budget, patterns: int | None) -> Cost:
    """Return the estimated cost of predicting first steps, if it is within the budget by this machine's clock.

    Raises:
        OverBudgetError: the cost exceeds the budget; the error states by how much, and how many tokens fit.
    """

    def costs(tokens: int) -> Cost:
        return steps_cost([_with_tokens(stack, tokens) for stack in stacks], optimizers, patterns)

    cost = steps_cost(stacks, optimizers, patterns)
    known = [stack for stack in stacks if not gaps(stack, "first_step")]
    pace = by_clock(lambda: measured_pace(known, optimizers, patterns), 1.0) if budget.is_clocked else 1.0
    paced = replace(cost, seconds=cost.seconds * pace)
    if budget.holds(paced) and budget.has_room(paced):
        return cost
    within = replace(budget, seconds=budget.seconds * cost.seconds / paced.seconds)
    tokens = [1 << k for k in range((max(stack.tokens for stack in stacks) - 1).bit_length())][::-1]
    shorter = (fewer for fewer in tokens if within.holds(costs(fewer)))
    change = "".join(f"; --tokens {fewer} is within the limits" for fewer in itertools.islice(shorter, 1))
    raise OverBudgetError(
        f"theory of the first step would take about {duration(paced.seconds)} and {format_bytes(cost.bytes)}, more "
        f"than {budget.exceeded(paced)}{change}; --max-time and --memory allow more."
    )


def _with_tokens(stack: Stack, tokens: int) -> Stack:
    # Return the network with at most this many tokens, or unchanged if a field requires its number of tokens.
    try:
        return replace(stack, tokens=min(tokens, stack.tokens))
    except ValueError:
        return stack
