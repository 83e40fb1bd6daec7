"""The three rates of a step that an optimizer took in training, on the step's own mini-batch and dropout."""

import math
from typing import Any

import torch
from torch import Tensor

from simulate.curvature.first_step import break_even_rate
from simulate.curvature.problems import plain_operations
from simulate.modules.factories import seeded
from studies.trainer import Step

STATISTICS = ("gain", "critical rate", "hessian rate", "break-even rate")
"""What `step_rates` gives."""


def outputs_at(step: Step, rate: Any) -> Tensor:
    """The model's outputs at the parameters θ - rate u, with the step's own dropout."""
    parameters = {name: p.detach() - rate * step.direction[name] for name, p in step.made.module.named_parameters()}
    with seeded(step.seed):
        return torch.func.functional_call(step.made.module, parameters, step.made.inputs)


def step_rates(step: Step) -> dict[str, float]:
    """Of a step θ - rate u: the gain g·u, and the rates at which the loss would be back at its start.

    The critical rate 2 g·u/u'Gu is of the quadratic model with the Gauss-Newton matrix, the Hessian rate 2 g·u/u'Hu of
    that with the Hessian, and the break-even rate is where the loss is so in fact. NaN where there is none: u does not
    lead down (g·u <= 0), a curvature is not positive, or a number is not finite. Derivatives are of backward passes:
    a forward-mode pass draws another dropout.
    """
    eta = torch.zeros((), device=next(iter(step.direction.values())).device, requires_grad=True)
    with plain_operations():
        z = outputs_at(step, eta)
        loss = step.made.loss(z)
        (slope,) = torch.autograd.grad(loss, eta, create_graph=True)
        (hessian,) = torch.autograd.grad(slope, eta, retain_graph=True)
        # A product with the Jacobian by two backward passes: what is linear in v is differentiated by it.
        v, outputs = torch.zeros_like(z, requires_grad=True), z.detach().requires_grad_()
        (along,) = torch.autograd.grad((z * v).sum(), eta, create_graph=True)
        (change,) = torch.autograd.grad(along, v)
        (first,) = torch.autograd.grad(step.made.loss(outputs), outputs, create_graph=True)
        (bent,) = torch.autograd.grad((first * change).sum(), outputs)
    gain, curvatures = -slope.item(), ((bent * change).sum().item(), hessian.item())

    def at(rate: float) -> float:
        with torch.no_grad():
            return float(step.made.loss(outputs_at(step, rate)))

    rates = [2 * gain / curved if gain > 0 and curved > 0 else math.nan for curved in curvatures]
    back = math.nan
    if 0 < gain < math.inf:
        back, _ = break_even_rate(at, loss.item(), gain, next((r for r in rates if r > 0), loss.item() / gain))
    return dict(zip(STATISTICS, (gain, *rates, back), strict=True))
