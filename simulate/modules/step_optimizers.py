"""Create the optimizers that step a module, from a name such as "adam" or from a user's function."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from simulate.modules.catalogue import load_factory
from simulate.modules.factories import ProbeError, name_of, stage

StepOptimizer = Literal["sgd", "adam", "adamw", "muon"]
STEP_OPTIMIZERS: tuple[StepOptimizer, ...] = get_args(StepOptimizer)
"""Names of optimizers from torch.optim; "muon" updates matrices except embeddings by Muon, and the rest by AdamW."""

OptimizerFactory = Callable[..., Any]

RATE = 1e-3
"""The default learning rate of an optimizer given by name, which is torch's own default."""


@dataclass(frozen=True, slots=True, eq=False)
class Stepper:
    """The optimizers and the learning rate schedule that train a module.

    Attributes:
        optimizers: one or several optimizers, each with its own parameters.
        schedule: the learning rate schedule, or None.
    """

    optimizers: tuple[Optimizer, ...]
    schedule: Any

    def step(self) -> None:
        """Take one step of each optimizer, and then one step of the learning rate schedule.

        Raises:
            ProbeError: an optimizer or the schedule fails.
        """
        with stage("optimizer"):
            for optimizer in self.optimizers:
                optimizer.step()
            if self.schedule is not None:
                self.schedule.step()

    def groups(self) -> list[tuple[Optimizer, dict[str, Any]]]:
        """Return all parameter groups of the optimizers, each with its optimizer."""
        return [(optimizer, group) for optimizer in self.optimizers for group in optimizer.param_groups]


def optimizer_factory(
    optimizer: str | OptimizerFactory | Any, learning_rate: float | None, *, made: bool = False
) -> tuple[str, OptimizerFactory]:
    """Return an optimizer's name, and a function that creates this optimizer for a module.

    Both follow from a name or a user's function.

    Args:
        optimizer: one of `STEP_OPTIMIZERS`, MODULE:FUNCTION or FILE.py:FUNCTION, or a function.
        learning_rate: learning rate of an optimizer given by name; the default is `RATE`.
        made: whether `optimizer` may also be an existing optimizer, several, or (optimizer, schedule).

    Raises:
        ValueError: the optimizer is unknown, a learning rate is combined with a function, or it is not above 0.
    """
    if learning_rate is not None and not 0 < learning_rate < float("inf"):
        raise ValueError(f"learning_rate must be a number above 0, got {learning_rate!r}.")
    if isinstance(optimizer, str) and optimizer in STEP_OPTIMIZERS:
        rate = RATE if learning_rate is None else learning_rate
        return optimizer, lambda module: _by_name(optimizer, module, rate)
    if learning_rate is not None:
        raise ValueError(
            f"learning_rate requires one of {', '.join(STEP_OPTIMIZERS)}; {optimizer!r} sets its own learning rate."
        )
    if isinstance(optimizer, str):
        if ":" not in optimizer:
            raise ValueError(
                f"optimizer must be one of {', '.join(STEP_OPTIMIZERS)}, MODULE:FUNCTION or FILE.py:FUNCTION, got "
                f"{optimizer!r}."
            )
        return optimizer, load_factory(optimizer, "optimizer")
    first = optimizer
    while isinstance(first, tuple | list) and first:
        first = first[0]
    if made and isinstance(first, Optimizer):
        return type(first).__name__, lambda module: optimizer
    if not callable(optimizer):
        also = ", or an optimizer" if made else ""
        raise ValueError(f"optimizer must be a name or a function of a module{also}, got {optimizer!r}.")
    return name_of(optimizer), optimizer


def stepper_of(name: str, factory: OptimizerFactory, module: nn.Module, sizes: Mapping[str, int]) -> Stepper:
    """Call a user's function on a module, and return the optimizers and the schedule that it creates.

    Args:
        name: the function's name.
        factory: the function.
        module: the module that it gets.
        sizes: width and depth, for a function with parameters of these names; empty for one module.

    Raises:
        ProbeError: the function fails, or returns something other than an optimizer, several of them, or (optimizer,
            schedule).
    """
    with stage(f"optimizer {name!r}"):
        result = factory(module, **_asked(factory, sizes))
    optimizers, schedule = result, None
    if isinstance(result, tuple) and len(result) == 2 and not isinstance(result[1], Optimizer):
        optimizers, schedule = result
    every = tuple(optimizers) if isinstance(optimizers, Sequence) else (optimizers,)
    if not every or not all(isinstance(part, Optimizer) for part in every):
        kinds = ", ".join(type(part).__name__ for part in every) or "none"
        raise ProbeError(
            f"optimizer {name!r} must return a torch.optim.Optimizer, several of them, or (optimizer, schedule), got "
            f"{kinds}"
        )
    if schedule is not None and not callable(getattr(schedule, "step", None)):
        raise ProbeError(f"schedule of {name!r} must have a method step, got {type(schedule).__name__}")
    return Stepper(every, schedule)


def _asked(factory: OptimizerFactory, sizes: Mapping[str, int]) -> dict[str, int]:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}
    return {name: size for name, size in sizes.items() if name in parameters}


def _by_name(name: str, module: nn.Module, rate: float) -> Any:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if name in kinds:
        return kinds[name](parameters, lr=rate)
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    matrices = [parameter for parameter in parameters if parameter.ndim == 2 and id(parameter) not in tables]
    rest = [parameter for parameter in parameters if parameter.ndim != 2 or id(parameter) in tables]
    if not matrices:
        raise ValueError("muon steps matrices, and the module has none")
    steps: list[Optimizer] = [torch.optim.Muon(matrices, lr=rate)]
    return [*steps, torch.optim.AdamW(rest, lr=rate)] if rest else steps
