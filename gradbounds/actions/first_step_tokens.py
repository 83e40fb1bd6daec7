"""The tokens of a first step: what theory takes at so many, the most that fit, and how Adam's rate goes with them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from checks.first_step import first_step
from gradbounds.budget import Budget, OverBudgetError
from gradbounds.described_network import Description
from gradbounds.progress import shown
from gradbounds.units import duration, format_bytes
from theory import Stack
from theory.configurations import RECIPES, Note, context, model_type
from theory.coverage import gaps, is_fluctuating
from theory.first_step.cost import first_step_cost
from theory.first_step.outputs import pattern_count
from theory.mean_field.cost import Cost, prediction_cost
from theory.stack.optimizers import Optimizer

# Standard errors of a power that its sampled patterns give, on either side.
_ERRORS = 2.0

# Tokens that are tried of a configuration which names no context.
_MOST = 2**17


def steps_cost(stacks: Sequence[Stack], optimizers: Sequence[Optimizer], patterns: int | None) -> Cost:
    """What theory of the first steps takes of those that it has a rule for, and of their noise scales."""
    known = [stack for stack in stacks if not gaps(stack, "first_step")]
    steps = sum((first_step_cost(stack, name, patterns) for stack in known for name in optimizers), Cost())
    return steps + sum((_noise_cost(stack) for stack in stacks), Cost())


def cost_within(stacks: Sequence[Stack], optimizers: Sequence[Optimizer], budget: Budget, patterns: int | None) -> Cost:
    """What theory of all takes.

    Raises:
        OverBudgetError: more than it may; the error says what it would take, and which tokens fit.
    """

    def costs(tokens: int) -> Cost:
        return steps_cost([_with_tokens(stack, tokens) for stack in stacks], optimizers, patterns)

    def next_size(tokens: int) -> str:
        longer = costs(2 * tokens)
        return (
            f" (twice as many take about {duration(longer.seconds)} and {format_bytes(longer.bytes)}), and --all says "
            "there how the rate goes with their number"
        )

    cost = steps_cost(stacks, optimizers, patterns)
    if budget.holds(cost):
        return cost
    tokens = [1 << k for k in range((max(stack.tokens for stack in stacks) - 1).bit_length())][::-1]
    shorter = (fewer for fewer in tokens if budget.holds(costs(fewer)))
    change = "".join(f"; --tokens {fewer} is within these{next_size(fewer)}" for fewer in itertools.islice(shorter, 1))
    raise OverBudgetError(
        f"theory of the first step would take about {duration(cost.seconds)} and {format_bytes(cost.bytes)}, more than "
        f"{budget.exceeded(cost)}{change}; --max-time and --memory allow more."
    )


def most_tokens(
    given: Mapping[str, Any], of: Description, optimizers: Sequence[Optimizer], *, patterns: int | None,
    max_time: str, memory: str | None,
) -> dict[str, Any]:  # fmt: skip
    """The fields, of a model with the most tokens whose first step is within the limits, with half as many beside it.

    As they are where tokens are given, where there is no model, and where Adam takes no step or theory has none.
    """
    stack, notes = of.read(given)
    if not of.is_model or "tokens" in given or "adam" not in optimizers or gaps(stack, "first_step"):
        return dict(given)
    budget = Budget.of(max_time, memory)  # and theory has no rule from some number on
    for tokens in [1 << k for k in range((context(notes) or _MOST).bit_length())][:1:-1]:  # down to four
        try:
            stacks = [of.read({**given, "tokens": each})[0] for each in (tokens, tokens // 2)]
        except ValueError:  # a mask of its own asks for its number of tokens
            continue
        if gaps(stacks[0], "first_step"):
            continue
        costs = steps_cost(stacks[:1], optimizers, patterns), first_step_cost(stacks[1], "adam", patterns)
        if budget.holds(costs[0] + costs[1]):
            return {**given, "tokens": tokens}
    return dict(given)


def noise_patterns(stack: Stack) -> int | None:
    """Of its noise scale, as many as of its first step, where attention is random."""
    return pattern_count(stack) if is_fluctuating(stack) else None


def _noise_cost(stack: Stack) -> Cost:
    """Of two sequences, where there is a rule."""
    if gaps(stack, "prediction") or gaps(stack, "noise_scale"):
        return Cost()
    return prediction_cost(replace(stack, sequences=2), patterns=noise_patterns(stack), grouped=False)


def _with_tokens(stack: Stack, tokens: int) -> Stack:
    """Shorter; as it is, if something asks for its number of tokens."""
    try:
        return replace(stack, tokens=min(tokens, stack.tokens))
    except ValueError:
        return stack


@dataclass(frozen=True, slots=True)
class Halves:
    """The network of half and a quarter of its tokens, as far as Adam's rate of these has time.

    Attributes:
        stacks: these.
        cost: what they take.
    """

    stacks: Sequence[Stack] = ()
    cost: Cost = Cost()

    @classmethod
    def of(cls, stack: Stack, budget: Budget, patterns: int | None) -> "Halves":
        """Those within the limits, of more than one token."""
        halves = cls()
        for tokens in (stack.tokens // 2, stack.tokens // 4):
            shorter = _with_tokens(stack, tokens) if tokens > 1 else stack
            cost = halves.cost + first_step_cost(shorter, "adam", patterns)
            if shorter.tokens != tokens or not budget.holds(cost):
                break
            halves = cls([*halves.stacks, shorter], cost)
        return halves

    def table(self, stack: Stack, rate: float, error: float, patterns: int | None) -> pd.DataFrame:
        """Adam's rate by the number of tokens, the most first, with the factor and the power of every doubling.

        Args:
            stack: the whole network.
            rate: its critical rate.
            error: the standard error of that.
            patterns: of attention.
        """
        rows = [(stack.tokens, rate, error)]
        for shorter in self.stacks:
            with shown(f"rate of adam at {shorter.tokens} tokens", first_step_cost(shorter, "adam", patterns).seconds):
                step = first_step(shorter, "adam", patterns=patterns)
            rows.append((shorter.tokens, step.critical_rate, step.critical_rate_sem))
        table = pd.DataFrame(rows, columns=["tokens", "critical_rate", "critical_rate_sem"])
        table["factor"] = table["critical_rate"] / table["critical_rate"].shift(-1)
        relative = (table["critical_rate_sem"] / table["critical_rate"]) ** 2
        table["factor_sem"] = table["factor"] * (relative + relative.shift(-1)) ** 0.5
        table["power"] = np.log2(table["factor"])
        table["power_sem"] = table["factor_sem"] / table["factor"] / np.log(2.0)
        return table


def extrapolated(table: pd.DataFrame, tokens: int) -> tuple[float, float]:
    """The least and the most that the table's powers, with their errors, make of its first rate at more tokens."""
    powers = table.dropna(subset="power")
    times, reach = tokens / table["tokens"].iloc[0], _ERRORS * powers["power_sem"]
    ends = (powers["power"] - reach).min(), (powers["power"] + reach).max()
    low, high = (float(table["critical_rate"].iloc[0] * times**power) for power in ends)
    return low, high


