"""Taking the updates of a training run, measuring between them, and going on from a checkpoint."""

import hashlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from simulate.counts import check_count
from simulate.modules.factories import Made, seeded
from simulate.runs.cell import check_device
from simulate.runs.files import whole_file
from studies.task import Task
from studies.training_run import Text, Trained, Updates

# Numbers that a checkpoint has at most for each of the model's: itself and two moments, of four bytes.
_BYTES_A_NUMBER = 3 * 4


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step that an optimizer took, from θ to θ - rate u.

    Attributes:
        update: its number.
        made: the model, as it is before the step, with the step's own mini-batch and its loss.
        seed: of the dropout that the step's gradient had.
        direction: u, by the names of the model's parameters.
        rate: of the update.
    """

    update: int
    made: Made
    seed: int
    direction: dict[str, Tensor]
    rate: float


AtStep = Callable[[Step], dict[str, float]]


def train(
    training: Updates[Text],
    text: Text,
    validation: Text,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    device: str = "cpu",
    at_step: AtStep | None = None,
    on_update: Callable[[int, float, float], None] | None = None,
    on_measure: Callable[[Trained], None] | None = None,
) -> Trained:
    """Train a model, or go on where a run with the same checkpoint stopped.

    Args:
        training: how.
        text: to train on, of the model's vocabulary.
        validation: what is not trained on, in ids of the same vocabulary.
        checkpoint: a file, written whole or not at all every `checkpoint_every` updates and at the end. If it is there,
            the run goes on from it: with the same losses on a CPU with equally many threads, to rounding on CUDA.
        checkpoint_every: updates.
        device: where.
        at_step: gives statistics of the first step, and of every `every`-th, as `studies.trained_step` does.
        on_update: called with the update, its loss and its rate.
        on_measure: called with what the run has shown, whenever that is measured.

    Raises:
        ValueError: an argument is outside its range, vocabularies differ, the checkpoint is of another run or cannot be
            read, or there is no room for it.
    """
    check_count("checkpoint_every", checkpoint_every, 1)
    check_device(device)
    task = training.task(text, validation, device)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        _check_room(path, task)
    run = _Run(training, task, device, at_step)
    if path is not None and path.exists():
        run.load(path)
    if not run.done and not run.shown.losses:
        run.measure()
    while not run.done:
        run.update()
        if path is not None and (run.done or len(run.shown.losses) % checkpoint_every == 0):
            run.save(path)
        if on_measure is not None and run.shown.measured[-1][0] == len(run.shown.losses):
            on_measure(run.shown)
        if on_update is not None:
            on_update(len(run.shown.losses), run.shown.losses[-1], run.shown.rates[-1])
    return run.shown


class _Run:
    def __init__(self, training: Updates[Text], task: Task, device: str, at_step: AtStep | None = None) -> None:
        self.training, self.task, self.device, self.at_step = training, task, device, at_step
        with seeded(training.seed):
            self.model = task.make_model().to(device)
        self.optimizer = training.make_optimizer(self.model)
        self.shown = Trained()
        model, digests = task.described
        updates = [(f.name, getattr(training, f.name)) for f in fields(training) if f.name != model[0]]
        self.identity = repr([[model, *updates], digests, at_step is not None])

    @property
    def done(self) -> bool:
        return len(self.shown.losses) >= self.training.updates or not self.shown.finite

    def rounding(self) -> torch.autocast:
        kind = torch.device(self.device).type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self.training.precision == "bf16")

    def gradient(self, update: int) -> float:
        """The loss of an update's mini-batch, with its dropout; its gradient is in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        with seeded(_seed(self.training.seed, update)):
            inputs, labels = self.task.batch(update)
            with self.rounding():
                loss = self.task.loss(self.model(*inputs), labels)
        loss.backward()
        return float(loss.detach())

    def update(self) -> None:
        number = len(self.shown.losses) + 1
        rate = self.training.schedule.rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.gradient(number)
        asked = self.at_step if number == 1 or number % self.training.every == 0 else None
        before = {name: p.detach().clone() for name, p in self.model.named_parameters()} if asked else {}
        self.optimizer.step()
        if asked and math.isfinite(loss):
            with self.taken(number, rate, before) as step:
                self.shown.measured += [(number, "", 0, "", name, value) for name, value in asked(step).items()]
        self.shown.losses.append(loss)
        self.shown.rates.append(rate)
        if math.isfinite(loss) and (number % self.training.every == 0 or number == self.training.updates):
            self.measure()

    @contextmanager
    def taken(self, update: int, rate: float, before: Mapping[str, Tensor]) -> Iterator[Step]:
        """The step that led here from `before`, with the model as it was before it as long as the context lasts."""
        parameters = dict(self.model.named_parameters())
        after = {name: p.detach().clone() for name, p in parameters.items()}
        inputs, labels = self.task.batch(update)
        module = Made(self.task.name, self.model, inputs, lambda output: self.task.loss(output, labels))
        direction = {name: (before[name] - after[name]) / rate for name in parameters}
        self.optimizer.zero_grad(set_to_none=True)
        self.put(before)
        try:
            yield Step(update, module, _seed(self.training.seed, update), direction, rate)
        finally:
            self.put(after)

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Set the model's parameters."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(values[name])

    def measure(self) -> None:
        """Append the validation loss, and what else the task measures, at the parameters as they are."""
        after = len(self.shown.losses)
        self.shown.measured.append((after, "", 0, "", "validation loss", self.validation_loss()))
        with self.task.watched(self.model) as rows:
            self.gradient(min(after + 1, self.training.updates))
        self.shown.measured += [(after, *row) for row in rows]
        self.optimizer.zero_grad(set_to_none=True)

    def validation_loss(self) -> float:
        total, labelled = 0.0, 0
        with without_dropout(self.model), self.rounding():
            for inputs, labels, count in self.task.validation():
                total += float(self.task.validation_sum(self.model(*inputs), labels))
                labelled += count
        return total / labelled

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


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """A model as it is used, without gradients, in the arithmetic in which it is trained."""
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # another arithmetic
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train()


def _seed(seed: int, update: int) -> int:
    """Of an update's dropout: apart from every seed of matrices, and from other updates'."""
    return int.from_bytes(hashlib.sha256(f"dropout:{seed}:{update}".encode()).digest()[:6], "big")


def _check_room(path: Path, task: Task) -> None:
    """Refuse a disk that cannot hold a checkpoint beside the one it replaces.

    Raises:
        ValueError: it cannot.
    """
    with torch.device("meta"):
        needed = 2 * _BYTES_A_NUMBER * sum(p.numel() for p in task.make_model().parameters())
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if (free := shutil.disk_usage(folder).free) < needed:
        raise ValueError(
            f"checkpoint must have room, but {str(path)!r} needs {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are "
            "left."
        )
