"""How a model is trained, by torch's optimizers along a schedule, and what a run has shown.

Everything random is a function of the seed and the update: matrices, mini-batches and dropout are alike for every
placement, optimizer and schedule of a seed, and no generator's state has to be kept.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args

import pandas as pd
import torch
from torch import nn

from simulate.counts import check_count
from studies.parallel_text import ParallelText
from studies.schedules import LinearDecay, Schedule
from studies.task import Task
from studies.translation_model import Translation
from studies.translation_task import TranslationTask

OptimizerName = Literal["adam", "radam", "adamw", "sgd"]
Precision = Literal["float32", "bf16"]

_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam, "radam": torch.optim.RAdam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD,
}  # fmt: skip

MEASURED = ("update", "part", "layer", "matrix", "statistic", "value")
"""Columns of what a run measures."""


Text = TypeVar("Text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates(Generic[Text]):
    """The updates of a training run; of which model, subclasses say.

    Attributes:
        schedule: the rate of every update.
        optimizer: "adam", "radam", "adamw" or "sgd", torch's own; the first three with `betas`, the rest torch's.
        betas: of Adam's kind; the paper's are (0.9, 0.98).
        updates: how many.
        batch_tokens: of a mini-batch, at most.
        every: validation losses, and what else the task measures, before the first update, every so many, and after the
            last.
        seed: of matrices, mini-batches and dropout.
        precision: "float32", or "bf16" for autocast.

    Raises:
        ValueError: a value is outside its range, or the optimizer is unknown.
    """

    schedule: Schedule | LinearDecay
    optimizer: OptimizerName = "adam"
    betas: tuple[float, float] = (0.9, 0.98)
    updates: int = 600
    batch_tokens: int = 512
    every: int = 50
    seed: int = 0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name, allowed in (("optimizer", OptimizerName), ("precision", Precision)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name} must be one of {', '.join(get_args(allowed))}, got {getattr(self, name)!r}.")
        for name, least in (("updates", 1), ("batch_tokens", 1), ("every", 1), ("seed", 0)):
            check_count(name, getattr(self, name), least)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas!r}.")

    def task(self, text: Text, validation: Text, device: str) -> Task:
        """What is trained, on which text.

        Raises:
            ValueError: a text does not fit the model.
        """
        raise NotImplementedError

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters; the schedule sets the rate of every update."""
        options: dict[str, Any] = {} if self.optimizer == "sgd" else {"betas": self.betas}
        return _CLASSES[self.optimizer](model.parameters(), lr=self.schedule.rate(1), **options)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Updates[ParallelText]):
    """How a translation model is trained.

    Attributes:
        translation: the model.

    Raises:
        ValueError: a value is outside its range, or the model's labels are no words.
    """

    translation: Translation

    def __post_init__(self) -> None:
        Updates.__post_init__(self)
        if not self.translation.real_labels:
            raise ValueError("translation must have real_labels to be trained, got real_labels=False.")

    def task(self, text: ParallelText, validation: ParallelText, device: str) -> Task:
        """The translation of a text; mini-batches have so many target tokens at most."""
        return TranslationTask(
            self.translation, text, validation, tokens=self.batch_tokens, seed=self.seed, device=device
        )


@dataclass(slots=True)
class Trained:
    """What a run has shown so far.

    Attributes:
        losses: of every update on its own mini-batch, with smoothing, in nats a token; a run ends at the first that is
            not finite.
        rates: of every update.
        measured: rows (update, part, layer, matrix, statistic, value): "validation loss" of the model, in nats a token
            without smoothing or dropout, after so many updates; of translation models "gradient norm" of every matrix,
            and "hidden energy" of every layer, the mean of ‖x‖²/d over words of its last residual sum, on the
            mini-batch of the next update (of the last, after the last); and what `at_step` gives, of the model.
    """

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    measured: list[tuple[int, str, int, str, str, float]] = field(default_factory=list)

    def table(self) -> pd.DataFrame:
        """`measured`, with the names of its columns."""
        return pd.DataFrame(self.measured, columns=list(MEASURED))

    @property
    def finite(self) -> bool:
        """Whether every loss was."""
        return all(map(math.isfinite, self.losses))
