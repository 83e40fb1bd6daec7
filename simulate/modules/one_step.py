"""Measure the first optimizer step of one module: the changes of its weights and of its loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any

import pandas as pd
from torch import nn

from simulate.modules.factories import Loss, Made, seeded
from simulate.modules.kept_state import kept_state
from simulate.modules.optimizer_watch import OptimizerWatch
from simulate.modules.own_changes import moves_of
from simulate.modules.step_optimizers import OptimizerFactory, Stepper, optimizer_factory, stepper_of
from simulate.modules.tensor_sizes import root_mean_squares

# A schedule may begin at a rate of 0: so many steps are tried for one above it.
_TRIED = 3


@dataclass(frozen=True, slots=True, eq=False)
class OneStep:
    """The measurements from one module's first optimizer step: weight changes, losses and alarms.

    Attributes:
        optimizer: the optimizer's name.
        steps: number of steps taken, until a learning rate was above 0.
        alarms: the faults of the step, each with the names of its weights and a text.
        notes: remarks, one line each.
        moves: a row for every parameter that an optimizer holds: parameter, matrix (whether it has several axes),
            optimizer (its class), rate (its learning rate), moved (root mean square of its change) and relative (moved
            divided by the weight's root mean square; NaN if the weight is 0 at the start).
        loss_before: loss of the batch before the step.
        loss_after: loss of the same batch after the step, with the same random numbers; NaN if all learning rates are
            0.
    """

    optimizer: str
    steps: int
    alarms: tuple[tuple[tuple[str, ...], str], ...]
    notes: tuple[str, ...]
    moves: pd.DataFrame
    loss_before: float
    loss_after: float


def one_step(
    module: nn.Module, inputs: Any, loss: Loss, optimizer: OptimizerFactory | str | Any, *,
    learning_rate: float | None = None, seed: int = 0,
) -> OneStep:  # fmt: skip
    """Take and measure the first optimizer step of one module, and restore module and optimizer.

    The schedule is restored too. The step takes two forward passes, one backward pass, and two copies of the weights.

    Args:
        module: the module, in training or eval mode.
        inputs: the module's inputs, on its device.
        loss: function of the module's output that returns a scalar.
        optimizer: a name or function as in `simulate.modules.step_optimizers.optimizer_factory`; or an existing
            optimizer of this module's parameters, several of them, or (optimizer, schedule).
        learning_rate: learning rate of an optimizer given by name.
        seed: random seed of module and loss.

    Raises:
        ValueError: the optimizer is unknown.
        ProbeError: module, loss or optimizer fails.
    """
    title, factory = optimizer_factory(optimizer, learning_rate, made=True)
    built = Made(type(module).__name__, module, inputs, loss)
    with kept_state(module, seed):
        stepper = stepper_of(title, factory, module, {})
        parameters = list(module.named_parameters())
        first = {name: parameter.detach().clone() for name, parameter in parameters}
        watch, before, after = OptimizerWatch(stepper, parameters, first), float("nan"), float("nan")
        with _kept(stepper):
            for _ in range(_TRIED):
                with seeded(seed + 1):
                    before = float(built.fresh().backward().detach())
                if not isfinite(before):
                    break
                watch.step()
                watch.look(moves_of(dict(parameters), first))
                module.zero_grad(set_to_none=True)
                if any(watch.rates.values()):
                    with seeded(seed + 1):
                        after = float(built.fresh().forward()[1].detach())
                    break
            stepped = {name: parameter for name, parameter in parameters if name in watch.steppers}
            differences = root_mean_squares([value.detach() - first[name] for name, value in stepped.items()])
            sizes = root_mean_squares([first[name] for name in stepped])
        rows = [
            (name, stepped[name].ndim > 1, watch.steppers[name], rate, moved, moved / size if size else None)
            for name, moved, size in zip(stepped, differences, sizes, strict=True)
            if (rate := watch.rates.get(name)) is not None
        ]
        moves = pd.DataFrame(rows, columns=["parameter", "matrix", "optimizer", "rate", "moved", "relative"]).astype(
            {"relative": float}
        )
        alarms, notes = [(names, what) for _, names, what in watch.alarms], list(watch.notes)
        if isfinite(before) and any(watch.rates.values()) and not isfinite(after):
            alarms.append(((), f"after step {watch.taken} the loss is {after:g}"))
        elif after > before and not alarms:
            notes.append(f"the step raises the loss of its own batch from {before:.4g} to {after:.4g}")
        tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        words = [name for name, of in stepped.items() if id(of) in tables and "Muon" in watch.steppers[name]]
        notes += [f"Muon updates embeddings, even of tokens outside the batch: {', '.join(words)}"] if words else []
        return OneStep(title, watch.taken, tuple(alarms), tuple(notes), moves, before, after)


@contextmanager
def _kept(stepper: Stepper) -> Iterator[None]:
    """Restore the state and parameter groups of optimizers, and a schedule's state, at the end of a `with` block."""
    states = [
        ({key: deepcopy(value) for key, value in optimizer.state.items()}, optimizer)
        for optimizer in stepper.optimizers
    ]
    groups = [
        (group, {key: value if key == "params" else deepcopy(value) for key, value in group.items()})
        for _, group in stepper.groups()
    ]
    known = all(hasattr(stepper.schedule, name) for name in ("state_dict", "load_state_dict"))
    schedule = deepcopy(stepper.schedule.state_dict()) if known else None
    try:
        yield
    finally:
        for state, optimizer in states:
            optimizer.state.clear()
            optimizer.state.update(state)
        for group, values in groups:
            group.clear()
            group.update(values)
        if schedule is not None:
            stepper.schedule.load_state_dict(schedule)
