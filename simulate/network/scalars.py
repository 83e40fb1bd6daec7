"""Learned scalars that multiply branches, as in ReZero: one per layer, 0 at initialization."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(slots=True)
class Scalar:
    """A learned scalar per draw, with its momentum and its gradient from all branches that it multiplied.

    Attributes:
        value: the scalar of each draw.
        gradient: the gradient since the latest step; None if no branch was pulled back.
    """

    value: Float[Tensor, " draws"]
    gradient: Float[Tensor, " draws"] | None = field(init=False, default=None)
    _momentum: Float[Tensor, " draws"] | float = field(init=False, default=0.0)

    @property
    def slope(self) -> Float[Tensor, " draws"]:
        """The gradient with respect to the scalar, (draws,).

        Raises:
            RuntimeError: no branch was pulled back since the latest step.
        """
        if self.gradient is None:
            raise RuntimeError("a scalar must be pulled back before it learns, and learns once for each time.")
        return self.gradient

    def add_gradient(self, gradient: Float[Tensor, " draws"]) -> None:
        """Add one branch's gradient, (draws,), to the gradient of the learned scalar."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def learn(self, rate: float, momentum: float, weight_decay: float) -> None:
        """Update the scalar by one step of SGD with momentum and weight decay."""
        gradient, self.gradient = self.slope, None
        self._momentum = momentum * self._momentum + gradient + weight_decay * self.value
        self.value = self.value - rate * self._momentum


@dataclass(slots=True)
class ScalarUse:
    """The use of a learned scalar as a multiplier of one branch's rows.

    Attributes:
        scalar: the scalar.
    """

    scalar: Scalar
    _rows: Tensor | None = field(init=False, default=None)

    def forward(self, rows: Float[Tensor, "draws rows width"]) -> Float[Tensor, "draws rows width"]:
        """Return the rows times the scalar of every draw."""
        self._rows = rows
        return rows * self.scalar.value[:, None, None]

    def pullback(
        self, gradient: Float[Tensor, "draws rows width"]
    ) -> tuple[Float[Tensor, "draws rows width"], Float[Tensor, " draws"]]:
        """Return the gradient times the scalar, and the square of this branch's contribution to the scalar's gradient.

        Raises:
            RuntimeError: no rows were multiplied.
        """
        if self._rows is None:
            raise RuntimeError("a scalar must multiply rows before it is pulled back.")
        slope = torch.einsum("bnd,bnd->b", self._rows, gradient)
        self.scalar.add_gradient(slope)
        return gradient * self.scalar.value[:, None, None], slope.square()
