"""Random linear maps and their products, and the engine without a stream beside the dense engine."""

from dataclasses import replace

import numpy as np
import pytest
import sympy as sp
import torch
from scipy import stats

from simulate import Cell, sample
from simulate.network import products
from simulate.network.dense import DenseEngine, largest_eigenvalues
from simulate.network.products import product
from simulate.network.random_streams import RandomStreams
from simulate.runs.sample import sample_block, sample_blocks
from tests.helpers.same_law import differences, numbers
from theory import Stack


def engine(draws: int = 2, seed: int = 0) -> DenseEngine:
    return DenseEngine(RandomStreams([seed], draws), torch.float64, keep=True)


def test_weights_are_normal_with_the_asked_deviation():
    """False alarm 1e-5; at 6e4 entries a deviation of 2% in the scale is missed with less than 1%."""
    weights = engine(draws=6).map("W1", 100, 100, 0.3).weight.flatten()
    assert stats.kstest(weights.numpy() / 0.3, "norm").pvalue > 1e-5
    assert 5e-6 < stats.chi2(weights.numel()).cdf(float((weights / 0.3).square().sum())) < 1 - 5e-6


def test_double_backward_raises():
    x = torch.ones(2, 3, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(engine().apply("W1", x, 5, 1.0).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_scalar_learns_from_both_branches_that_it_multiplies():
    e, x = engine(draws=2), torch.ones(2, 3, 4, dtype=torch.float64, requires_grad=True)
    sum(e.scaled_branch(x, 1, 1.0, learned=True) for _ in range(2)).sum().backward()
    assert e.scalars[0].gradient.tolist() == [2 * 3 * 4] * 2


def test_norms_before_the_backward_pass_raise():
    e = engine()
    e.apply("W1", torch.ones(2, 3, 4, dtype=torch.float64), 5, 1.0)
    with pytest.raises(RuntimeError, match="^W1 has no gradient yet"):
        e.gradients.of("W1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spectrum", [
    [2.0], [3.0] * 9, [1.0] + [0.0] * 9, [1.0, 1.0 - 1e-6, 0.5], [10.0**-k for k in range(30)], [1e-12] * 3,
], ids=["one", "equal", "rank one", "a near pair", "wide", "small"])  # fmt: skip
def test_largest_eigenvalues_whatever_the_others_are(spectrum, dtype):
    values = torch.tensor(spectrum, dtype=torch.float64)
    axes = torch.linalg.qr(torch.randn(5, len(values), len(values), dtype=values.dtype))[0]
    found = largest_eigenvalues((axes * values @ axes.mT).to(dtype))
    expected = values.amax().expand(5)
    torch.testing.assert_close(found.double(), expected, rtol=30 * torch.finfo(dtype).eps, atol=0)


def test_largest_eigenvalues_of_nothing_and_of_what_is_no_number():
    assert (largest_eigenvalues(torch.zeros(2, 3, 3)) == 0).all()
    assert largest_eigenvalues(torch.full((1, 3, 3), torch.nan)).isnan().all()


def written_out(first, second):
    return (first.double()[..., None] * second.double()[:, None]).sum(2)


@pytest.mark.quick
@pytest.mark.parametrize(("a", "b", "c"), [(1, 1, 40), (8, 8, 8), (8, 8, 40), (16, 40, 16), (40, 9, 17), (3, 40, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_whatever_the_layout(a, b, c, dtype):
    """Plain, transposed, expanded, with gaps, written into a given place: to rounding, b sums of numbers of order 1."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, a, b, generator=generator, dtype=dtype)
    second = torch.randn(3, b, c, generator=generator, dtype=dtype)
    gaps = torch.randn(3, 2 * b, 2 * c, generator=generator, dtype=dtype)[:, ::2, ::2]
    tolerance = 50 * torch.finfo(dtype).eps
    for one, other in (
        (first, second),
        (first.mT.contiguous().mT, second.mT.contiguous().mT),
        (first[:, :1].expand(3, a, b), second),
        (first, gaps),
        (first, first.mT),
    ):
        expected = written_out(one, other)
        torch.testing.assert_close(product(one, other).double(), expected, rtol=0, atol=tolerance * b)
        out = torch.full(expected.shape, torch.nan, dtype=dtype)
        assert product(one, other, out=out) is out
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance * b)


def test_which_library_multiplies(monkeypatch):
    """NumPy from eight rows on, where it knows the layout: of others it has no fast product."""
    by_torch = []
    monkeypatch.setattr(products.torch, "bmm", lambda one, other, out: by_torch.append(one.shape[1]) or one @ other)
    rows = torch.ones(2, 16, 64)
    product(rows, rows.mT)
    product(rows[:, :8], rows.mT)
    assert not by_torch
    product(rows[:, :7], rows[:, :7].mT)
    product(rows[:, :1].expand(2, 16, 64), rows.mT)
    product(rows, torch.ones(2, 128, 32)[:, ::2, ::2])
    assert by_torch == [7, 16, 16]


DRAWS = 2000


def test_the_way_up_at_one_token_and_four_coordinates():
    """The joint law of (1, y), (x, y) and |y|² for y ~ N(0, I_4): as b_1, (L b)_2, |b|² + χ²_2, by their transforms."""
    s, t, u, first, second = sp.symbols("s t u x_1 x_2", positive=True)
    # One vector of the frame is that of ones; x has x_1 along it and x_2 across.
    shift = sp.Matrix([s + t * first, t * second, 0, 0])
    explicit = (1 - 2 * u) ** sp.Rational(-4, 2) * sp.exp(shift.dot(shift) / (2 * (1 - 2 * u)))
    along = [(1 - 2 * u) ** sp.Rational(-1, 2) * sp.exp(a**2 / (2 * (1 - 2 * u))) for a in (s + t * first, t * second)]
    assert sp.simplify(explicit - along[0] * along[1] * (1 - 2 * u) ** -1) == 0


@pytest.mark.parametrize("power", [1, 2, 3])
def test_the_way_down_at_one_token_and_four_coordinates(power):
    """The engine's e / √(e² + t²), e ~ N(0, 1) and t² ~ χ²_1, has the moments of a cosine.

    That is a uniform direction of d - n - 1 = 2 dimensions, along the one vector that x + y has beyond the frame of x.
    """
    angle, e, r = sp.symbols("theta e r", positive=True)
    uniform = sp.integrate(sp.cos(angle) ** (2 * power), (angle, 0, 2 * sp.pi)) / (2 * sp.pi)
    share = sp.beta(power + sp.Rational(1, 2), sp.Rational(1, 2)) / sp.beta(sp.Rational(1, 2), sp.Rational(1, 2))
    # e² / (e² + t²) in polar coordinates of (e, t), whose density does not depend on the angle.
    radial = sp.integrate(r * sp.exp(-(r**2) / 2), (r, 0, sp.oo))
    assert sp.simplify(uniform - radial * share.rewrite(sp.gamma)) == 0


LAWS = {
    "narrow": {"width": 14, "tokens": 3, "depth": 3},
    "one token": {"width": 8, "tokens": 1, "placement": "pre"},
    "wide": {"width": 48, "tokens": 4, "placement": "pre"},
    "equal rows": {"width": 32, "tokens": 6},
    "attention": {"tokens": 3, "width": 24, "query_key_scale": 1.5, "heads": 4, "kv_heads": 2, "mask": "causal",
                  "output_projection": "random", "placement": "peri"},
    "gated": {"placement": "pre", "normalization": "rms", "ffn": "gated", "activation": "silu", "sequences": 2,
              "tokens": 2, "width": 24, "loss_on": "last", "norm_epsilon": 0.1},
    "parallel": {"placement": "pre", "layout": "parallel", "width": 32, "tokens": 3, "activation": "gelu",
                 "input_correlation": 0.5, "embedding_norm": "added"},
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_the_law_is_the_dense_engines(name):
    """2000 draws of each, in float64; what is missed is said in same_law."""
    stack, repeat = Stack(**{"depth": 2, "vocab": 6} | LAWS[name]), name == "equal rows"
    dense, other = (numbers(stack, engine, DRAWS, 7, repeat=repeat) for engine in ("dense", "gram"))
    assert differences(dense, other) == []


@pytest.mark.parametrize(("fields", "what"), [
    ({"dropout": 0.1}, "dropout 0"), ({"initialization": "pytorch"}, "initialization and truncation"),
    ({"normalization": "tanh"}, "normalization"), ({"width": 33, "tokens": 8}, "width above 33 for 8 rows"),
    ({"mask": "causal"}, "output_projection 'random'"), ({"positions": "learned"}, "positions"),
])  # fmt: skip
def test_what_acts_on_coordinates_is_refused(fields, what):
    with pytest.raises(ValueError, match=f"^engine 'gram' requires {what}"):
        Cell(Stack(**fields), "gram")


def test_a_block_is_the_same_in_any_batch_and_auto_stays():
    stack = Stack(width=64, depth=3, tokens=4, vocab=8)
    cell = Cell(stack, "gram")
    assert Cell(replace(stack, tokens=8)).engine == "conditioned"
    both = sample_blocks(cell, 0, [0, 1])
    for block in (0, 1):
        for name, values in sample_block(cell, 0, block).items():
            np.testing.assert_array_equal(values, both[block][name], err_msg=name)
    found = sample(stack, draws=3, seed=0, engine="gram")
    assert "head_norm" not in found
    assert found["loss"].dtype == np.float32


@pytest.mark.parametrize(("fields", "loss", "first"), [
    ({}, 3.441448450088501, [1.9273465871810913, 2.533761739730835]),
    ({"placement": "pre", "activation": "gelu"}, 3.4038498401641846, [2.531403064727783, 1.591185212135315]),
])  # fmt: skip
def test_stored_numbers_are_continued(fields, loss, first):
    """Stored runs hold these numbers of the second draw, so that a faster way must give them too."""
    found = sample(Stack(width=64, depth=2, tokens=8, vocab=16, **fields), draws=2, seed=0, engine="gram")
    np.testing.assert_allclose(found["loss"][1], loss, rtol=1e-4)
    np.testing.assert_allclose(found["grad_sq_W1"][1], first, rtol=1e-4)
