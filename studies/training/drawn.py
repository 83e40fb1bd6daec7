"""A matrix that is drawn and steps: the ground truth of training."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from simulate.curvature.first_step import polar_factor
from simulate.network.engines import inner, taken
from studies.training.optimizers import EPSILON, SECOND, Optimizer


@dataclass(slots=True)
class DrawnMap:
    """A map that holds its matrices, one per draw, and their momentum.

    Attributes:
        weight: W of every draw.
    """

    weight: Float[Tensor, "draws d_in d_out"]
    _momentum: Float[Tensor, "draws d_in d_out"] | None = field(init=False, default=None)
    _squares: Float[Tensor, "draws d_in d_out"] | float = field(init=False, default=0.0)
    _steps: int = field(init=False, default=0)
    _rows: Tensor | None = field(init=False, default=None)
    _gradient: Tensor | None = field(init=False, default=None)

    def forward(self, rows: Float[Tensor, "draws rows d_in"]) -> Float[Tensor, "draws rows d_out"]:
        """The product x W of every draw."""
        self._rows = rows
        return rows @ self.weight

    def pullback(
        self, gradient: Float[Tensor, "draws rows d_out"]
    ) -> tuple[Float[Tensor, "draws rows d_in"], Float[Tensor, " draws"]]:
        """The product g Wᵀ of every draw, and ‖∂L/∂W‖_F² = ‖xᵀ g‖_F².

        Raises:
            RuntimeError: the map was not applied since it was last pulled back.
        """
        rows, self._rows = taken(self._rows, "applied", "is pulled back"), None
        self._gradient = rows.mT @ gradient
        return gradient @ self.weight.mT, inner(rows @ rows.mT, gradient @ gradient.mT)

    def learn(self, optimizer: Optimizer, rate: float) -> None:
        """One step of an optimizer along the gradient of the latest pullback.

        Raises:
            RuntimeError: there was none since the latest step.
        """
        gradient, self._gradient = taken(self._gradient, "pulled back", "learns"), None
        if optimizer.weight_decay and not optimizer.decoupled:
            gradient = gradient + optimizer.weight_decay * self.weight
        self._steps += 1
        if optimizer.name == "adam":
            self.weight = (1.0 - rate * optimizer.weight_decay) * self.weight - rate * self._of_adam(
                gradient, optimizer
            )
            return
        before = torch.zeros_like(gradient) if self._momentum is None else self._momentum
        self._momentum = optimizer.momentum * before + gradient
        if not optimizer.decoupled:
            self.weight = self.weight - rate * self._momentum
            return
        # Decomposed in float64, as cores are: what is in the numerical range must not hang on the dtype.
        step = polar_factor(self._momentum.double(), *self.weight.shape[1:]).to(self.weight.dtype)
        self.weight = (1.0 - rate * optimizer.weight_decay) * self.weight - rate * step

    def _of_adam(self, gradient: Tensor, optimizer: Optimizer) -> Tensor:
        """Mean over root mean square of the gradients so far, both as if no zeros had stood before them."""
        before = torch.zeros_like(gradient) if self._momentum is None else self._momentum
        self._momentum = optimizer.momentum * before + (1.0 - optimizer.momentum) * gradient
        self._squares = SECOND * self._squares + (1.0 - SECOND) * gradient.square()
        mean = self._momentum / (1.0 - optimizer.momentum**self._steps)
        return mean / ((self._squares / (1.0 - SECOND**self._steps)).sqrt() + EPSILON)
