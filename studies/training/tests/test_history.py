"""A map with a history: its products are those of one matrix, and that matrix is Gaussian."""

import pytest
import torch

from simulate.network.random_streams import RandomStreams
from studies.training.drawn import DrawnMap
from studies.training.history import unknown
from studies.training.optimizers import Optimizer
from tests.helpers.implied import implied_matrix

DOUBLE = torch.float64
SGD = Optimizer(momentum=0.7, weight_decay=0.3)
POLAR = Optimizer(name="polar", momentum=0.7, weight_decay=0.3)
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-4}


def normals(*shape, seed, dtype=DOUBLE):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def met(n, d_in, d_out, dtype=DOUBLE):
    """Rows and gradients of five steps, two draws: fresh, repeated, equal, zero, tiny, and of one direction."""
    x, g = ([normals(2, n, d, seed=10 * d + t, dtype=dtype) for t in range(5)] for d in (d_in, d_out))
    x[2] = x[0].clone()
    x[3][:, -1] = 0.0
    x[3][0, 0] = x[3][0, n // 2]
    x[4] = x[4] + 1e6 * x[4][:, :1]
    g[1] = g[1] * 1e-18
    g[3] = g[0] @ normals(d_out, d_out, seed=3, dtype=dtype) if n > 1 else g[0].clone()
    g[4][1] = 0.0
    return list(zip(x, g, strict=True))


def inconsistency(n, d_in, d_out, optimizer, dtype=DOUBLE):
    """How far products of five steps, relatively, are from those of the matrix that they imply."""
    one, found = unknown(RandomStreams([0], 2), dtype, d_in, d_out, 0.4), []
    for x, g in met(n, d_in, d_out, dtype):
        one.forward(x.flip(1))
        found.append((one.forward(x), *one.pullback(g)))
        one.learn(optimizer, 0.1)
    twin, worst = DrawnMap(implied_matrix(one, normals(2, d_in, d_out, seed=1))), 0.0
    for (x, g), mine in zip(met(n, d_in, d_out, dtype), found, strict=True):
        for part, own in zip(mine, (twin.forward(x.double()), *twin.pullback(g.double())), strict=True):
            part, own = part.reshape(2, -1), own.reshape(2, -1)
            worst = max(worst, float(((part - own).abs().amax(1) / (own.abs().amax(1) + 1e-300)).max()))
        twin.learn(optimizer, 0.1)
    return worst


@pytest.mark.parametrize("optimizer", [SGD, POLAR], ids=lambda o: o.name)
@pytest.mark.parametrize(("n", "d_in", "d_out"), [(1, 5, 3), (3, 8, 6), (8, 8, 8), (12, 8, 5), (4, 30, 40)])
def test_products_are_those_of_one_matrix(n, d_in, d_out, optimizer):
    """Five steps with momentum and decay, applied twice before each: given W_0, what came out is what it does."""
    assert inconsistency(n, d_in, d_out, optimizer) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_repeated_batch_is_known_and_costs_nothing(dtype):
    one, x = unknown(RandomStreams([0], 2), dtype, 40, 30, 0.2), normals(2, 6, 40, seed=0, dtype=dtype)
    first = one.forward(x)
    moved = one.forward(x.flip(1) * (1 + 4 * torch.finfo(dtype).eps)).flip(1)
    assert one.inputs.directions.shape[1] == 6
    torch.testing.assert_close(moved, first, rtol=0, atol=float(100 * torch.finfo(dtype).eps * first.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_small_change_of_the_rows_is_a_small_change_of_the_product(dtype):
    """Also where sizes are equal, as of orthogonal rows, and an eigenbasis would turn."""
    rows = torch.eye(6, 40, dtype=dtype)[None] + 1e-3 * normals(1, 6, 40, seed=0, dtype=dtype)
    eps = torch.finfo(dtype).eps

    def moved(relative):
        changed = rows.clone()
        changed[0, 3] *= 1 + relative
        changed[0, 2, 5] += relative
        one, other = (unknown(RandomStreams([1], 1), dtype, 40, 30, 1.0).forward(x) for x in (rows, changed))
        return float((one - other).abs().max() / one.abs().max())

    assert moved(eps) < 50 * eps
    assert 10 * eps < moved(1024 * eps) < 50 * 1024 * eps


def test_orthogonality_is_kept_over_many_steps():
    """In float32, of rows whose new part is a thousandth of them: P Pᵀ is a projection to rounding."""
    one, x = (
        unknown(RandomStreams([0], 1), torch.float32, 400, 300, 0.05),
        normals(1, 4, 400, seed=0, dtype=torch.float32),
    )
    for step in range(20):
        one.forward(x)
        one.pullback(normals(1, 4, 300, seed=step, dtype=torch.float32))
        x = x + 1e-3 * normals(1, 4, 400, seed=100 + step, dtype=torch.float32)
    for side in (one.inputs, one.gradients):
        gram = (side.directions @ side.directions.mT).double()
        assert side.directions.shape[1] == 80
        assert float((gram - torch.eye(80, dtype=DOUBLE)).abs().max()) < 1e-5
    both = one.inputs.directions @ one.gradients.images.mT, one.inputs.images @ one.gradients.directions.mT
    torch.testing.assert_close(*both, rtol=0, atol=1e-6)


def test_a_matrix_of_zeros_learns_from_zero():
    one = unknown(RandomStreams([0], 2), DOUBLE, 5, 4, 0.0)
    x, g = normals(2, 3, 5, seed=0), normals(2, 3, 4, seed=1)
    assert (one.forward(x) == 0).all()
    assert (one.pullback(g)[0] == 0).all()
    one.learn(SGD, 0.5)
    torch.testing.assert_close(one.forward(x), -0.5 * x @ x.mT @ g)


def test_a_draw_that_has_diverged_stays_alone():
    one = unknown(RandomStreams([0], 2), torch.float32, 5, 4, 0.5)
    x = normals(2, 3, 5, seed=0, dtype=torch.float32)
    x[1, 2, 3] = torch.inf
    for _ in range(2):
        product = one.forward(x)
        pulled, norm_sq = one.pullback(product)
        one.learn(POLAR, 0.1)
        assert all(part[0].isfinite().all() and not part[1].isfinite().all() for part in (product, pulled, norm_sq))


@pytest.mark.parametrize("kind", ["with a history", "drawn"])
def test_the_order_of_calls_is_held(kind):
    x = normals(1, 3, 5, seed=0)
    one = (
        unknown(RandomStreams([0], 1), DOUBLE, 5, 5, 0.5)
        if kind == "with a history"
        else DrawnMap(normals(1, 5, 5, seed=1))
    )
    with pytest.raises(RuntimeError, match="^a map must be applied before it is pulled back"):
        one.pullback(x)
    one.forward(x)
    with pytest.raises(RuntimeError, match="^a map must be pulled back before it learns"):
        one.learn(SGD, 0.1)
    one.pullback(x)
    with pytest.raises(RuntimeError, match="^a map must be applied before it is pulled back"):
        one.pullback(x)
    one.learn(SGD, 0.1)
    with pytest.raises(RuntimeError, match="^a map must be pulled back before it learns"):
        one.learn(SGD, 0.1)
