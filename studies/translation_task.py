"""Translation models as the trainer has them."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from studies.measurements import gradient_norms, layer_energies
from studies.ordering import Order
from studies.parallel_text import PADDING, Ids, ParallelText
from studies.task import Row
from studies.translation_model import Translation, Translator, padded, translation_loss


class TranslationTask:
    """Pairs of sentences, in mini-batches of so many target tokens; see `Task`.

    Args:
        translation: the model.
        text: to train on, of the model's vocabulary.
        validation: pairs that are not trained on, in ids of the same vocabulary.
        tokens: target tokens of a mini-batch, at most.
        seed: of the order of pairs.
        device: where tensors are.

    Raises:
        ValueError: vocabularies differ.
    """

    name = "translation model"

    def __init__(
        self, translation: Translation, text: ParallelText, validation: ParallelText, *, tokens: int, seed: int,
        device: str,
    ) -> None:  # fmt: skip
        for name, pairs in (("text", text), ("validation", validation)):
            if pairs.vocab != translation.vocab:
                raise ValueError(f"vocab must be the {name}'s {pairs.vocab}, got {translation.vocab}.")
        self.translation, self.device = translation, device
        self._text, self._validation = text, validation
        self._order = Order(text, tokens=tokens, seed=seed)
        self._validation_order = Order(validation, tokens=8 * tokens, seed=0)

    @property
    def described(self) -> tuple[tuple[str, Translation], list[str]]:
        """The model, and digests of the pairs' ids: the same files may be read with fewer pairs."""
        return ("translation", self.translation), [_digest(pairs) for pairs in (self._text, self._validation)]

    def make_model(self) -> Translator:
        """A translation model."""
        return Translator(self.translation)

    def batch(self, update: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Source and target of an update, and the words after the target's."""
        return self._tensors(self._text, self._order.batch(update))

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """In nats a target token, with smoothing."""
        return translation_loss(self.translation, output, labels)

    def validation(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor, int]]:
        """In mini-batches eight times as large, in an order of their own."""
        for number in range(1, len(self._validation_order) + 1):
            pairs = self._validation_order.batch(number)
            inputs, labels = self._tensors(self._validation, pairs)
            yield inputs, labels, sum(len(self._validation.targets[pair]) - 1 for pair in pairs)

    def validation_sum(self, output: Tensor, labels: Tensor) -> Tensor:
        """In nats, without smoothing."""
        return translation_loss(replace(self.translation, smoothing=0.0), output, labels, reduction="sum")

    @contextmanager
    def watched(self, model: nn.Module) -> Iterator[list[Row]]:
        """Gradient norms of every matrix, and hidden energies of every layer."""
        assert isinstance(model, Translator)
        rows: list[Row] = []
        states: dict[tuple[str, int], list[Tensor]] = {}
        with layer_energies(model, states):
            yield rows
        rows += [(*place, "gradient norm", float(norm)) for place, norm in gradient_norms(model).items()]
        rows += [(*at, "", "hidden energy", float(torch.cat(x).mean())) for at, x in states.items()]

    def _tensors(self, text: ParallelText, pairs: Ids) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Ids of the source and of the target's words, and those after each."""
        source, target = (padded([ids[pair] for pair in pairs]).to(self.device) for ids in (text.sources, text.targets))
        labels = target[:, 1:]
        return (source, target[:, :-1].masked_fill(labels == PADDING, PADDING)), labels


def _digest(text: ParallelText) -> str:
    digest = hashlib.sha256()
    for ids in (*text.sources, *text.targets):
        digest.update(ids.tobytes())
    return digest.hexdigest()
