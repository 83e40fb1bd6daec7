"""The conditioned engine: its algebra, its law beside the dense engine's, and what it refuses."""

import platform
import resource

import numpy as np
import psutil
import pytest
import torch

from simulate import Cell, sample
from simulate.network import allocator, conditioned
from simulate.network.conditioned import RIDGE, ROOT_RIDGE, ConditionedEngine, factor, pulled_back
from simulate.network.random_streams import RandomStreams
from simulate.runs.sample import sample_block
from tests.helpers.same_law import differences, numbers
from theory import Stack, predict

DOUBLE = {"dtype": torch.float64}
SHAPES = [(1, 5, 3), (3, 8, 6), (8, 8, 8), (12, 8, 5)]


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


def gram(rows):
    return rows.double() @ rows.double().mT


@pytest.mark.parametrize(("n", "d_in", "d_out"), SHAPES)
@pytest.mark.parametrize("rank", ["full", "two equal rows", "one row"])
def test_the_construction_is_a_weight_matrix(n, d_in, d_out, rank):
    """Given W̃, what comes out is X W and g Wᵀ of one matrix W' = Qᵀ Z + (I - Qᵀ Q) W̃, to float64 rounding.

    W' has n more input rows, which the extra coordinates of the rows meet. Where the rows are dependent a Gram matrix
    has an eigenvalue of 1e-10 of the others, known to 1e-6 of itself.
    """
    rows = normals(2, n, d_in, seed=1)
    if rank != "full":
        rows[:, : 2 if rank == "two equal rows" else n] = rows[:, :1].clone()
    dependent = n > d_in or (rank != "full" and n > 1)
    gradient, z, tilde = normals(2, n, d_out, seed=2), normals(2, n, d_out, seed=3), normals(2, d_in + n, d_out, seed=4)
    lower, extra_sq = factor(gram(rows), RIDGE[torch.float64])
    augmented = torch.cat([rows, extra_sq.sqrt() * torch.eye(n, **DOUBLE).expand(2, n, n)], 2)
    q = torch.linalg.solve_triangular(lower, augmented, upper=False)
    torch.testing.assert_close(
        q @ q.mT, torch.eye(n, **DOUBLE).expand(2, n, n), rtol=0, atol=1e-5 if dependent else 1e-10
    )
    weight = q.mT @ z + tilde - q.mT @ (q @ tilde)
    torch.testing.assert_close(augmented @ weight, lower @ z, rtol=0, atol=1e-8)
    fresh = gradient @ tilde.mT
    found = pulled_back(rows, gradient, lower, extra_sq, z, fresh[..., :d_in], fresh[..., d_in:])
    torch.testing.assert_close(found, gradient @ weight[:, :d_in].mT, rtol=0, atol=1e-5 if dependent else 1e-10)


def test_factor():
    rows = normals(3, 4, 9)
    rows[1, 2] = rows[1, 0]
    rows[2] = 0.0
    a = gram(rows)
    for ridge in (1e-8, 1e-13):
        lower, extra_sq = factor(a, ridge)
        torch.testing.assert_close(lower @ lower.mT, a + extra_sq * torch.eye(4, **DOUBLE))
        assert extra_sq[0].item() == pytest.approx(ridge * float(a[0].trace()) / 4)
    assert lower[2].abs().max() < 1e-30, "nothing comes of rows that are zero"
    assert torch.isfinite(lower).all()
    assert torch.isnan(factor(-gram(normals(1, 4, 9)), 1e-8)[0]).all(), "what has no factor is seen"


