"""Training a translation model: torch's optimizers, a schedule, and checkpoints that a killed run goes on from.

Everything random is a function of the seed and the update: matrices, mini-batches and dropout are alike for every
placement, optimizer and schedule of a seed, and no generator's state has to be kept.
"""

import hashlib
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from simulate.modules.factories import seeded
from simulate.runs.cell import check_device
from simulate.runs.files import whole_file
from simulate.runs.sample import check_count
from simulate.translation.measurements import gradient_norms, padded
from simulate.translation.model import Translation, Translator, parameter_count, translation_loss
from simulate.translation.ordering import Order
from simulate.translation.parallel_text import PADDING, Ids, ParallelText
from simulate.translation.schedules import Schedule

OptimizerName = Literal["adam", "radam", "adamw", "sgd"]
Precision = Literal["float32", "bf16"]

_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam, "radam": torch.optim.RAdam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD,
}  # fmt: skip

# Numbers that a checkpoint has at most for each of the model's: itself and two moments, of four bytes.
_BYTES_A_NUMBER = 3 * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a model is trained.

    Attributes:
        translation: the model.
        schedule: the rate of every update.
        optimizer: "adam", "radam", "adamw" or "sgd", torch's own; the first three with `betas`, the rest torch's.
        betas: of Adam's kind; the paper's are (0.9, 0.98).
        updates: how many.
        batch_tokens: target tokens of a mini-batch, at most.
        every: validation losses and gradients are measured before the first update, every so many, and after the last.
        seed: of matrices, mini-batches and dropout.
        precision: "float32", or "bf16" for autocast.

    Raises:
        ValueError: a value is outside its range, the optimizer is unknown, or the schedule ends before the updates.
    """

    translation: Translation
    schedule: Schedule
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
        if not self.translation.real_labels:
            raise ValueError("translation must have real_labels to be trained, got real_labels=False.")
        self.schedule.rate(self.updates)

    def make_optimizer(self, model: Translator) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters; the schedule sets the rate of every update."""
        options: dict[str, Any] = {} if self.optimizer == "sgd" else {"betas": self.betas}
        return _CLASSES[self.optimizer](model.parameters(), lr=self.schedule.rate(1), **options)  # type: ignore[call-arg]


@dataclass(slots=True)
class Trained:
    """What a run has shown so far.

    Attributes:
        losses: of every update on its own mini-batch, with smoothing, in nats a token; a run ends at the first that is
            not finite.
        rates: of every update.
        measured: rows (update, part, layer, matrix, statistic, value): "validation loss" of the model, in nats a token
            without smoothing or dropout, after so many updates; "gradient norm" of every matrix, on the mini-batch of
            the next update (of the last, after the last).
    """

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    measured: list[tuple[int, str, int, str, str, float]] = field(default_factory=list)

    def table(self) -> pd.DataFrame:
        """`measured`, with the names of its columns."""
        return pd.DataFrame(self.measured, columns=["update", "part", "layer", "matrix", "statistic", "value"])

    @property
    def finite(self) -> bool:
        """Whether every loss was."""
        return all(map(math.isfinite, self.losses))


def train(
    training: Training,
    text: ParallelText,
    validation: ParallelText,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    device: str = "cpu",
    on_update: Callable[[int, float, float], None] | None = None,
) -> Trained:
    """Train a model, or go on where a run with the same checkpoint stopped.

    Args:
        training: how.
        text: to train on, of the model's vocabulary.
        validation: pairs that are not trained on, in ids of the same vocabulary.
        checkpoint: a file, written whole or not at all every `checkpoint_every` updates and at the end. If it is there,
            the run goes on from it: with the same losses on a CPU with equally many threads, to rounding on CUDA.
        checkpoint_every: updates.
        device: where.
        on_update: called with the update, its loss and its rate.

    Raises:
        ValueError: an argument is outside its range, vocabularies differ, the checkpoint is of another run or cannot be
            read, or there is no room for it.
    """
    check_count("checkpoint_every", checkpoint_every, 1)
    check_device(device)
    for name, one in (("text", text), ("validation", validation)):
        if one.vocab != training.translation.vocab:
            raise ValueError(f"vocab must be the {name}'s {one.vocab}, got {training.translation.vocab}.")
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        _check_room(path, training.translation)
    run = _Run(training, text, validation, device)
    if path is not None and path.exists():
        run.load(path)
    if not run.done and not run.shown.losses:
        run.measure()
    while not run.done:
        run.update()
        if path is not None and (run.done or len(run.shown.losses) % checkpoint_every == 0):
            run.save(path)
        if on_update is not None:
            on_update(len(run.shown.losses), run.shown.losses[-1], run.shown.rates[-1])
    return run.shown


