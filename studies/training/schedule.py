"""How a network is trained: steps, rates, optimizer and batches, and what is not covered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from studies.training.optimizers import Optimizer
from theory.coverage import require
from theory.stack import Stack
from theory.stack.weights import weight_shapes

BatchName = Literal["same", "fresh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Some steps of an optimizer.

    Attributes:
        steps: their number.
        rates: learning rates by role; the matrices of other roles stay as they are.
        factors: of the rates at each step.
        optimizer: of all matrices.
        batch: "same" or "fresh".
    """

    steps: int
    rates: dict[str, float]
    factors: tuple[float, ...]
    optimizer: Optimizer
    batch: BatchName

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        *,
        steps: int,
        learning_rate: float | Mapping[str, float],
        optimizer: Optimizer,
        factors: Sequence[float] | None,
        batch: BatchName,
    ) -> "Schedule":
        """A schedule for matrices of these roles.

        Raises:
            ValueError: a rate or a factor is no finite number of at least 0, or a role is unknown, or batch is.
        """
        if batch not in get_args(BatchName):
            raise ValueError(f"batch must be 'same' or 'fresh', got {batch!r}.")
        rates = dict(learning_rate) if isinstance(learning_rate, Mapping) else dict.fromkeys(names, learning_rate)
        if not rates or not set(rates) <= set(names):
            raise ValueError(
                f"learning_rate must be a number or name some of {', '.join(names)}, got {', '.join(rates) or 'none'}."
            )
        for role, rate in rates.items():
            _check_number(f"learning_rate of {role}", rate)
        used = (1.0,) * steps if factors is None else tuple(factors)
        if len(used) != steps:
            raise ValueError(f"factors must be as many as steps = {steps}, got {len(used)}.")
        for factor in used:
            _check_number("factors", factor)
        return cls(steps=steps, rates=rates, factors=used, optimizer=optimizer, batch=batch)

    def rates_at(self, step: int) -> dict[str, float]:
        """The rates of a step, from 0."""
        return {role: rate * self.factors[step] for role, rate in self.rates.items()}


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}.")


def roles(stack: Stack) -> list[str]:
    """What can be trained: the matrices of the layers and the output matrix, and ReZero's scalars."""
    return [*weight_shapes(stack), "Wemb", *(["scalar"] if stack.has_scalars else [])]


def check_covered(stack: Stack, schedule: Schedule) -> None:
    """Refuse what training does not cover.

    Raises:
        ValueError: `theory.coverage` has a gap of "training", or ReZero's scalars are to be stepped by polar factors.
    """
    require(stack, "training")
    if stack.has_scalars and schedule.optimizer.name != "sgd":
        raise ValueError(
            f"optimizer must be 'sgd' for ReZero, whose scalars are no matrices, got {schedule.optimizer.name!r}; a "
            "branch_scale holds them fixed."
        )
