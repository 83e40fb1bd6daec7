"""The first step of networks with tied embeddings, as torch differentiates them, against theory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from simulate.curvature.first_step import direction, first_step_problem, gradients, measure_step
from theory import Stack
from theory.first_step.prediction import first_step_given


class Tied(nn.Module):
    """A StackModule whose inputs are the first columns of its output matrix."""

    def __init__(self, untied, scale, words):
        super().__init__()
        self.untied, self.scale, self.words = untied, scale, words

    def forward(self, inputs):
        del inputs
        return self.untied({"x": self.scale * self.untied.Wemb[:, : self.words].T[None]})


STEPS = [("sgd", ("WV", "W1", "W2")), ("adam", ("W1", "W2")), ("sgd", ("Wemb",)), ("polar", ("WV", "W1", "W2", "Wemb"))]


def measured(stack, draws):
    """Gain and curvature of networks, (draws, steps, 2), with their softmax and gradients r."""
    values, p, r = [], [], []
    for seed in range(draws):
        problem = first_step_problem(replace(stack, embeddings="untied"), seed=seed)
        scale = stack.embedding_scale * stack.width**0.5 / stack.output_scale
        problem = replace(problem, model=Tied(problem.model, scale, stack.rows))
        loss, gradient = gradients(problem)
        values.append([])
        for optimizer, matrices in STEPS:
            stepped = {f"untied.{role}" + "_1" * (role != "Wemb") for role in matrices}
            part = {name: gradient[name] for name in stepped}
            step = measure_step(problem, part, direction(part, optimizer), loss, ends=False)
            values[-1].append([step.gain, step.curvature])
        ((inputs, labels),) = problem.data
        with torch.no_grad():
            p.append(torch.softmax(problem.model(inputs), -1).numpy())
        r.append((p[-1] - np.eye(stack.vocab)[labels]) / stack.rows)
    return np.array(values), np.array(p), np.array(r)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of forward-mode derivatives
def test_steps_of_networks():
    """Within 4 standard errors and 3%, each network with its own logits and labels in theory."""
    stack = Stack(width=256, depth=1, tokens=4, vocab=32, placement="pre", embeddings="tied", output_scale=0.4)
    values, p, r = measured(stack, 10)
    for k, (optimizer, matrices) in enumerate(STEPS):
        predicted = first_step_given(stack, p, r, optimizer, matrices=matrices)
        for j, name in enumerate(("gain", "curvature")):
            deviation = (values[:, k, j] - predicted[name]) / predicted[name].mean()
            allowed = 4 * deviation.std(ddof=1) / len(deviation) ** 0.5 + 0.03
            assert abs(deviation.mean()) < allowed, (optimizer, matrices, name)
