"""What the trainer has to know of a model and its text."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

Row = tuple[str, int, str, str, float]
"""Of what is measured: part, layer, matrix, statistic and value."""


class Task(Protocol):
    """A model, mini-batches of its text, and its loss.

    Attributes:
        name: of the model, for people.
        described: the model and its texts, as the identity of a run's checkpoint has them.
    """

    name: str

    @property
    def described(self) -> tuple[tuple[str, Any], list[str]]:
        """The model's field and value, and the texts' digests."""
        ...

    def make_model(self) -> nn.Module:
        """A model, drawn from torch's global generator."""
        ...

    def batch(self, update: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """What the model is given at an update, from 1, and the labels; a function of the update alone."""
        ...

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a mini-batch, in nats a label."""
        ...

    def validation(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor, int]]:
        """Mini-batches of what is not trained on, with how many labels each has."""
        ...

    def validation_sum(self, output: Tensor, labels: Tensor) -> Tensor:
        """The sum of such a mini-batch's losses, in nats."""
        ...

    def watched(self, model: nn.Module) -> AbstractContextManager[list[Row]]:
        """A context in which a gradient is taken; when it has ended the rows of what was measured stand in the list."""
        ...
