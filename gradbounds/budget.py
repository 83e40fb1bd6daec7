"""Limits of time and memory for a prediction, and the choice of the prediction method that keeps within them."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from gradbounds.units import byte_count, cpu_time, duration, format_bytes, seconds_of
from simulate.free_memory import free_memory
from simulate.network.allocator import keep_freed_memory
from simulate.threads import one_numpy_thread
from theory import NoRuleError, Prediction, Stack, predict
from theory.coverage import holds_words, is_fluctuating, require
from theory.mean_field.cost import Cost, has_cheaper_groups, prediction_cost, quick_patterns
from theory.mean_field.gaussian import LARGEST_SCALE
from theory.mean_field.prediction import predicted_seconds

# The default limits of a prediction's estimated seconds and bytes.
_UNASKED_SECONDS, _UNASKED_BYTES = 60.0, 4e9

SOON = 10.0
"""The estimated seconds above which a cheaper method is chosen automatically."""

_FEWEST = 2

_GROUPED = "a few tokens represent groups of their neighbours (docs/attention.md)"


class OverBudgetError(ValueError):
    """An error: a prediction would take more time or memory than the user allows."""


_made: ContextVar[dict[Hashable, Any] | None] = ContextVar("made", default=None)

Made = TypeVar("Made")


@contextmanager
def each_once() -> Iterator[None]:
    """Store every prediction within a `with` block, so that no network is predicted twice."""
    before = _made.set({} if (stored := _made.get()) is None else stored)
    try:
        yield
    finally:
        _made.reset(before)


_by_estimates: ContextVar[bool] = ContextVar("by_estimates", default=False)


@contextmanager
def by_estimates() -> Iterator[None]:
    """Use estimated instead of measured times of predictions within a `with` block."""
    before = _by_estimates.set(True)
    try:
        yield
    finally:
        _by_estimates.reset(before)


def once(key: Hashable, make: Callable[[], Made]) -> Made:
    """Return the stored value for a key, or call a function and store its value.

    Values are stored only within a `with` block of `each_once`.
    """
    by_key = _made.get()
    if by_key is None:
        return make()
    if key not in by_key:
        by_key[key] = make()
    return by_key[key]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of time and memory for one prediction.

    Attributes:
        seconds: limit of time on one core.
        bytes: limit of memory.
        is_clocked: whether the time is measured with a small batch instead of estimated.
        free: free memory of the machine in bytes, if no limit of memory was given.
    """

    seconds: float
    bytes: float
    is_clocked: bool = False
    free: float = math.inf

    @classmethod
    def of(cls, max_time: str | None, memory: str | None) -> "Budget":
        """Parse limits of time and memory, such as "90s" and "4GB"; the default limits are the same on every machine.

        Raises:
            ValueError: one of them cannot be read.
        """
        limits = (_UNASKED_BYTES, free_memory()) if memory is None else (byte_count(memory), math.inf)
        seconds = _UNASKED_SECONDS if max_time is None else seconds_of(max_time)
        return cls(seconds, limits[0], max_time is not None and not _by_estimates.get(), limits[1])

    def holds(self, cost: Cost) -> bool:
        """Return whether an estimated cost is within both the time limit and the memory limit."""
        return cost.seconds <= self.seconds and cost.bytes <= self.bytes

    def has_room(self, cost: Cost) -> bool:
        """Return whether the memory limit and this machine's free memory both suffice for a prediction."""
        return cost.bytes <= min(self.bytes, self.free)

    def excess(self, cost: Cost) -> float:
        """Return the larger of two ratios: estimated time / time limit, and estimated memory / memory limit."""
        return max(cost.seconds / self.seconds, cost.bytes / self.bytes)

    def exceeded(self, cost: Cost) -> str:
        """Describe in words which of the limits of time and memory a prediction would exceed."""
        limits = [f"the {duration(self.seconds)} of --max-time"] if cost.seconds > self.seconds else []
        limits += [f"the {format_bytes(self.bytes)} of --memory"] if cost.bytes > self.bytes else []
        limits += [f"the {format_bytes(self.free)} of free memory"] if self.free < cost.bytes <= self.bytes else []
        return " and ".join(limits)

    def larger(self, cost: Cost) -> list[str]:
        """Name flags with limits of twice a cost that exceeds a limit, unless it takes over a day or all memory."""
        enough = f"{cost.seconds / 30:.0f}m" if cost.seconds > 30 else f"{math.ceil(2 * cost.seconds)}s"
        flags = [f"--max-time {enough}"] if cost.seconds > self.seconds else []
        flags += [f"--memory {2 * cost.bytes / 1e9:.2g}GB"] if cost.bytes > self.bytes else []
        return [f"{' '.join(flags)} allows it"] if cost.seconds < 86400.0 and cost.bytes < free_memory() else []


