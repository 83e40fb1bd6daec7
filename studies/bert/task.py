"""Masked language models as the trainer has them."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from simulate.counts import check_count
from studies.bert.masking import masked
from studies.bert.model import MaskedLanguageModel, MaskedModel, masked_loss
from studies.bert.text import WORDS, Ids, MaskedText
from studies.task import Row, Task
from studies.training_run import Updates

# Of seeds of masks, apart from each other: what is trained on, and what is not.
_TRAINED, _HELD_OUT = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining(Updates[MaskedText]):
    """How a masked language model is trained.

    Attributes:
        model: the model.

    Raises:
        ValueError: a value is outside its range.
    """

    model: MaskedModel

    def task(self, text: MaskedText, validation: MaskedText, device: str) -> Task:
        """Words of a text to be guessed; a mini-batch has as many whole windows as `batch_tokens` hold."""
        return MaskedTask(self.model, text, validation, tokens=self.batch_tokens, seed=self.seed, device=device)


class MaskedTask:
    """Windows in random order, epoch after epoch, each with words hidden by a draw of its own; see `Task`.

    A mini-batch has equally many windows; what is left of an epoch is not used in it. What is hidden in a window is a
    function of the seed, the epoch and the window. Of the windows that are not trained on it is always the same.

    Args:
        model: the model.
        text: to train on, of the model's vocabulary.
        validation: windows that are not trained on, in ids of the same vocabulary.
        tokens: ids of a mini-batch, at most.
        seed: of the order of windows, and of what is hidden in them.
        device: where tensors are.

    Raises:
        ValueError: vocabularies differ, windows are longer than the model has positions, or a text has too few.
    """

    name = "masked language model"

    def __init__(
        self, model: MaskedModel, text: MaskedText, validation: MaskedText, *, tokens: int, seed: int, device: str
    ) -> None:
        check_count("seed", seed, 0)
        for name, windows in (("text", text), ("validation", validation)):
            if windows.vocab != model.vocab:
                raise ValueError(f"vocab must be the {name}'s {windows.vocab}, got {model.vocab}.")
            if windows.ids.shape[1] > model.length:
                raise ValueError(f"length must be at least the {name}'s {windows.ids.shape[1]}, got {model.length}.")
        self._size = tokens // text.ids.shape[1]
        if not 1 <= self._size <= len(text):
            raise ValueError(
                f"batch_tokens must hold 1 to {len(text)} windows of {text.ids.shape[1]} ids, the text's, got {tokens}."
            )
        self.model, self.device = model, device
        self._text, self._validation, self._seed = text, validation, seed
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    @property
    def described(self) -> tuple[tuple[str, MaskedModel], list[str]]:
        """The model, and digests of the windows' ids."""
        digests = [hashlib.sha256(text.ids.tobytes()).hexdigest() for text in (self._text, self._validation)]
        return ("model", self.model), digests

    def make_model(self) -> MaskedLanguageModel:
        """A masked language model."""
        return MaskedLanguageModel(self.model)

    def batch(self, update: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Ids and the places of hidden words, and these words."""
        check_count("update", update, 1)
        epoch, number = divmod(update - 1, len(self._text) // self._size)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(len(self._text))
        windows = self._order[number * self._size : (number + 1) * self._size]
        return self._hidden(self._text.ids, windows, [_TRAINED, self._seed, epoch])

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """In nats a hidden word."""
        return masked_loss(output, labels)

    def validation(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor, int]]:
        """In mini-batches of the same size."""
        windows = np.arange(len(self._validation))
        for part in np.split(windows, range(self._size, len(windows), self._size)):
            inputs, labels = self._hidden(self._validation.ids, part, [_HELD_OUT])
            yield inputs, labels, len(labels)

    def validation_sum(self, output: Tensor, labels: Tensor) -> Tensor:
        """In nats."""
        return masked_loss(output, labels, reduction="sum")

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[list[Row]]:
        """Nothing."""
        yield []

    def _hidden(self, ids: Ids, windows: Ids, seed: list[int]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Of some windows, each a block of random numbers of its own: ids, places of hidden words, and these words."""
        drawn = [masked(ids[window], vocab=self.model.vocab, seed=[*seed, int(window)]) for window in windows]
        shown, chosen = (torch.as_tensor(np.stack(parts)) for parts in zip(*drawn, strict=True))
        places = chosen.flatten().nonzero()[:, 0]
        labels = torch.as_tensor(ids[windows]).flatten()[places]
        return (shown.to(self.device), places.to(self.device)), labels.to(self.device)


def unigram_loss(text: MaskedText, validation: MaskedText) -> float:
    """Cross-entropy, nats a hidden word, of the hidden words of `validation` under the frequencies of a text's words.

    Every word is counted once more than it occurs, so that the loss is finite.
    """
    counts = np.bincount(text.ids.ravel(), minlength=text.vocab) + 1.0
    counts[:WORDS] = 0.0
    hidden = [
        ids[masked(ids, vocab=text.vocab, seed=[_HELD_OUT, window])[1]] for window, ids in enumerate(validation.ids)
    ]
    return float(-np.log(counts[np.concatenate(hidden)] / counts.sum()).mean())
