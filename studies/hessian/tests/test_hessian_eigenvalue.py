"""The residual of the Hessian and its largest eigenvalue: theory against explicit matrices of small networks."""

import numpy as np
import pytest
import torch

from simulate.curvature.problems import stack_problem
from simulate.runs.sample import one_thread
from studies.hessian import dyson, dyson_matrices as matrices, largest_eigenvalue as prediction
from studies.hessian.largest_eigenvalue import largest_eigenvalues
from studies.hessian.operators import extreme_eigenvalues
from studies.stable_rate.initial_statistics import largest_eigenvalue as largest
from tests.helpers.twins.residual import SmallStack, coupling, parts_along
from theory import Stack


def residual_edge(stack):
    """The largest eigenvalue of the residual's spectrum for V much larger than d, like the root of d/n in the width."""
    with one_thread():
        return dyson.edge(matrices.matrices_of(stack), None)


SIZES = {"width": 64, "depth": 1, "tokens": 3, "vocab": 1024}
NETWORKS = 6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forward-mode derivatives, inside torch
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_the_residual_is_pairs_of_matrices_and_what_norms_add(placement):
    """Exactly, at any width: nothing else has a second derivative."""
    stack = SmallStack(placement, 6, 2, 3, 7, seed=1)
    direction = [torch.randn_like(one) for one in stack.matrices]
    residual, pairs, norms = parts_along(stack, direction)
    assert residual == pytest.approx(pairs + norms, rel=1e-9)
    assert min(abs(pairs), abs(norms)) > 1e-3


@pytest.fixture(scope="module", params=["post", "pre"])
def measured(request):
    """The largest singular values of the residual, over networks."""
    couplings = [coupling(SmallStack(request.param, *SIZES.values(), seed)) for seed in range(NETWORKS)]
    values = np.array([float(torch.linalg.matrix_norm(one, 2)) for one in couplings])
    return Stack(placement=request.param, **SIZES), values


def agrees(values, predicted, margin):
    """Within the margin plus 4 standard errors."""
    return abs(values.mean() - predicted) < margin * predicted + 4 * values.std(ddof=1) / len(values) ** 0.5


def test_residual_beside_explicit_matrices(measured):
    """The margins are d = 64's distance from large width."""
    stack, values = measured
    assert agrees(values, residual_edge(stack), 0.05)


def test_limits():
    """Few classes leave Gauss-Newton's; the residual's edge rises like √d."""
    few = largest_eigenvalues(Stack(width=64, depth=1, tokens=1, vocab=2), samples=2)
    assert few.ratio == pytest.approx(1.0, abs=0.05)
    edges = [residual_edge(Stack(width=d, depth=1, tokens=4, vocab=10**5)) for d in (64, 256)]
    assert edges[1] / edges[0] == pytest.approx(2.0, rel=0.01)


@pytest.fixture(scope="module")
def exact():
    """λ_max of Hessian and Gauss-Newton matrix of Post-LN networks, (networks, 2)."""
    stack = Stack(width=48, depth=1, tokens=2, vocab=512)
    problems = [stack_problem(stack, seed=seed, dtype=torch.float32) for seed in range(NETWORKS)]
    return stack, np.array([
        [largest(problem, seed=0), extreme_eigenvalues(problem, "gauss-newton", seed=0, tolerance=1e-3)[1]]
        for problem in problems
    ])  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_largest_eigenvalues_beside_exact_ones(exact):
    """Both by themselves, which a ratio would hide; the margins are d = 48's distance from large width."""
    stack, values = exact
    theory = largest_eigenvalues(stack, samples=2)
    assert agrees(values[:, 0], theory.hessian, 0.15)
    assert agrees(values, theory.gauss_newton, 0.15)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9, 0.999, 1.0 - 1e-9])
def test_how_many_tokens_pass_a_relu(correlation):
    """Two signs differ with probability arccos(ρ)/π, and of four the law has the same pairs; deep stacks align them."""
    for n in (2, 4):
        law, count = matrices._active_tokens(correlation, n), np.arange(n + 1)
        assert law.sum() == pytest.approx(1.0, abs=1e-12)
        differ = float((law * count * (n - count)).sum()) / (n * (n - 1) / 2)
        assert differ == pytest.approx(np.arccos(correlation) / np.pi, rel=1e-6, abs=1e-12)


def test_the_two_ways_of_sampled_outputs(monkeypatch):
    """With many classes to a coordinate the output matrix's own block, which one way leaves out, is of order d/V."""
    stack = Stack(width=8, depth=1, tokens=3, vocab=360)
    with_block = largest_eigenvalues(stack, samples=2)
    monkeypatch.setattr(prediction, "_MOST_ROWS", 0)
    without = largest_eigenvalues(stack, samples=2)
    for name in ("hessian", "gauss_newton"):
        assert getattr(without, name) == pytest.approx(getattr(with_block, name), rel=0.03)
        assert getattr(without, name) < getattr(with_block, name)


def test_errors():
    with pytest.raises(ValueError, match="^stack must have ffn 'plain' .* layers alike that add something"):
        largest_eigenvalues(Stack(placement="pre", branch_scale=0.0))
    with pytest.raises(ValueError, match="^samples must be at least 2"):
        largest_eigenvalues(Stack(), samples=1)
    with pytest.raises(ValueError, match="^stack must have ffn 'plain'"):
        largest_eigenvalues(Stack(activation="gelu"))
    with pytest.raises(ValueError, match="input_correlation"):
        largest_eigenvalues(Stack(input_correlation=1.0))
