"""Learned scalars that multiply branches, as in ReZero: one for each layer, 0 at initialization."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(slots=True)
class Scalar:
    """A learned scalar of one layer in each random network, with its gradient.

    The gradient is from all branches that the scalar multiplied.

    Attributes:
        value: the scalar of each draw.
        gradient: the gradient of the loss with respect to the scalar, for each draw; 0 before a branch is pulled back.
    """

    value: Float[Tensor, " draws"]
    gradient: Float[Tensor, " draws"] = field(init=False)

    def __post_init__(self) -> None:
        self.gradient = torch.zeros_like(self.value)


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
        self.scalar.gradient = self.scalar.gradient + slope
        return gradient * self.scalar.value[:, None, None], slope.square()
