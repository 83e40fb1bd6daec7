"""The first step where theory is given every network's outputs: tied embeddings, transforms, a share of the positions.

As torch differentiates the networks and its optimizers step them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from simulate.curvature.first_step import direction, first_step_problem, gradients, measure_step
from tests.helpers.given_outputs import first_step_given, outputs_of
from theory import Stack

# Forward-mode derivatives warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NETWORKS = 10
PLAIN = {"width": 256, "depth": 1, "tokens": 4, "vocab": 32, "placement": "pre"}
TIED = PLAIN | {"embeddings": "tied", "output_scale": 0.4}
TRANSFORM = {"output_transform": "added", "activation": "gelu"}
# Inputs of a small scale before a norm, whose moves with the output matrix count.
BOTH = TRANSFORM | {"placement": "post", "embedding_norm": "added", "embedding_scale": 0.05, "positions": "learned"}
CASES = [
    (TIED | {"positions": "sinusoidal"}, [("sgd", ("WV", "W1", "W2")), ("adam", ("W1", "W2")), ("sgd", ("Wemb",))]),
    (TIED, [("muon", ("Wemb",)), ("muon", ("WV", "W1", "W2", "Wemb"))]),
    (PLAIN | TRANSFORM, [("sgd", ("WH",)), ("adam", ("WV", "W1", "W2", "WH")), ("adam", ("Wemb",))]),
    (PLAIN | {"mask": "causal", "loss_share": 0.5}, [("sgd", ("WV", "Wemb")), ("adam", ("WV", "W1", "W2"))]),
    (TIED | BOTH, [("sgd", ("Wemb",)), ("adam", ("Wemb",)), ("polar", ("Wemb",)), ("adam", ("W1", "WH", "Wemb"))]),
]


def exact_muon(gradient):
    """The five Newton-Schulz steps of torch.optim.Muon, which torch has in bfloat16, in float64."""
    found = {}
    for name, g in gradient.items():
        x = (g.T if g.shape[0] < g.shape[1] else g) / g.norm()
        for _ in range(5):
            square = x.T @ x
            x = x @ (3.4445 * torch.eye(len(square), dtype=x.dtype) - 4.7750 * square + 2.0315 * square @ square)
        x = x.T if g.shape[0] < g.shape[1] else x
        found[name] = x * max(1.0, g.shape[1] / g.shape[0]) ** 0.5
    return found


def measured(stack, steps):
    """Gain and curvature of networks, (networks, steps, 2), with their softmax and gradients r."""
    values, p, r = [], [], []
    for seed in range(NETWORKS):
        problem = first_step_problem(stack, seed=seed)
        loss, gradient = gradients(problem)
        values.append([])
        for optimizer, matrices in steps:
            part = {name: g for name, g in gradient.items() if name.split("_")[0] in matrices}
            u = exact_muon(part) if optimizer == "muon" else direction(part, optimizer)
            step = measure_step(problem, part, u, loss, ends=False)
            values[-1].append([step.gain, step.curvature])
        outputs = outputs_of(stack, problem)
        p.append(outputs[0][0])
        r.append(outputs[1][0])
    return np.array(values), np.array(p), np.array(r)


@pytest.mark.parametrize(("fields", "steps"), CASES)
def test_steps_of_networks(fields, steps):
    """Within 4 standard errors and 3%, each network with its own logits and labels: one false alarm in 10^3 numbers."""
    stack = Stack(**fields)
    values, p, r = measured(stack, steps)
    for k, (optimizer, matrices) in enumerate(steps):
        predicted = first_step_given(stack, p, r, optimizer, matrices=matrices)
        for j, name in enumerate(("gain", "curvature")):
            deviation = (values[:, k, j] - predicted[name]) / predicted[name].mean()
            allowed = 4 * deviation.std(ddof=1) / len(deviation) ** 0.5 + 0.03
            assert abs(deviation.mean()) < allowed, (optimizer, matrices, name, deviation.mean(), allowed)


@pytest.mark.parametrize("fields", [{}, BOTH])
def test_inputs_are_columns_of_the_output_matrix(fields):
    """A tied network is the one with embeddings apart that is given these."""
    stack = Stack(**TIED | fields)
    tied, apart = (first_step_problem(replace(stack, embeddings=kind), seed=3) for kind in ("tied", "untied"))
    apart.model.load_state_dict(tied.model.state_dict())
    ((inputs, _),) = tied.data
    scale = stack.embedding_scale * stack.width**0.5 / stack.output_scale
    given = {"x": inputs["x"] + scale * tied.model.Wemb[:, : stack.rows].T}
    torch.testing.assert_close(tied.model(inputs), apart.model(given))
    size = stack.embedding_scale * (1 + ("positions" in fields)) ** 0.5
    assert float(given["x"].detach().std()) == pytest.approx(size, rel=0.1)
