"""The largest learning rate at which full-batch gradient descent stays stable over many steps, by bisection.

Many networks of one stack train side by side, each at a rate of its own; nothing in them mixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from simulate.curvature.first_step import first_step_problem
from simulate.curvature.problems import StackModule
from simulate.network.engines import GivenMatrices
from simulate.network.random_streams import RandomStreams
from simulate.network.record import Record
from simulate.network.transformer import layers, sequence_loss
from theory.coverage import require
from theory.stack import Stack, check_stack

Loss = Literal["cross-entropy", "squared"]
LOSSES: tuple[Loss, ...] = ("cross-entropy", "squared")
Outcome = Literal["trained", "descended", "plateau", "diverged", "overflow"]
STABLE: tuple[Outcome, ...] = ("trained", "descended")

# Of a run's losses: the share at its end that is averaged, and how near the uniform prediction's loss a plateau is.
_END, _PLATEAU = 0.1, 0.95
# A search goes up or down by the first factor, and ends where the rates around the limit have at most the second ratio,
# or after so many runs.
_STRIDE, _NEAR, _MOST = 3.0, 1.1, 30


class SquaredLoss(nn.Module):
    """Half the squared distance of predictions to one-hot labels, summed and divided by how many labels there are."""

    reduction = "sum"

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of predictions, (labels, V)."""
        return (logits - F.one_hot(labels, logits.shape[-1])).square().sum() / (2 * self.labels)


@dataclass(frozen=True, slots=True)
class StableRate:
    """What the search found for one network.

    Attributes:
        rate: the geometric mean of the two below; NaN if one of them was not found.
        stable: the largest rate below the first that failed.
        unstable: the smallest rate that failed.
        failure: what happened there.
        runs: how many trainings it took.
    """

    rate: float
    stable: float
    unstable: float
    failure: str
    runs: int


@dataclass(slots=True)
class Networks:
    """Networks of one stack side by side, with a leading axis of draws everywhere.

    Attributes:
        stack: of all.
        matrices: by role, in the order of the layers; (draws, d_in, d_out) each.
        inputs: (draws, tokens, d).
        labels: (draws, positions).
    """

    stack: Stack
    matrices: dict[str, list[Tensor]]
    inputs: Float[Tensor, "draws tokens width"]
    labels: Int[Tensor, "draws positions"]

    def losses(self, loss: Loss) -> Float[Tensor, " draws"]:
        """Cross-entropy in nats, or half the squared distance to one-hot labels, averaged over positions."""
        output, _ = layers(self.stack, GivenMatrices(RandomStreams([0], 1), self.matrices), Record(), self.inputs)
        logits = output[:, self.stack.counted] @ self.matrices["Wemb"][0]
        if loss == "cross-entropy":
            return sequence_loss(logits, self.labels, self.stack.label_smoothing)
        return squared(logits, self.labels).mean(1)

    def some(self, chosen: Sequence[int]) -> "Networks":
        """Copies of some of the networks, to be trained."""
        matrices = {
            role: [matrix[list(chosen)].requires_grad_() for matrix in group] for role, group in self.matrices.items()
        }
        return Networks(self.stack, matrices, self.inputs[list(chosen)], self.labels[list(chosen)])


def squared(logits: Float[Tensor, "*positions vocab"], labels: Int[Tensor, "*positions"]) -> Tensor:
    """Half the squared distance of logits to one-hot labels."""
    return (logits - torch.nn.functional.one_hot(labels, logits.shape[-1])).square().sum(-1) / 2


def networks(stack: Stack, seeds: Sequence[int], *, dtype: torch.dtype = torch.float32) -> Networks:
    """The networks of `first_step_problem`, one for each seed.

    Raises:
        ValueError: the stack has dropout, tied embeddings or an encoder.
    """
    check_stack(stack)
    require(stack, "hessian")
    if stack.encoder is not None:
        raise ValueError("encoder must be none for training side by side.")
    problems = [first_step_problem(stack, seed=seed, dtype=dtype) for seed in seeds]
    models = [problem.model for problem in problems]
    roles = {
        role: [torch.stack([m.get_parameter(name).detach() for m in models]) for name in names]
        for role, names in cast(StackModule, models[0]).names.items()
    }
    inputs = torch.cat([problem.data[0][0]["x"] for problem in problems])
    return Networks(stack, roles, inputs, torch.stack([problem.data[0][1] for problem in problems]))


