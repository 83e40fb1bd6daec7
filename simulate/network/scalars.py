"""Learned scalars that multiply branches, as in ReZero: one for each layer, 0 at initialization."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(slots=True)
class Scalar:
    """A learned scalar of one layer in each random network, with its momentum and its gradient.

    The gradient is from all branches that the scalar multiplied.

    Attributes:
        value: the scalar of each draw.
        gradient: the gradient since the latest step; None if no branch was pulled back.
    """

    value: Float[Tensor, " draws"]
    gradient: Float[Tensor, " draws"] | None = field(init=False, default=None)
    _momentum: Float[Tensor, " draws"] | float = field(init=False, default=0.0)

    @property
    def slope(self) -> Float[Tensor, " draws"]:
        """The gradient of the loss with respect to a learned scalar, for each random network.

        The shape is (draws,).

        Raises:
            RuntimeError: no branch was pulled back since the latest step.
        """
        if self.gradient is None:
            raise RuntimeError("a scalar must be pulled back before it learns, and learns once for each time.")
        return self.gradient

    def add_gradient(self, gradient: Float[Tensor, " draws"]) -> None:
        """Add the gradient from one branch to the gradient of the learned scalar.

        The shape is (draws,).
        """
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def learn(self, rate: float, momentum: float, weight_decay: float) -> None:
        """Update the learned scalar by one step of SGD with momentum and weight decay."""
        gradient, self.gradient = self.slope, None
        self._momentum = momentum * self._momentum + gradient + weight_decay * self.value
        self.value = self.value - rate * self._momentum


@dataclass(slots=True)
class ScalarUse:
    """The multiplication of one branch's output by a learned scalar, with its backward pass.

    Attributes:
        scalar: the scalar.
    """

    scalar: Scalar
    _rows: Tensor | None = field(init=False, default=None)

    def forward(self, rows: Float[Tensor, "draws rows width"]) -> Float[Tensor, "draws rows width"]:
        """Return the branch's output times the learned scalar of every random network."""
        self._rows = rows
        return rows * self.scalar.value[:, None, None]

    def pullback(
        self, gradient: Float[Tensor, "draws rows width"]
    ) -> tuple[Float[Tensor, "draws rows width"], Float[Tensor, " draws"]]:
        """Return the gradient times the learned scalar, and the square of this branch's part in the scalar's gradient.

        Raises:
            RuntimeError: no rows were multiplied.
        """
        if self._rows is None:
            raise RuntimeError("a scalar must multiply rows before it is pulled back.")
        slope = torch.einsum("bnd,bnd->b", self._rows, gradient)
        self.scalar.add_gradient(slope)
        return gradient * self.scalar.value[:, None, None], slope.square()
