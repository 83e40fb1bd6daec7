"""What of a network at initialization may tell the largest rate at which its training stays stable."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from simulate.curvature.first_step import first_step_problem, gradients, measure_step
from simulate.curvature.problems import Problem, plain_operations
from studies.stable_rate.search import Loss, SquaredLoss
from theory.stack import Stack

# Of the residual of the largest eigenvalue's vector, whose square is the eigenvalue's own.
_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class InitialStatistics:
    """Of one network and its full batch; rates are those of gradient descent.

    Attributes:
        largest_eigenvalue: the largest algebraic eigenvalue of the Hessian.
        gauss_newton_trace: an estimate of the trace of the Gauss-Newton matrix.
        gradient_sq: ‖g‖².
        logit_change_sq: the mean square of what logits move by at rate 1, to first order.
        critical_rate: 2 ‖g‖²/g'Gg.
        hessian_rate: 2 ‖g‖²/g'Hg; NaN where g'Hg is not above 0.
        break_even_rate: the rate at which the loss is back at its start after one step.
    """

    largest_eigenvalue: float
    gauss_newton_trace: float
    gradient_sq: float
    logit_change_sq: float
    critical_rate: float
    hessian_rate: float
    break_even_rate: float

    def rates(self, width: int) -> dict[str, float]:
        """A rate of each statistic, to which the largest stable rate may be proportional; without d, 1/d."""
        return {
            "2/λ": 2 / self.largest_eigenvalue,
            "1/tr G": 1 / self.gauss_newton_trace,
            "1/rms change of logits": self.logit_change_sq**-0.5,
            "1/|g|²": 1 / self.gradient_sq,
            "critical rate": self.critical_rate,
            "Hessian rate": self.hessian_rate,
            "break-even rate": self.break_even_rate,
            "1/d": 1 / width,
        }


def gauss_newton_trace(problem: Problem, *, probes: int, seed: int) -> float:
    """The trace of the Gauss-Newton matrix, from gradients of random labels.

    With independent ε_i of covariance S_i, the loss's second derivative by the logits of position i, the squared norm
    of Σ_i J_i'ε_i/P has the mean tr G/P: for cross-entropy ε_i is p_i less the one-hot vector of a label drawn from
    p_i, for the squared loss standard normal.

    Args:
        problem: of one piece, with logits and a cross-entropy without smoothing or `SquaredLoss`.
        probes: how many draws of all ε are averaged.
        seed: of them.
    """
    ((inputs, labels),) = problem.data
    parameters = problem.parameters()
    logits: Tensor = problem.model(inputs)
    generator = torch.Generator(logits.device).manual_seed(seed)
    total = 0.0
    for _ in range(probes):
        if isinstance(problem.loss, SquaredLoss):
            noise = torch.randn(logits.shape, generator=generator, dtype=logits.dtype, device=logits.device)
        else:
            p = logits.detach().softmax(-1)
            noise = p - torch.nn.functional.one_hot(torch.multinomial(p, 1, generator=generator)[:, 0], p.shape[-1])
        parts = torch.autograd.grad(logits, parameters, noise / len(labels), retain_graph=True)
        total += float(sum(part.square().sum() for part in parts))
    return total / probes * len(labels)


def largest_eigenvalue(problem: Problem, *, seed: int) -> float:
    """The largest algebraic eigenvalue of the Hessian, by Lanczos' method as scipy has it.

    The gradient's graph is kept for all products, which makes each one backward pass; `extreme_eigenvalues` does
    without, for models that it would not fit into memory with.

    Args:
        problem: of the model.
        seed: of the first vector.
    """
    parameters = problem.parameters()
    with plain_operations():
        loss = torch.stack([problem.loss(problem.model(inputs), labels) for inputs, labels in problem.data]).sum()
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters, create_graph=True)])

    def product(vector: Any) -> Any:
        along = gradient @ torch.as_tensor(vector.ravel(), dtype=gradient.dtype).to(gradient.device)
        image = torch.autograd.grad(along, parameters, retain_graph=True)
        return torch.cat([part.flatten() for part in image]).cpu().numpy()

    size = gradient.numel()
    dtype = np.float64 if gradient.dtype == torch.float64 else np.float32
    operator = LinearOperator((size, size), matvec=product, dtype=dtype)
    start = np.random.default_rng(seed).standard_normal(size).astype(dtype)
    return float(eigsh(operator, k=1, which="LA", v0=start, tol=_TOLERANCE, return_eigenvectors=False)[0])


def initial_statistics(
    stack: Stack, *, seed: int, loss: Loss = "cross-entropy", probes: int = 16, dtype: torch.dtype = torch.float32
) -> InitialStatistics:
    """Of the network that `largest_stable_rates` trains.

    Raises:
        ValueError: as `first_step_problem`.
    """
    problem = first_step_problem(stack, seed=seed, dtype=dtype)
    if loss == "squared":
        problem = replace(problem, loss=SquaredLoss(len(problem.data[0][1])))
    value, gradient = gradients(problem)
    step = measure_step(problem, gradient, gradient, value)
    return InitialStatistics(
        largest_eigenvalue=largest_eigenvalue(problem, seed=seed),
        gauss_newton_trace=gauss_newton_trace(problem, probes=probes, seed=seed),
        gradient_sq=step.gain,
        logit_change_sq=step.logit_change_sq,
        critical_rate=step.critical_rate,
        hessian_rate=step.hessian_rate,
        break_even_rate=step.break_even_rate,
    )