@dataclass(frozen=True, slots=True)
class Way:
    """A method of predicting a network, with its cost.

    The method takes all tokens or groups of tokens, and a number of attention samples.

    Attributes:
        stack: the network.
        arguments: arguments of `theory.predict`.
        cost: estimated cost, the same on every machine.
        said: how this way is cheaper than requested, as text; "" if it is not.
    """

    stack: Stack
    arguments: Mapping[str, Any]
    cost: Cost
    said: str = ""

    def predicted(self) -> Prediction:
        """Predict the network by this method, without a further check of limits of time and memory."""
        arguments = {"grouped": False} | dict(self.arguments)

        def prediction() -> Prediction:
            keep_freed_memory()  # of a layer, for the next one
            with one_numpy_thread() if arguments["grouped"] else nullcontext():  # matrices of few representatives
                return predict(self.stack, **arguments, max_time=math.inf, memory=math.inf)

        return once((self.stack, *sorted(arguments.items())), prediction)


def measured(stack: Stack, cost: Cost, **how: Any) -> Cost:
    """Measure on one core of this machine how long a prediction takes, by timing a small batch once."""
    return replace(cost, seconds=by_clock(lambda: _clocked(stack, **how), cost.seconds))


_clocked = lru_cache(maxsize=32)(predicted_seconds)


def by_clock(clock: Callable[[], float], estimate: float) -> float:
    """Measure the time of a function on one thread, or return its estimate within a `with` block of `by_estimates`."""
    if _by_estimates.get():
        return estimate
    with one_numpy_thread():
        return clock()


def way(stack: Stack, patterns: int | None, budget: Budget, *, coarse: bool = False) -> Way:
    """Choose a prediction method within the limits of time and memory.

    The method is the requested one, or takes groups of tokens, or takes fewer attention samples.

    Args:
        stack: the network.
        patterns: requested number of attention samples; None for as many as take some seconds.
        budget: limits of time and memory. Without a requested number, a cheaper way is chosen above 10 seconds.
        coarse: whether groups of tokens are coarse, as in `theory.predict`.

    Raises:
        NoRuleError: theory has no rule for the network, or its logits are too large for the quadratures.
        OverBudgetError: the chosen method is not within the budget.
    """
    chosen = chosen_way(stack, patterns, budget, coarse=coarse)
    cost = chosen.cost
    if budget.is_clocked and budget.has_room(cost):
        cost = measured(stack, cost, **chosen.arguments)
    if cost.seconds > budget.seconds or not budget.has_room(cost):
        raise OverBudgetError(_refusal(chosen, cost, budget, cost.seconds / chosen.cost.seconds))
    return chosen