class _Run:
    def __init__(self, training: Training, text: ParallelText, validation: ParallelText, device: str) -> None:
        self.training, self.text, self.validation, self.device = training, text, validation, device
        with seeded(training.seed):
            self.model = Translator(training.translation).to(device)
        self.optimizer = training.make_optimizer(self.model)
        self.order = Order(text, tokens=training.batch_tokens, seed=training.seed)
        self.shown = Trained()
        digests = [_digest(one) for one in (text, validation)]
        self.identity = repr([[(f.name, getattr(training, f.name)) for f in fields(training)], digests])

    @property
    def done(self) -> bool:
        return len(self.shown.losses) >= self.training.updates or not self.shown.finite

    def loss(self, text: ParallelText, pairs: Ids, *, smoothing: bool = True, reduction: str = "mean") -> Tensor:
        source, target = (padded([ids[pair] for pair in pairs]).to(self.device) for ids in (text.sources, text.targets))
        labels = target[:, 1:]
        inputs = target[:, :-1].masked_fill(labels == PADDING, PADDING)
        t = self.training.translation if smoothing else replace(self.training.translation, smoothing=0.0)
        kind = torch.device(self.device).type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.training.precision == "bf16"):
            return translation_loss(t, self.model(source, inputs), labels, reduction=reduction)

    def gradient(self, update: int) -> float:
        """The loss of an update's mini-batch, with its dropout; its gradient is in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        with seeded(_seed(self.training.seed, update)):
            loss = self.loss(self.text, self.order.batch(update))
        loss.backward()
        return float(loss.detach())

    def update(self) -> None:
        number = len(self.shown.losses) + 1
        rate = self.training.schedule.rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.gradient(number)
        self.optimizer.step()
        self.shown.losses.append(loss)
        self.shown.rates.append(rate)
        if math.isfinite(loss) and (number % self.training.every == 0 or number == self.training.updates):
            self.measure()

    def measure(self) -> None:
        """Append the validation loss and the gradients at the parameters as they are."""
        after = len(self.shown.losses)
        self.shown.measured.append((after, "", 0, "", "validation loss", self.validation_loss()))
        self.gradient(min(after + 1, self.training.updates))
        norms = gradient_norms(self.model)
        self.shown.measured += [(after, *place, "gradient norm", float(norm)) for place, norm in norms.items()]
        self.optimizer.zero_grad(set_to_none=True)

    def validation_loss(self) -> float:
        order = Order(self.validation, tokens=8 * self.training.batch_tokens, seed=0)
        total, tokens = 0.0, 0
        fast = torch.backends.mha.get_fastpath_enabled()
        self.model.eval()
        torch.backends.mha.set_fastpath_enabled(False)  # another arithmetic than the one that is trained
        try:
            with torch.no_grad():
                for number in range(1, len(order) + 1):
                    pairs = order.batch(number)
                    total += float(self.loss(self.validation, pairs, smoothing=False, reduction="sum"))
                    tokens += sum(len(self.validation.targets[pair]) - 1 for pair in pairs)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            self.model.train()
        return total / tokens

    def save(self, path: Path) -> None:
        kept = {
            "identity": self.identity, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "losses": self.shown.losses, "rates": self.shown.rates, "measured": self.shown.measured,
        }  # fmt: skip
        with whole_file(path) as file:
            torch.save(kept, file)

    def load(self, path: Path) -> None:
        try:
            kept = torch.load(path, map_location=self.device, weights_only=True)
            identity = kept["identity"]
        except Exception as error:
            raise ValueError(f"checkpoint must be one that training wrote, but {str(path)!r} is not.") from error
        if identity != self.identity:
            raise ValueError(f"checkpoint must be of the same run, but {str(path)!r} is of other texts or settings.")
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.shown = Trained(kept["losses"], kept["rates"], kept["measured"])


def _seed(seed: int, update: int) -> int:
    """Of an update's dropout: apart from every seed of matrices, and from other updates'."""
    return int.from_bytes(hashlib.sha256(f"dropout:{seed}:{update}".encode()).digest()[:6], "big")


def _digest(text: ParallelText) -> str:
    """Of the pairs' ids: the same files may be read with fewer pairs."""
    found = hashlib.sha256()
    for ids in (*text.sources, *text.targets):
        found.update(ids.tobytes())
    return found.hexdigest()


def _check_room(path: Path, translation: Translation) -> None:
    """Refuse a disk that cannot hold a checkpoint beside the one it replaces.

    Raises:
        ValueError: it cannot.
    """
    needed = 2 * _BYTES_A_NUMBER * parameter_count(translation)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if (free := shutil.disk_usage(folder).free) < needed:
        raise ValueError(
            f"checkpoint must have room, but {str(path)!r} needs {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are "
            "left."
        )
