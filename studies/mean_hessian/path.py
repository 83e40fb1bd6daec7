"""How a network's output moves along a line of its parameters, and what the loss's second derivative is made of.

Along θ + t v, with x (d,) a position's output, x' and x'' its derivatives at t = 0, logits z = x W, p their softmax and
y the target, the second derivative of a position's cross-entropy is

    (x' W)(diag p − p pᵀ)(x' W)ᵀ      the Gauss-Newton part
    −(|x'|²/|x|²) (p − y)·z           radial: the curvature of the sphere on which a normalized output stays
    (p − y)·(x'' W) − radial          the rest.

The output does not depend on W, so that one path serves any number of draws of W.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simulate.curvature.problems import StackModule, plain_operations


@dataclass(frozen=True, slots=True, eq=False)
class OutputPath:
    """An output and its first two derivatives along a line.

    Attributes:
        x: (..., positions, d).
        first: its derivative.
        second: the derivative of that.
    """

    x: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """vᵀ H v of every draw of the output matrix, in parts, each (draws,).

    Attributes:
        gauss_newton: vᵀ G v.
        radial: of the residual, what the output's curvature toward the sphere's centre gives.
        rest: the remaining residual.
    """

    gauss_newton: Tensor
    radial: Tensor
    rest: Tensor

    @property
    def hessian(self) -> Tensor:
        """Their sum."""
        return self.gauss_newton + self.radial + self.rest


def output_path(model: StackModule, inputs: dict[str, Tensor], direction: dict[str, Tensor]) -> OutputPath:
    """The output of a stack along θ + t v.

    Args:
        model: of any number of parameters.
        inputs: as the model's forward takes them; x may hold several draws.
        direction: v, by the names of parameters below the output matrix; those that are left out stay.
    """
    values = {name: value.detach() for name, value in model.named_parameters()}

    def along(t: Tensor) -> Tensor:
        moved = values | {name: values[name] + t * part for name, part in direction.items()}
        output: Tensor = torch.func.functional_call(_Output(model), {f"model.{k}": v for k, v in moved.items()}, inputs)
        return output

    zero = torch.zeros((), dtype=inputs["x"].dtype)

    def slope(t: Tensor) -> tuple[Tensor, Tensor]:
        pair: Any = torch.func.jvp(along, (t,), (torch.ones_like(t),))  # of two, without auxiliary outputs
        return pair[0], pair[1]

    with plain_operations():
        twice: Any = torch.func.jvp(slope, (zero,), (torch.ones_like(zero),))
    (x, first), (_, second) = twice
    return OutputPath(x, first, second)


class _Output(torch.nn.Module):
    def __init__(self, model: StackModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.model.output(inputs)


def second_derivative(path: OutputPath, output: Tensor, target: Tensor) -> Parts:
    """vᵀ H v of the mean over positions of the cross-entropy, in parts.

    Args:
        path: of one network, or of one a draw.
        output: W of every draw, (draws, d, V).
        target: y of every position, (positions, V), rows of sum 1.
    """
    logits = path.x @ output
    p = logits.softmax(-1)
    slope = p - target
    moved = path.first @ output
    gauss_newton = (p * moved.square()).sum(-1) - (p * moved).sum(-1).square()
    speed = path.first.square().sum(-1) / path.x.square().sum(-1)
    radial = -speed * (slope * logits).sum(-1)
    residual = (slope * (path.second @ output)).sum(-1)
    return Parts(gauss_newton.mean(-1), radial.mean(-1), (residual - radial).mean(-1))
