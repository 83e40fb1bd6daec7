"""Measure the first optimizer step of a sampled network: its loss decrease and the curvature of the loss along it.

The break-even learning rate is measured too.

The parameters move to θ − η u, where u is the update of torch's own optimizer at learning rate η = 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from simulate.curvature.problems import Problem, plain_operations, stack_problem
from theory.stack import Stack
from theory.stack.optimizers import OPTIMIZERS

Direction = dict[str, Tensor]
"""An update u, by the names of parameters."""

# Of inputs: torch keeps 32 bits of a seed, and the matrices have the small ones.
_INPUTS = 2**30

# Of the search for the break-even rate: how far it goes at once, how near it gets, and where it gives up: after so many
# passes, or above so many times the guess, where a loss that stays below its start crosses it by rounding alone.
_STRIDE, _NEAR, _PASSES, _FARTHEST = 3.0, 0.02, 40, 3.0**9


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured first optimizer step of one network: loss decrease, curvature and change of the logits.

    The update u has the learning rate η = 1; fields have the same names as in `theory`.

    Attributes:
        gain: the product g·u of gradient and update.
        curvature: u'Gu with the Gauss-Newton matrix.
        logit_change_sq: the mean squared change of logits, to first order in η.
        hessian: u'Hu with the Hessian; NaN if it was not requested.
        break_even_rate: the learning rate at which the loss equals its value before the step; NaN if it was not found
            or not requested.
        passes: number of forward passes of the search for the break-even rate.
    """

    gain: float
    curvature: float
    logit_change_sq: float
    hessian: float = float("nan")
    break_even_rate: float = float("nan")
    passes: int = 0

    @property
    def critical_rate(self) -> float:
        """The critical learning rate, at which the quadratic model of the loss returns to its initial value.

        It is 2 g·u/u'Gu, with the Gauss-Newton matrix G.
        """
        return 2 * self.gain / self.curvature

    @property
    def hessian_rate(self) -> float:
        """The critical learning rate from the Hessian; NaN if the loss does not curve upward along the step.

        It is 2 g·u/u'Hu.
        """
        return 2 * self.gain / self.hessian if self.hessian > 0 else float("nan")


def first_step_problem(stack: Stack, *, seed: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Problem:
    """Sample one network with inputs and labels, in the form in which a first optimizer step is measured.

    The result is a `Problem`. Inputs are independent of the matrices.

    With tied embeddings, inputs depend on the output matrix. The network is the same on any device.

    Raises:
        NoRuleError: the Stack uses dropout, or another field without a sampled step.
    """
    shallow = replace(stack, depth=1, lower_share=0.0, lower_placement="post")  # inputs and labels are the same
    return replace(
        stack_problem(stack, seed=seed, dtype=dtype, device=device, subject="sampled_step"),
        data=stack_problem(shallow, seed=_INPUTS + seed, dtype=dtype, device=device, subject="sampled_step").data,
    )


def gradients(problem: Problem) -> tuple[float, Direction]:
    """Return the loss over all data, and its gradient with respect to every parameter, by the parameter's name."""
    named, total = dict(problem.model.named_parameters()), 0.0
    gradient = {name: torch.zeros_like(p) for name, p in named.items()}
    for inputs, labels in problem.data:
        loss = problem.loss(problem.model(inputs), labels)
        total += float(loss.detach())
        for name, part in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
            gradient[name] += part
    return total, gradient


def direction(gradient: Direction, optimizer: str, *, turned: bool = True) -> Direction:
    """Return the first update that a torch optimizer makes at learning rate 1, for a given gradient.

    The update u is that of torch's own optimizer class, by parameter name.

    The update is computed for parameters of value 0, which loses no digits; none of these updates depends on the
    values.

    Args:
        gradient: the gradient of every parameter, by name.
        optimizer: "sgd", "normalized" (SGD with g/|g|), "adam" (eps → 0) or, for matrices, "muon" (no weight decay); or
            "polar", which is not in torch: the exact polar factor instead of the Newton-Schulz steps of "muon".
        turned: whether matrices are (d_in, d_out), as in a Stack, instead of (d_out, d_in), as in torch's layers, which
            the shape factor of "polar" and "muon" requires.

    Raises:
        ValueError: an unknown optimizer.
    """
    optimizers: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "sgd": lambda params: torch.optim.SGD(params, lr=1.0),
        "normalized": lambda params: torch.optim.SGD(params, lr=1.0),
        # Where a gradient is 0 so is its square, and 0/0 is not a step; single precision has this eps.
        "adam": lambda params: torch.optim.Adam(params, lr=1.0, eps=1e-37),
        "muon": lambda params: torch.optim.Muon(params, lr=1.0, weight_decay=0.0),
    }
    if optimizer == "polar":
        shapes = {name: array.shape if turned else array.shape[::-1] for name, array in gradient.items()}
        return {name: polar_factor(array[None], *shapes[name])[0] for name, array in gradient.items()}
    if optimizer not in optimizers:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}.")
    size = 1.0
    if optimizer == "normalized":
        size = float(sum(part.square().sum() for part in gradient.values())) ** 0.5
    turned = turned and optimizer == "muon"
    parameters = dict[str, nn.Parameter]()
    for name, array in gradient.items():
        given = (array.T if turned else array).contiguous() / size
        parameters[name] = nn.Parameter(torch.zeros_like(given))
        parameters[name].grad = given
    optimizers[optimizer](list(parameters.values())).step()
    return {name: -(p.detach().T if turned else p.detach()) for name, p in parameters.items()}