def trained_losses(
    some: Networks, rates: Float[np.ndarray, " draws"], *, steps: int, loss: Loss = "cross-entropy"
) -> Float[np.ndarray, "draws steps1"]:
    """Losses of full-batch gradient descent on every matrix, before each step and after the last.

    Args:
        some: the networks, which are trained in place.
        rates: of each.
        steps: how many.
        loss: which.

    Returns:
        `steps + 1` losses of each network; what is not finite stays so.
    """
    parameters = [matrix for group in some.matrices.values() for matrix in group]
    rate = torch.as_tensor(rates, dtype=some.inputs.dtype, device=some.inputs.device)[:, None, None]
    by_step = []
    for step in range(steps + 1):
        losses = some.losses(loss)
        by_step.append(losses.detach())
        if step == steps or not torch.isfinite(losses).any():
            break
        gradients = torch.autograd.grad(losses.sum(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.addcmul_(gradient, rate, value=-1.0)
    kept = torch.stack(by_step, 1).cpu().double().numpy()
    return np.pad(kept, ((0, 0), (0, steps + 1 - kept.shape[1])), constant_values=np.nan)


def uninformed_loss(vocab: int, loss: Loss) -> float:
    """The loss of the uniform prediction: ln V, or half of 1 − 1/V."""
    return float(np.log(vocab)) if loss == "cross-entropy" else (1 - 1 / vocab) / 2


def outcome(losses: Float[np.ndarray, " steps"], uninformed: float) -> Outcome:
    """What became of one training.

    Args:
        losses: from the start on.
        uninformed: the loss of the uniform prediction.

    Returns:
        "overflow" where a loss is not finite; "diverged" where the mean loss of the last tenth of the steps is above
        the start; "descended" where no step raised the loss; "plateau" where that mean is not below 95% of what the
        uniform prediction has; "trained" otherwise, which a network may be that tells no positions apart.
    """
    if not np.isfinite(losses).all():
        return "overflow"
    end = losses[-max(1, round(_END * (len(losses) - 1))) :].mean()
    if end > losses[0]:
        return "diverged"
    if (np.diff(losses) <= 0).all():
        return "descended"
    return "plateau" if end > _PLATEAU * uninformed else "trained"


def _next_rate(low: float, high: float, start: float) -> float:
    """The rate to try next between the largest stable and the smallest failed one; NaN for none yet."""
    if np.isnan(high):
        return start if np.isnan(low) else float(low * _STRIDE)
    return float(high / _STRIDE if np.isnan(low) else (low * high) ** 0.5)


def largest_stable_rates(
    stack: Stack, seeds: Sequence[int], start: float, *, loss: Loss = "cross-entropy", steps: int = 100
) -> list[StableRate]:
    """The largest rate at which full-batch gradient descent is stable for many steps, of each of some networks.

    From the start the rate goes up or down by a stride until one run is stable and the next fails, and then halves
    what is between on a logarithmic scale. Stable is "trained" or "descended" of `outcome`. Outcomes need not be
    monotone in the rate: what is found is a rate at which they change, not the only one.

    Args:
        stack: of the networks, without dropout, tied embeddings or an encoder.
        seeds: one network each, with a batch of its own: the `sequences` of the stack.
        start: the first rate, η in W ← W − η ∂L/∂W, the same for every matrix.
        loss: L, averaged over positions: "cross-entropy" in nats, or "squared", half the squared distance of logits to
            one-hot labels.
        steps: of a run.

    Returns:
        One of each network, in the order of the seeds. Where a search found no stable rate, or none that fails, `rate`
        is NaN.

    Raises:
        ValueError: start is not a finite number above 0, the loss is unknown, or the stack has dropout, tied embeddings
            or an encoder.

    Assumes nothing about the width; everything is float32. Source: studies/stable_rate/README.md.

    >>> stack = Stack(width=16, depth=1, tokens=2, vocab=16)
    >>> (found,) = largest_stable_rates(stack, seeds=[0], start=1.0, steps=20)
    >>> found.stable < found.rate < found.unstable <= 1.1 * found.stable
    True
    """
    if not 0 < start < float("inf"):
        raise ValueError(f"start must be a rate above 0, got {start}.")
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}.")
    all_of_them = networks(stack, seeds)
    uninformed = uninformed_loss(stack.vocab, loss)
    low, high = np.full(len(seeds), np.nan), np.full(len(seeds), np.nan)
    failures, runs = [""] * len(seeds), np.zeros(len(seeds), dtype=int)
    # A search that has not ended: a comparison with NaN is false.
    while left := [k for k in range(len(seeds)) if not high[k] <= _NEAR * low[k] and runs[k] < _MOST]:
        rates = np.array([_next_rate(low[k], high[k], start) for k in left])
        losses = trained_losses(all_of_them.some(left), rates, steps=steps, loss=loss)
        for k, rate, curve in zip(left, rates, losses, strict=True):
            runs[k] += 1
            became = outcome(curve, uninformed)
            if became in STABLE:
                low[k] = rate
            else:
                high[k], failures[k] = rate, became
    return [
        StableRate(float((low[k] * high[k]) ** 0.5), float(low[k]), float(high[k]), failures[k], int(runs[k]))
        for k in range(len(seeds))
    ]
