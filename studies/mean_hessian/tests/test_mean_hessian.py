"""The mean over the output matrix of the Hessian: exactly 0 below it at d = 3, where the rotations are one circle.

What LayerNorm returns at d = 3 lies on a circle about (1, 1, 1). The mean over equally spaced rotations of any matrix
about that axis converges faster than any power, so that no test here is statistical but that of the closed form.
"""

import math

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from simulate.curvature.problems import plain_operations, stack_problem
from studies.hessian.tests.test_curvature import exact
from studies.mean_hessian.claims import mean_hessian_verdicts
from studies.mean_hessian.draws import targets
from studies.mean_hessian.path import output_path, second_derivative
from studies.mean_hessian.theory import mean_hessian_trace, softmax_left
from theory import Stack
from theory.coverage import NoRuleError, gaps

# Forward-mode derivatives warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ANGLES = 48


def rotated(matrix):
    """A (3, V) matrix turned about (1, 1, 1) by equally spaced angles, (angles, 3, V)."""
    axis = torch.full((3,), 3**-0.5, dtype=torch.float64)
    cross = torch.linalg.cross(torch.eye(3, dtype=torch.float64), axis.expand(3, 3))
    angles = torch.arange(ANGLES, dtype=torch.float64)[:, None, None] * (2 * math.pi / ANGLES)
    turns = torch.eye(3, dtype=torch.float64) + angles.sin() * cross + (1 - angles.cos()) * (cross @ cross)
    assert torch.allclose(turns[-1] @ turns[1], torch.eye(3, dtype=torch.float64))
    return turns @ matrix


def along_a_line(fields, seed=0):
    """Mean over rotations of vᵀHv, and of vᵀGv, of a small network along a random v."""
    stack = Stack(**({"width": 3, "depth": 2, "tokens": 3, "vocab": 5} | fields))
    problem = stack_problem(stack, seed=seed)
    ((inputs, labels),) = problem.data
    generator = torch.Generator().manual_seed(2**31 + seed)  # the matrices have the seed itself
    v = {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in problem.model.named_parameters() if name != "Wemb"
    }  # fmt: skip
    target = targets(stack, labels)
    parts = second_derivative(output_path(problem.model, inputs, v), rotated(problem.model.Wemb.detach()), target)
    return stack, float(parts.hessian.mean()), float(parts.gauss_newton.mean()), float(parts.hessian.std())


@pytest.mark.parametrize("fields", [
    {},
    {"placement": "pre", "mask": "causal", "output_scale": 2.0},
    {"placement": "peri", "labels": "zipf", "loss_on": "last", "sequences": 2},
    {"placement": "deepnorm", "activation": "gelu", "label_smoothing": 0.3, "source_tokens": 2},
])  # fmt: skip
def test_the_mean_is_zero(fields):
    stack, mean, part, scatter = along_a_line(fields)
    assert not gaps(stack, "mean_hessian")
    assert part > 1e-3
    assert scatter > 0.3 * part
    assert abs(mean) < 1e-10 * part


@pytest.mark.parametrize("fields", [
    {"placement": "residual"}, {"norm_epsilon": 0.1}, {"placement": "unnormed"}, {"normalization": "none"},
])  # fmt: skip
def test_it_is_not_where_the_norm_is_not_kept(fields):
    stack, mean, part, _ = along_a_line(fields)
    assert gaps(stack, "mean_hessian")
    assert abs(mean) > 1e-3 * part
    with pytest.raises(NoRuleError, match="^stack must have .*(untied embeddings|a final norm without epsilon)"):
        mean_hessian_trace(stack)
    assert gaps(Stack(embeddings="tied"), "mean_hessian")


def test_the_whole_matrix():
    """By autograd alone: the mean of the block below is 0, every entry; the trace is that of the output matrix."""
    problem = stack_problem(Stack(placement="pre", width=3, depth=1, tokens=2, vocab=3, output_scale=0.8), seed=4)
    ((inputs, _),) = problem.data
    matrix, below, total, left = problem.model.Wemb, 0.0, 0.0, 0.0
    size = sum(p.numel() for p in problem.parameters()) - matrix.numel()
    for one in rotated(matrix.detach().clone()):
        matrix.data = one
        hessian = exact(problem)
        below, total = below + hessian[:size, :size] / ANGLES, total + float(hessian.trace()) / ANGLES
        left += float(1 - problem.model(inputs).detach().softmax(-1).square().sum(-1).mean()) / ANGLES
    assert list(dict(problem.model.named_parameters()))[-1] == "Wemb"
    assert hessian[:size, :size].abs().max() > 0.01
    assert below.abs().max() < 1e-12
    assert total == pytest.approx(3 * left)


def test_the_closed_form():
    """The width times 1 − E Σ p² against 20000 softmaxes: 4 standard errors, false alarm 6e-5; another is seen."""
    stack = Stack(width=16, vocab=12, output_scale=1.5)
    p = (1.5 * torch.randn(20_000, 12, generator=torch.Generator().manual_seed(0))).softmax(-1)
    left = 16 * (1 - p.square().sum(-1))
    allowed = 4 * float(left.std()) / len(left) ** 0.5
    assert abs(float(left.mean()) - mean_hessian_trace(stack)) < allowed
    assert abs(float(left.mean()) - 16 * softmax_left(Stack(vocab=12, output_scale=3.0))) > allowed


def test_the_parts_are_the_second_derivative():
    """Against a second derivative of the loss by backward passes, with smoothed labels."""
    problem = stack_problem(Stack(width=6, depth=2, tokens=3, vocab=5, label_smoothing=0.2), seed=1)
    ((inputs, labels),) = problem.data
    names = [name for name, _ in problem.model.named_parameters() if name != "Wemb"]
    generator = torch.Generator().manual_seed(2)
    below = [getattr(problem.model, name) for name in names]
    v = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in below]
    with plain_operations():
        gradient = torch.autograd.grad(problem.loss(problem.model(inputs), labels), below, create_graph=True)
        twice = torch.autograd.grad(sum((g * one).sum() for g, one in zip(gradient, v, strict=True)), below)
    curved = float(sum((g * one).sum() for g, one in zip(twice, v, strict=True)))
    path = output_path(problem.model, inputs, dict(zip(names, v, strict=True)))
    target = F.one_hot(labels, 5).double() * 0.8 + 0.04
    parts = second_derivative(path, problem.model.Wemb.detach()[None], target)
    assert float(parts.hessian) == pytest.approx(curved, rel=1e-9)
    # The radial part is what moves along x itself.
    assert path.x.square().sum(-1) == pytest.approx(torch.full((3,), 6.0).double())
    assert (path.x * path.second).sum(-1) == pytest.approx(-path.first.square().sum(-1))


def test_verdicts():
    """Holds, fails where one setting of two or a trace is far off, and is undecided where errors are wide."""

    def words(hessian, sem, values):
        table = pd.DataFrame({
            "placement": ["post", "pre"], "width": [4, 8], "draws": 100, "hessian": [0.0, hessian], "hessian_sem": sem,
        })  # fmt: skip
        found = mean_hessian_verdicts(table, [(Stack(width=4), values, 2.0)])
        return [(v.verdict, v.agreement) for v in found]

    near = [1.98, 2.02] * 8
    assert words(0.03, 0.02, near) == [("holds", "agrees")] * 2
    assert words(0.09, 0.02, near)[0] == ("fails", "differs")
    assert words(0.09, 0.04, [0.0, 4.0]) == [("undecided", "undecided")] * 2
    assert words(0.03, 0.02, [one + 0.1 for one in near])[1] == ("fails", "differs")
