"""The predicted first step of networks whose outputs are given, beside the same sampled networks."""

from collections.abc import Collection

import numpy as np
import torch

from simulate.curvature.first_step import direction, first_step_problem, gradients, measure_step
from simulate.curvature.problems import Problem
from theory.coverage import holds_words
from theory.first_step import prediction
from theory.first_step.outputs import Outputs
from theory.first_step.tangent import TwoPassSolution
from theory.first_step.tied_networks import tied_statistics
from theory.mean_field.inputs import loss_positions
from theory.mean_field.kernels import Array
from theory.stack import Stack
from theory.stack.optimizers import Optimizer

NUMBERS = {"gain": "gain", "curvature": "curvature", "change": "logit_change_sq"}
"""What theory calls them given outputs, and otherwise."""


def first_step_given(
    stack: Stack, p: Array, r: Array, optimizer: Optimizer = "sgd", *, matrices: Collection[str] | None = None,
    seed: int = 0, windows: np.ndarray | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Predict the first step of networks whose outputs are known, without the sampling noise of logits and labels.

    Random attention weights are sampled, separately for each network.

    Args:
        stack: the network.
        p: softmax at the positions that count, (networks, P, V).
        r: gradients of the loss at the logits of all positions, (networks, N, V); 0 where they do not count, which
            determines the positions if they are random. With tied embeddings the first N classes are the positions'
            words.
        optimizer: name of the optimizer.
        matrices: roles of the matrices that are stepped.
        seed: random seed of the first network's attention samples; the following networks have the following seeds.
        windows: token ids of one batch, which all networks are given.

    Returns:
        "gain", "curvature" and "change" (of a logit, squared), each (networks,).

    Raises:
        ValueError: p has another number of positions than the loss.
    """
    chosen, terms = prediction.check(stack, optimizer, matrices), list[dict[str, Array]]()
    tied, (inputs,) = holds_words(stack), prediction._batches(stack, windows)
    fixed = None if stack.query_key_scale or tied else TwoPassSolution.of(stack, inputs=inputs)
    for k, (probabilities, gradient) in enumerate(zip(p, r, strict=True)):
        counted = loss_positions(stack) > 0 if stack.loss_share == 1.0 else (gradient != 0).any(-1)
        if counted.sum() != len(probabilities):
            raise ValueError(f"p must have the {counted.sum()} positions of the loss, got {len(probabilities)}.")
        outputs = Outputs(probabilities[None], gradient[None], counted)
        if tied:
            terms.append(tied_statistics(TwoPassSolution.of(stack, seed + k), optimizer, chosen, outputs)[0])
            continue
        solution = fixed or TwoPassSolution.of(stack, seed + k, inputs=inputs)
        terms.append(prediction._statistics(outputs, prediction._take_step(solution, optimizer, chosen, outputs, None)))
    return {name: np.concatenate([term[name] for term in terms]) for name in ("gain", "curvature", "change")}


def outputs_of(stack: Stack, problem: Problem) -> tuple[Array, Array]:
    """Softmax of the positions that count, (1, P, V), and gradients at the logits of all, (1, N, V)."""
    ((inputs, labels),) = problem.data
    counted = np.asarray(inputs.get("places", np.flatnonzero(loss_positions(stack))))
    p, r = torch.softmax(problem.model(inputs).detach(), -1).numpy(), np.zeros((1, stack.rows, stack.vocab))
    target = np.full_like(p, stack.label_smoothing / stack.vocab)
    target[np.arange(len(p)), labels.numpy()] += 1.0 - stack.label_smoothing
    r[0, counted] = (p - target) / len(p)
    return p[None], r


def exact_muon(gradient: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The five Newton-Schulz steps of torch.optim.Muon, which torch has in bfloat16, in the gradient's precision."""
    found = {}
    for name, g in gradient.items():
        x = (g.T if g.shape[0] < g.shape[1] else g) / g.norm()
        for _ in range(5):
            square = x.T @ x
            x = x @ (3.4445 * torch.eye(len(square), dtype=x.dtype) - 4.7750 * square + 2.0315 * square @ square)
        x = x.T if g.shape[0] < g.shape[1] else x
        found[name] = x * max(1.0, g.shape[1] / g.shape[0]) ** 0.5
    return found


def step_pairs(stack: Stack, optimizers: Collection[Optimizer], seed: int) -> dict[str, dict[str, tuple[float, float]]]:
    """One network's numbers by optimizer: measured, and theory's given its outputs."""
    torch.set_num_threads(1)
    problem = first_step_problem(stack, seed=seed)
    loss, gradient = gradients(problem)
    p, r = outputs_of(stack, problem)
    found = {}
    for optimizer in optimizers:
        step = measure_step(problem, gradient, direction(gradient, optimizer), loss, ends=False)
        theory = first_step_given(stack, p, r, optimizer, seed=seed)
        found[optimizer] = {name: (getattr(step, NUMBERS[name]), float(theory[name][0])) for name in NUMBERS}
    return found