def sentences(table: pd.DataFrame, notes: Sequence[Note]) -> list[str]:
    """Adam's rate at so many tokens, how it goes with their number, and what that makes of it at the model's own."""
    first, longest, doublings = table.iloc[0], context(notes), table.dropna(subset="factor")
    factors = [
        f"{row.factor:.2f} +- {row.factor_sem:.1g} from {row.tokens // 2} to {row.tokens}"
        for row in doublings.itertuples()
    ]
    powers = " to ".join(dict.fromkeys(f"^{power:.2f}" for power in sorted(doublings["power"])))
    beyond = f"by extrapolation, which nothing judges, at n tokens that times (n/{first.tokens:.0f}){powers}"
    if longest is not None and longest > first.tokens:
        low, high = extrapolated(table, longest)
        beyond += f": {low:.2g} to {high:.2g} at the configuration's context of {longest}{_beside(notes, low, high)}"
    return [
        f"At {first.tokens:.0f} tokens the critical rate of Adam's first step is {first.critical_rate:.3g}; "
        f"at twice the tokens it changes by the factor {', '.join(factors)};",
        f"{beyond}.",
        "",
    ]


def _beside(notes: Sequence[Note], low: float, high: float) -> str:
    """Published peak rates over an extrapolated one."""
    peaks = [recipe.rate for recipe in RECIPES if recipe.family == model_type(notes)]
    if not peaks:
        return ""
    return f", of which this family's published peaks are {min(peaks) / high:.2g} to {max(peaks) / low:.2g} times"
