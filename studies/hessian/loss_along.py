"""What a loss's second derivative along one direction is made of: Gauss-Newton, the radial part, the rest.

With x_i what the last linear map is given at a position, x_i' its derivative along the direction, and ∂ℓ/∂x_i the
loss's,

    v'Hv = v'Gv − Σ_i (|x_i'|²/|x_i|²) x_i·∂ℓ/∂x_i + rest.

Where x_i stays on a sphere, as below a norm without weights, the second term is what its curvature gives, for then
x_i·x_i'' = −|x_i'|². With logits z = x W and a cross-entropy it is −(|x'|²/|x|²) (p − y)·z, a position's share each.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from simulate.curvature.problems import Problem, StackModule, plain_operations
from studies.hessian.operators import operator, product


@dataclass(frozen=True, slots=True)
class Curvature:
    """v'Hv of a unit vector v, in parts.

    Attributes:
        gauss_newton: v'Gv.
        radial: the second term above; NaN where the model calls no linear layer.
        rest: what remains.
    """

    gauss_newton: float
    radial: float
    rest: float


def curvature_along(problem: Problem, direction: dict[str, Tensor]) -> Curvature:
    """The second derivative of the loss along θ + t v at t = 0, in parts.

    Args:
        problem: of the model.
        direction: v, of all parameters of the problem by name.

    Raises:
        ValueError: an operation has no second derivative.
    """
    vector = torch.cat([direction[name].flatten() for name, p in problem.model.named_parameters() if p.requires_grad])
    gauss_newton, whole = (
        float(vector @ product(operator(problem, matrix), vector)) for matrix in ("gauss-newton", "hessian")
    )
    radial = -sum(_radial(problem, direction, inputs, labels) for inputs, labels in problem.data)
    rest = whole - gauss_newton - (0.0 if radial != radial else radial)
    return Curvature(gauss_newton, radial, rest)


def _radial(problem: Problem, direction: dict[str, Tensor], inputs: dict[str, Any], labels: Tensor) -> float:
    """Σ_i (|x_i'|²/|x_i|²) x_i·∂ℓ/∂x_i of one piece of the data."""
    values = {name: p.detach() for name, p in problem.model.named_parameters()}
    seen: list[Tensor] = []
    # Of a stack, what is read out; of any other model, what is given to the linear layer that is called last.
    linear = [layer for layer in problem.model.modules() if isinstance(layer, nn.Linear)]
    watched = [problem.model.read] if isinstance(problem.model, StackModule) else linear
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in watched]

    def output(rate: Tensor) -> Tensor:
        seen.clear()
        moved = {name: value + rate * direction[name] if name in direction else value for name, value in values.items()}
        torch.func.functional_call(problem.model, moved, (inputs,))
        return seen[-1]

    try:
        with plain_operations():
            loss = problem.loss(problem.model(inputs), labels)
            if not seen:
                return float("nan")
            x = seen[-1]
            (slope,) = torch.autograd.grad(loss, x)
            zero = torch.zeros((), dtype=x.dtype, device=x.device)
            pair: Any = torch.func.jvp(output, (zero,), (torch.ones_like(zero),))
    finally:
        for hook in hooks:
            hook.remove()
    speed = pair[1].square().sum(-1) / x.detach().square().sum(-1)
    return float((speed * (x.detach() * slope).sum(-1)).sum())