def along(problem: Problem, held: Mapping[str, Tensor], u: Direction, rate: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the logits and labels for all data after a step of a given learning rate.

    The parameters are θ − rate u, and the data come in pieces.
    """
    moved = {name: value - rate * u[name] if name in u else value for name, value in held.items()}
    return [(torch.func.functional_call(problem.model, moved, (inputs,)), labels) for inputs, labels in problem.data]


def measure_step(problem: Problem, gradient: Direction, u: Direction, loss: float, *, ends: bool = True) -> Measured:
    """Measure loss decrease, curvature and break-even learning rate of one step of a model's parameters.

    Args:
        problem: the problem, whose model returns logits and whose loss is convex in them.
        gradient: the gradient of every parameter, by name.
        u: the update at learning rate 1, by parameter name.
        loss: the loss before the step.
        ends: whether to measure the Hessian and the break-even rate too, which take most of the time.
    """
    values = {name: p.detach() for name, p in problem.model.named_parameters()}
    gain = float(sum((gradient[name] * step).sum() for name, step in u.items()))
    zero = next(iter(values.values())).new_zeros(())
    curvature = change = 0.0
    count = sum(labels.numel() for _, labels in problem.data)

    def total(rate: Tensor) -> Tensor:
        return torch.stack([problem.loss(*piece) for piece in along(problem, values, u, rate)]).sum()

    def logits(rate: Tensor) -> list[Tensor]:
        return [output for output, _ in along(problem, values, u, rate)]

    def slope(rate: Tensor) -> Tensor:
        return torch.func.jvp(total, (rate,), (torch.ones_like(rate),))[1]

    with plain_operations():
        pair: Any = torch.func.jvp(logits, (zero,), (torch.ones_like(zero),))
    for z, w, (_, labels) in zip(*pair, problem.data, strict=True):
        curvature += float(along_logits(problem, z, w, labels))
        change += float(w.square().mean(-1).sum()) / count

    if not ends:
        return Measured(gain, curvature, change)
    with plain_operations():
        twice: Any = torch.func.jvp(slope, (zero,), (torch.ones_like(zero),))

    def at(rate: float) -> float:
        with torch.no_grad():
            return float(total(torch.full_like(zero, rate)))

    rate, passes = break_even_rate(at, loss, gain, 2 * gain / curvature)
    return Measured(gain, curvature, change, float(twice[1]), rate, passes)


def along_logits(problem: Problem, logits: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """Return the second derivative of the loss along a given change of the logits.

    It is w'Sw, where S is the second derivative of the loss with respect to the logits and w their change.
    """

    def slope(rate: Tensor) -> Tensor:
        return torch.func.jvp(lambda at: problem.loss(logits + at * w, labels), (rate,), (torch.ones_like(rate),))[1]

    zero = torch.zeros((), dtype=logits.dtype, device=logits.device)
    return torch.func.jvp(slope, (zero,), (torch.ones_like(zero),))[1]


def break_even_rate(at: Callable[[float], float], loss: float, gain: float, guess: float) -> tuple[float, int]:
    """Find the learning rate at which the loss equals its value before the step, to within 2%.

    The number of forward passes is returned too.

    From the guess, the search goes up or down by factors of 3 until the loss has crossed its initial value, and
    continues by false position on the mean slope (ℓ(η) − ℓ(0))/η, which is smooth down to η = 0 and is −g·u there. A
    loss that falls, rises above its initial value and falls again within one such factor may hide an earlier crossing.

    Args:
        at: function of a learning rate that returns the loss.
        loss: the loss at learning rate 0.
        gain: the product g·u of gradient and update, above 0.
        guess: a guess of the learning rate.

    Returns:
        The learning rate (NaN if there is none within 40 passes and up to 3^9 times the guess), and the number of
        passes.
    """
    passes = 0

    def mean_slope(rate: float) -> float:
        nonlocal passes
        passes += 1
        value = at(rate)
        # A loss that overflows is above its start.
        return (value - loss) / rate if value == value and value != float("inf") else gain

    low, below, high, above = 0.0, -gain, guess, mean_slope(guess)
    while above < 0 and high < _FARTHEST * guess:
        low, below = high, above
        high *= _STRIDE
        above = mean_slope(high)
    while low == 0.0 and above >= 0 and passes < _PASSES:
        tried = high * max(1 / _STRIDE, min(0.9, below / (below - above)))
        slope = mean_slope(tried)
        if slope < 0:
            low, below = tried, slope
        else:
            high, above = tried, slope
    side = 0
    while above >= 0 and high > low * (1 + _NEAR) and passes < _PASSES:
        share = below / (below - above)
        tried = low + (high - low) * share
        if min(tried / low, high / tried) < 1 + _NEAR / 2:
            # Just beyond the nearer end, so that the crossing is likely between.
            tried = low * (1 + _NEAR * 0.9) if share < 0.5 else high / (1 + _NEAR * 0.9)
        slope = mean_slope(tried)
        # The end that stays twice has its weight halved (Illinois).
        if slope < 0:
            low, below, above, side = tried, slope, above / 2 if side < 0 else above, -1
        else:
            high, above, below, side = tried, slope, below / 2 if side > 0 else below, 1
    return (float("nan") if low == 0.0 or above < 0 else (low * high) ** 0.5), passes


def sampled_steps(
    stack: Stack, optimizers: tuple[str, ...], *, seed: int, ends: bool = True, device: str = "cpu"
) -> dict[str, Measured]:
    """Sample one network, and measure its first step with each of several optimizers.

    Args:
        stack: the network.
        optimizers: names of optimizers, as in `direction`.
        seed: random seed of the network.
        ends: whether to measure the Hessian and the break-even rate too.
        device: the device of the network.
    """
    problem = first_step_problem(stack, seed=seed, device=device)
    loss, gradient = gradients(problem)
    return {
        optimizer: measure_step(problem, gradient, direction(gradient, optimizer), loss, ends=ends)
        for optimizer in optimizers
    }


# Of a polar factor: singular values below so much of the largest are rounding, squared 1e-10 as in docs/first_step.md.
_NUMERICAL_RANGE = 1e-5


def polar_factor(
    matrix: Float[Tensor, "draws rows columns"], d_in: int, d_out: int
) -> Float[Tensor, "draws rows columns"]:
    """Return the polar factor of gradient matrices, with the scale that Muon gives it.

    It is the polar factor on the numerical range, times √max(1, d_out/d_in).

    For Pᵀ C R with orthonormal rows in P and R, the polar factor is Pᵀ polar(C) R.

    Args:
        matrix: the matrices, or their cores C; one per draw.
        d_in: number of rows of the matrix itself, not of C.
        d_out: number of columns of the matrix itself.
    """
    if not matrix.numel():
        return matrix
    # LAPACK refuses what is not finite; of a draw that has diverged the step is NaN.
    finite = matrix.isfinite().all(2, keepdim=True).all(1, keepdim=True)
    left, values, right = torch.linalg.svd(matrix.where(finite, 0.0), full_matrices=False)
    left = left.where(finite, torch.nan)
    inside = (values > _NUMERICAL_RANGE * values[:, :1]).to(matrix.dtype)
    return (left * inside[:, None]) @ right * max(1.0, d_out / d_in) ** 0.5
