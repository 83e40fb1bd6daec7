"""Fine-tuning of pre-trained masked language models on classes of sentences and of pairs (section 4.2 of the paper)."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from simulate.counts import check_count
from simulate.runs.provenance import processor
from simulate.runs.sample import one_thread
from simulate.text import read_utf8
from studies.bert.classification import MaskedClassifier
from studies.bert.model import MaskedModel
from studies.bert.text import PADDING, Ids, window_of
from studies.schedules import LinearDecay
from studies.task import Row, Task
from studies.trainer import train, without_dropout
from studies.training_run import Updates

UPDATES, WARMUP, BATCH, SEEDS = 600, 60, 32, 3
"""Of a fine-tuning: BERT's share of warm-up (a tenth) and its mini-batch, in windows; and how many a model has."""

_RATE, _WIDTH = 3e-5, 768
_PARTS = ("train", "test")


def rate_of(model: MaskedModel) -> float:
    """BERT's middle rate of fine-tuning (of 2e-5, 3e-5 and 5e-5), at the same rate times d: 1.8e-4 at d = 128.

    One for all models, as pre-training's rates differ, and chosen before any was fine-tuned.
    """
    return _RATE * _WIDTH / model.width


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Windows, each of a class.

    Attributes:
        ids: (examples, length): [CLS], and one or two passages with a [SEP] behind each; padded.
        labels: (examples,), places in `classes`.
        classes: their names.
        vocab: number of ids.
    """

    ids: Ids
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    vocab: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """SHA-256 of ids and labels."""
        return hashlib.sha256(self.ids.tobytes() + self.labels.tobytes()).hexdigest()

    @property
    def most_frequent(self) -> float:
        """The share of the most frequent class: the accuracy of who always says it."""
        return float(np.bincount(self.labels).max() / len(self))


@dataclass(frozen=True, slots=True, eq=False)
class Downstream:
    """A task of classes.

    Attributes:
        name: for people.
        train: what is trained on.
        test: what is not.
    """

    name: str
    train: Examples
    test: Examples

    @property
    def digest(self) -> str:
        """SHA-256 of both parts, its first 16 digits."""
        return hashlib.sha256((self.train.digest + self.test.digest).encode()).hexdigest()[:16]


def read_downstream(path: str | Path, known: Mapping[str, int], *, length: int, vocab: int) -> Downstream:
    """A task from a file of lines: train or test, the class, and one or two passages, with tabs between.

    Args:
        path: of a UTF-8 file; its name is the task's.
        known: ids of the pre-trained model's words, as `MaskedText.known` has them.
        length: of a window; what is longer is cut.
        vocab: number of the model's ids.

    Raises:
        ValueError: the file is missing, unreadable or not UTF-8, a line has another form, or there are fewer than two
            classes to learn, or none to test.
    """
    windows: dict[str, list[list[int]]] = {part: [] for part in _PARTS}
    labels: dict[str, list[str]] = {part: [] for part in _PARTS}
    for number, line in enumerate(read_utf8("task", path).decode("utf-8").splitlines(), start=1):
        part, *(label, *passages) = line.split("\t") if line.count("\t") in (2, 3) else ("", "")
        if part not in _PARTS:
            raise ValueError(
                f"task must have lines of train or test, a class, and one or two passages, with tabs between, but line "
                f"{number} of {str(path)!r} has not."
            )
        windows[part].append(window_of(passages, known, length))
        labels[part].append(label)
    classes = tuple(sorted(set(labels["train"])))
    if len(classes) < 2 or not labels["test"] or not set(labels["test"]) <= set(classes):
        raise ValueError(
            f"task must have two classes or more under train, and of these under test, but {str(path)!r} has "
            f"{len(classes)} and {len(set(labels['test']))}."
        )
    place = {name: number for number, name in enumerate(classes)}
    parts = [
        Examples(np.array(windows[part]), np.array([place[label] for label in labels[part]]), classes, vocab)
        for part in _PARTS
    ]
    return Downstream(Path(path).stem, *parts)


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """The masked language model that a fine-tuning begins with.

    Attributes:
        model: its sizes.
        weights: its state; None for one that is drawn, by the fine-tuning's own seed.
    """

    model: MaskedModel
    weights: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning(Updates[Examples]):
    """How a classifier is trained.

    Attributes:
        body: what it begins with; a mini-batch has `batch_tokens` over its length windows.

    Raises:
        ValueError: a value is outside its range.
    """

    body: Body

    def task(self, text: Examples, validation: Examples, device: str) -> Task:
        """Classes of windows."""
        size = self.batch_tokens // self.body.model.length
        return ClassificationTask(self.body, text, validation, size=size, seed=self.seed, device=device)


class ClassificationTask:
    """Windows in random order, epoch after epoch; see `Task`. What is left of an epoch is not used in it.

    Measures "accuracy", the share of right classes among what is not trained on.

    Args:
        body: what the classifier begins with.
        text: to train on.
        validation: not to train on.
        size: windows of a mini-batch.
        seed: of the order.
        device: where tensors are.

    Raises:
        ValueError: the body has other ids or fewer positions, or there are fewer examples than a mini-batch has.
    """

    name = "masked classifier"

    def __init__(self, body: Body, text: Examples, validation: Examples, *, size: int, seed: int, device: str) -> None:
        check_count("seed", seed, 0)
        if (text.vocab, text.ids.shape[1]) != (body.model.vocab, body.model.length):
            raise ValueError(
                f"task must have the model's {body.model.vocab} ids and windows of {body.model.length}, got "
                f"{text.vocab} and {text.ids.shape[1]}."
            )
        if not 1 <= size <= len(text):
            raise ValueError(f"batch_tokens must hold 1 to {len(text)} windows, the task's, got {size}.")
        self.body, self.device = body, device
        self._text, self._validation, self._size, self._seed = text, validation, size, seed

    @property
    def described(self) -> tuple[tuple[str, object], list[str]]:
        """The body's sizes and a digest of its weights, and digests of the examples."""
        weights = hashlib.sha256()
        for name, value in sorted((self.body.weights or {}).items()):
            weights.update(name.encode() + value.detach().cpu().numpy().tobytes())
        return ("body", (self.body.model, weights.hexdigest())), [self._text.digest, self._validation.digest]

    def make_model(self) -> MaskedClassifier:
        """A classifier with the body's weights.

        Raises:
            ValueError: they are of another model.
        """
        classifier = MaskedClassifier(self.body.model, len(self._text.classes))
        if self.body.weights is not None:
            try:
                classifier.body.load_state_dict(self.body.weights)
            except RuntimeError as error:
                raise ValueError(
                    f"weights must be of a masked language model of these sizes: {self.body.model}."
                ) from error
        return classifier

    def batch(self, update: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Ids, and the classes."""
        check_count("update", update, 1)
        epoch, number = divmod(update - 1, len(self._text) // self._size)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._text))
        return self._given(self._text, order[number * self._size : (number + 1) * self._size])

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """In nats a window."""
        return F.cross_entropy(output, labels)

    def validation(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor, int]]:
        """In mini-batches of the same size."""
        places = np.arange(len(self._validation))
        for part in np.split(places, range(self._size, len(places), self._size)):
            yield *self._given(self._validation, part), len(part)

    def validation_sum(self, output: Tensor, labels: Tensor) -> Tensor:
        """In nats."""
        return F.cross_entropy(output, labels, reduction="sum")

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[list[Row]]:
        """The accuracy."""
        with without_dropout(model):
            right = sum(int((model(*inputs).argmax(-1) == labels).sum()) for inputs, labels, _ in self.validation())
        yield [("", 0, "", "accuracy", right / len(self._validation))]

    def _given(self, examples: Examples, places: Ids) -> tuple[tuple[Tensor, ...], Tensor]:
        """Some windows, up to the longest one's end, and their classes."""
        ids = examples.ids[places]
        return (
            (torch.as_tensor(ids[:, : int((ids != PADDING).sum(axis=1).max())]).to(self.device),),
            torch.as_tensor(examples.labels[places]).to(self.device),
        )


@dataclass(frozen=True, slots=True)
class FineTuned:
    """What a fine-tuning came to.

    Attributes:
        accuracy: on what was not trained on, after the last update; the most frequent class's if a loss is not finite.
        test_loss: there, in nats an example; NaN if a loss is not finite.
        losses: of every update on its own mini-batch.
    """

    accuracy: float
    test_loss: float
    losses: tuple[float, ...]


def fine_tune(
    weights: Mapping[str, Tensor] | None,
    model: MaskedModel,
    task: Downstream,
    seed: int,
    device: str = "cpu",
    *,
    updates: int = UPDATES,
) -> FineTuned:
    """Train a classifier of a task from a pre-trained model: AdamW, BERT's betas and warm-up, `rate_of` the model.

    Args:
        weights: the state of a `MaskedLanguageModel`; None for one that is drawn, not pre-trained.
        model: its sizes.
        task: what is learned.
        seed: of the new layers, of the order of examples, and of a body that is drawn.
        device: where.
        updates: of `BATCH` windows each; a tenth are the warm-up.

    Raises:
        ValueError: an argument is outside its range, the task has other ids than the model, or too few examples.
    """
    training = FineTuning(
        body=Body(model, weights), optimizer="adamw", betas=(0.9, 0.999), seed=seed, updates=updates, every=updates,
        batch_tokens=BATCH * model.length,
        schedule=LinearDecay(peak=rate_of(model), warmup=max(1, updates * WARMUP // UPDATES), end=updates),
    )  # fmt: skip
    trained = train(training, task.train, task.test, device=device)
    last = {statistic: value for *_, statistic, value in trained.measured}
    if not trained.finite:
        last = {"accuracy": task.test.most_frequent, "validation loss": float("nan")}
    return FineTuned(last["accuracy"], last["validation loss"], tuple(trained.losses))


def tuned_rows(
    tasks: Sequence[Downstream],
    model: MaskedModel,
    weights: Mapping[str, Tensor] | None,
    about: Mapping[str, Any],
    device: str = "cpu",
    *,
    updates: int = UPDATES,
) -> list[dict[str, Any]]:
    """A model's fine-tunings as rows of a table, one for each task.

    Args:
        tasks: what is learned.
        model: its sizes.
        weights: of the pre-trained model; None for one that is not.
        about: which run it is, as `described` has it.
        device: where.
        updates: of each fine-tuning.

    Returns:
        `about`, `task`, its `examples` (a digest) and `most frequent` class's accuracy, `placement`, whether it was
        `pretrained`; over `SEEDS` fine-tunings the lists `accuracies`, `test losses` and `last losses`, the mean of the
        last tenth of updates; `updates`, `rate`, `seconds` and `processor`.
    """
    rows = []
    for task in tasks:
        start = time.perf_counter()
        with one_thread():
            tuned = [fine_tune(weights, model, task, seed, device, updates=updates) for seed in range(SEEDS)]
        last = -max(1, updates // 10)
        lists = {
            "accuracies": [each.accuracy for each in tuned], "test losses": [each.test_loss for each in tuned],
            "last losses": [float(np.mean(each.losses[last:])) for each in tuned],
        }  # fmt: skip
        rows.append({
            **about, "task": task.name, "placement": model.placement, "pretrained": weights is not None,
            "examples": task.digest, "most frequent": task.test.most_frequent,
            **{name: [float(f"{value:.6g}") for value in values] for name, values in lists.items()},
            "updates": updates, "rate": rate_of(model), "seconds": round(time.perf_counter() - start),
            "processor": processor(device),
        })  # fmt: skip
    return rows
