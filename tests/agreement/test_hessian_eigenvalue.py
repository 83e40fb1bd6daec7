"""The residual of the Hessian and its largest eigenvalue: theory against explicit matrices of small networks."""

import numpy as np
import pytest
import torch

from tests.helpers.twins.residual import SmallStack, coupling, parts_along
from theory import Stack
from theory.mean_field.hessian import dyson, matrices
from theory.mean_field.hessian.largest_eigenvalue import largest_eigenvalues, residual_edge, residual_frobenius

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
    """The mean of |M|_F² and of the largest singular value, over networks."""
    couplings = [coupling(SmallStack(request.param, *SIZES.values(), seed)) for seed in range(NETWORKS)]
    values = np.array([[float(one.square().sum()), float(torch.linalg.matrix_norm(one, 2))] for one in couplings])
    return Stack(placement=request.param, **SIZES), values


def agrees(values, predicted, margin):
    """Within the margin plus 4 standard errors."""
    return abs(values.mean() - predicted) < margin * predicted + 4 * values.std(ddof=1) / len(values) ** 0.5


def test_residual_beside_explicit_matrices(measured):
    """The margins are d = 64's distance from large width."""
    stack, values = measured
    assert agrees(values[:, 0], residual_frobenius(stack) ** 2 / 2, 0.05)
    assert agrees(values[:, 1], residual_edge(stack), 0.05)


def test_planted_errors_are_seen(measured, monkeypatch):
    """Without the backward kernel's recursion, and with gradients as below one more norm."""
    stack, values = measured
    true = dyson._responses

    def one_way(of, moved, turned, curvature):
        below, above = true(of, moved, turned, curvature)
        return below, {name: 0.0 * part for name, part in above.items()}

    monkeypatch.setattr(dyson, "_responses", one_way)
    assert not agrees(values[:, 1], residual_edge(stack), 0.05)
    monkeypatch.undo()
    squared = matrices.output_gradient
    monkeypatch.setattr(matrices, "output_gradient", lambda *given: squared(*given) * 1.5)
    assert not agrees(values[:, 0], residual_frobenius(stack) ** 2 / 2, 0.05)


def test_limits():
    """Few classes leave Gauss-Newton's; the residual's edge rises like √d."""
    few = largest_eigenvalues(Stack(width=64, depth=1, tokens=1, vocab=2), samples=2)
    assert few.ratio == pytest.approx(1.0, abs=0.05)
    edges = [residual_edge(Stack(width=d, depth=1, tokens=4, vocab=10**5)) for d in (64, 256)]
    assert edges[1] / edges[0] == pytest.approx(2.0, rel=0.01)


def test_errors():
    with pytest.raises(ValueError, match="^samples must be at least 2"):
        largest_eigenvalues(Stack(), samples=1)
    with pytest.raises(ValueError, match="^stack must have ffn 'plain'"):
        residual_edge(Stack(activation="gelu"))