@pytest.mark.parametrize(
    ("n", "d", "rank", "dtype"),
    [(8, 2**20, 4, torch.float32), (8, 2**20, 4, torch.float64), (512, 3072, 1, torch.float64)],
)
def test_roots_of_dependent_gradients_exist(n, d, rank, dtype):
    """A vocabulary of fewer words than tokens, say: the Gram matrix is indefinite by rounding, and has a root still."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(1, n, rank, generator=generator, dtype=dtype) @ torch.randn(
        1, rank, d, generator=generator, dtype=dtype
    )
    a = gram(gradient)
    root = factor(a, ROOT_RIDGE)[0]
    assert float((root @ root.mT - a).norm() / a.norm()) < 1e-9


def test_rows_of_zeros_and_tiny_gradients():
    """Neither overflows where it is inverted: what comes back is finite, and zero where the gradient is."""
    for rows, size in ((torch.zeros(1, 3, 6), 100.0), (torch.ones(1, 3, 6), 1e-25), (torch.ones(1, 3, 6), 0.0)):
        one = ConditionedEngine(RandomStreams([0], 1), torch.float32).map("W", 6, 6, 0.4)
        one.forward(rows)
        back, norm_sq = one.pullback(size * torch.ones(1, 3, 6))
        assert torch.isfinite(back).all()
        assert back.abs().max() <= 100 * size + 1e-30
        assert norm_sq >= 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_change_of_the_rows_is_a_small_change_of_the_product(dtype):
    """Also where rows are equal: an eigenbasis would turn, a Cholesky factor does not.

    A change of the size of rounding may be rounded away; one a thousand times as large must be seen.
    """
    rows = torch.randn(1, 6, 40, generator=torch.Generator().manual_seed(0), dtype=dtype)
    rows[0, 1] = rows[0, 0]
    eps = torch.finfo(dtype).eps

    def moved(relative):
        changed = rows.clone()
        changed[0, 3, 5] *= 1 + relative
        one, other = (
            ConditionedEngine(RandomStreams([1], 1), dtype).map("W1", 40, 30, 1.0).forward(x) for x in (rows, changed)
        )
        return float((one - other).abs().max() / one.abs().max())

    assert moved(eps) < 8 * eps
    assert 10 * eps < moved(1024 * eps) < 8 * 1024 * eps


@pytest.mark.parametrize("n", [2, 8])
def test_equal_rows_stay_equal(n):
    """To √ε: what the extra coordinates of size 1e-4 add, in float32."""
    rows = torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0)).expand(1, n, 64)
    product = ConditionedEngine(RandomStreams([1], 1), torch.float32).map("W", 64, 256, 0.125).forward(rows)
    apart = (product - product[:, :1]).norm(dim=-1) / product.norm(dim=-1)
    assert 1e-5 < apart.max() < 4e-4


# Narrow, so that every order in n/d counts; n below, at and above d; equal rows; deep enough for what builds up (L = 32
# and each case in the other placement are in `make evidence`).
LAWS = [
    (8, 8, 2, False, "pre"), (8, 12, 2, False, "post"), (8, 6, 2, True, "post"),
    (16, 4, 3, False, "pre"),
]  # fmt: skip


@pytest.mark.parametrize(("d", "n", "depth", "repeat", "placement"), LAWS)
def test_the_law_is_the_dense_engines(placement, d, n, depth, repeat):
    """3000 draws of each, in float64; `make evidence` has 20000 to 10^6, and what is missed is said in same_law."""
    stack = Stack(placement=placement, width=d, depth=depth, tokens=n, vocab=6)
    dense, other = (numbers(stack, engine, 3000, 7, repeat=repeat) for engine in ("dense", "conditioned"))
    assert differences(dense, other) == []


@pytest.mark.gpu
def test_graphs_have_the_same_numbers_on_the_gpu(monkeypatch):
    """By the same kernels; and what waits has no place in one, and is called as it is."""
    cell, found = Cell(Stack(width=64, depth=8, tokens=8, vocab=8), "conditioned", "cuda"), []
    for calls in (3, 10**9):
        monkeypatch.setattr(conditioned, "CALLS_BEFORE", calls)
        found.append(sample_block(cell, 0, 0))
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name], err_msg=name)

    def ready(rows):
        return (rows + rows[0],)

    def waiting(rows):
        return (rows + float(rows[0]),)

    graphs = conditioned.Replays(torch.device("cuda"))
    monkeypatch.setattr(conditioned, "CALLS_BEFORE", 2)
    for number in range(4):
        rows = torch.full((3,), float(number), device="cuda")
        for function in (ready, waiting):
            assert graphs.call(function, rows)[0].tolist() == [2.0 * number] * 3
    assert list(graphs._graphs.values()).count(None) == 1
    assert np.isfinite(sample_block(cell, 0, 1)["loss"]).all()


def test_a_second_backward_raises():
    engine = ConditionedEngine(RandomStreams([0], 2), torch.float64)
    y = engine.apply("W1", torch.ones(2, 3, 4, **DOUBLE, requires_grad=True), 5, 1.0).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="^a map must be applied before it is pulled back, and is pulled back once"):
        y.backward()
    bare = engine.map("W1", 4, 5, 1.0)
    with pytest.raises(RuntimeError, match="^a map must be applied before it is pulled back"):
        bare.pullback(torch.ones(2, 3, 5, **DOUBLE))


@pytest.mark.parametrize(("placement", "engine"), [("post", "auto"), ("pre", "gram")])
def test_a_very_wide_network_follows_the_prediction(placement, engine):
    """At d = 16384, 16 draws: every quantity of every layer within 9 standard errors (t: 2e-7 each) or 0.5%."""
    stack = Stack(placement=placement, width=16384, depth=3, tokens=4, vocab=64)
    found, expected = sample(stack, draws=16, seed=3, engine=engine), predict(stack)
    assert found.cell.engine == {"auto": "conditioned"}.get(engine, engine)
    for name, value in expected.items():
        mean, sem = found[name].astype(float).mean(0), found[name].astype(float).std(0, ddof=1) / 4
        assert (np.abs(mean - value) < np.maximum(0.005 * np.abs(value), 9 * sem)).all(), name


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_a_block_uses_the_memory_of_the_last_one():
    """Of some 100 MiB a block takes less than 10 from the system, once two have been sampled."""
    cell, faults = Cell(Stack(width=1024, depth=3, tokens=16, vocab=16)), []
    for block in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        sample_block(cell, 0, block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert cell.engine == "conditioned"
    assert min(faults[2:]) * resource.getpagesize() < 10 * 2**20, faults


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_several_batches_keep_their_memory_and_give_it_back(monkeypatch):
    """192 MiB that a batch frees stay for the next one, where a process may keep 1 MiB, and go back at last."""
    resident = psutil.Process().memory_info
    with monkeypatch.context() as patched:
        patched.setattr(allocator, "_KEPT", 2**20)
        with allocator.all_freed_memory_kept():
            faults = [pages_taken() for _ in range(3)]
            inside = resident().rss
        assert faults[2] * resource.getpagesize() < 20 * 2**20, faults
        assert inside - resident().rss > 100 * 2**20
    with allocator.all_freed_memory_kept():
        pass  # the limit of this process as it was


def pages_taken() -> int:
    """Pages that the system hands out for tensors of 192 MiB, freed at once."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**18) for _ in range(192)]
    del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