def chosen_way(stack: Stack, patterns: int | None, budget: Budget, *, coarse: bool = False) -> Way:
    """Choose the most accurate prediction method with an estimated cost within the limits, or else the cheapest method.

    Raises:
        NoRuleError: theory has no rule for the network, or its logits are too large; see `way`.
    """
    require(stack, "prediction")
    if stack.output_scale > LARGEST_SCALE:  # at any cost, which an estimate would hide
        raise NoRuleError(
            f"output_scale must be at most {LARGEST_SCALE:g} for a prediction, got {stack.output_scale:g}."
        )
    ways = _ways(stack, patterns, budget, coarse=coarse)
    soon = replace(budget, seconds=budget.seconds if patterns else min(SOON, budget.seconds))
    fitting = (each for limit in (soon, budget) for each in ways if limit.holds(each.cost))
    return next(fitting, min(ways, key=lambda each: budget.excess(each.cost)))


def _ways(stack: Stack, patterns: int | None, budget: Budget, *, coarse: bool = False) -> list[Way]:
    """Return all ways to predict a network, the best first.

    With groups of tokens, there are as many attention samples as the budget allows.
    """

    def by(words: str, **arguments: Any) -> Way:
        return Way(stack, arguments, prediction_cost(stack, **arguments), words)

    grouped, how = has_cheaper_groups(stack), {"grouped": True} | ({"coarse": True} if coarse else {})
    if not (is_fluctuating(stack) or holds_words(stack)):
        return [by("", grouped=False), *([by(_GROUPED, **how)] if grouped else [])]
    asked = patterns or quick_patterns(stack)
    ways = [by(f"{count} attention samples instead of {asked}" * (count < asked), patterns=count)
            for count in _halves(asked)]  # fmt: skip
    if grouped:
        most = patterns or quick_patterns(stack, grouped=True)
        fewer = {count: f" instead of {patterns}" if patterns and count < patterns else "" for count in _halves(most)}
        groups = [by(f"{_GROUPED}, with {count} attention samples{less}", patterns=count, **how)
                  for count, less in fewer.items()]  # fmt: skip
        # What representatives leave out is less than what fewer patterns than theirs scatter.
        chosen = next((each for each in groups if budget.holds(each.cost)), groups[-1])
        ways.insert(max(1, sum(count >= chosen.arguments["patterns"] for count in _halves(asked))), chosen)
    return ways


def _halves(count: int) -> list[int]:
    # Return a count, half of it, a quarter, and so on.
    counts = [count]
    while counts[-1] > _FEWEST:
        counts.append(max(_FEWEST, counts[-1] // 2))
    return counts


def _refusal(way: Way, cost: Cost, budget: Budget, pace: float) -> str:
    # Return the error for a prediction over the budget: its smallest cost, the limit, and what to change.
    stack = way.stack
    price = f"{cpu_time(cost.seconds)} and {format_bytes(cost.bytes)}"
    how = f" with {way.arguments['patterns']} attention samples" if "patterns" in way.arguments else ""
    takes = f"theory would take about {price} for {stack.tokens} token{'s' * (stack.tokens > 1)}{how}"
    change = []
    if (fewer := tokens_within(stack, replace(budget, seconds=budget.seconds / pace))) is not None:
        change.append(f"--tokens {fewer} is within the limits")
    if holds_words(stack):
        change.append("--embeddings untied predicts it with a separate output matrix")
    return f"{takes}, more than {budget.exceeded(cost)}" + "".join(f"; {each}" for each in change + budget.larger(cost))


def tokens_within(stack: Stack, budget: Budget) -> int | None:
    """Return the largest number of tokens for which a prediction is within the limits of time and memory.

    The number is a power of two below the network's own number of tokens. The result is None if no shorter sequence is
    within the limits, or if the network needs its own number of tokens.
    """
    tokens = 1 << max(0, (stack.tokens - 1).bit_length() - 1)
    while 1 <= tokens < stack.tokens:
        try:
            shorter = replace(stack, tokens=tokens)
        except ValueError:  # a mask or labels of its own ask for its number of tokens
            return None
        if any(budget.holds(each.cost) for each in _ways(shorter, _FEWEST, budget)):
            return tokens
        tokens //= 2
    return None
