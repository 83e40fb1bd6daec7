"""The engine without a stream: its derivation in one layer, its law beside the dense engine's, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import sympy as sp
import torch

from simulate import Cell, sample
from simulate.network.gram import GramEngine, rebased
from simulate.network.random_streams import RandomStreams
from simulate.runs.sample import sample_block, sample_blocks
from tests.helpers.same_law import differences, numbers
from theory import Stack

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


def explicit_gradients(total, frame, gradient, width):
    """The same gradients with a stream that is drawn: uniform beyond (1, total), in d coordinates."""
    draws, n, used = frame.shape[0], gradient.shape[1], total.shape[2]
    rows = torch.zeros(draws, n + 1, width, dtype=total.dtype)
    rows[:, 0, 0], rows[:, 1:, :used] = 1.0, total
    along = torch.linalg.solve_triangular(frame, rows, upper=False)
    beyond = torch.randn(draws, n, width, dtype=total.dtype, generator=torch.Generator().manual_seed(1))
    beyond -= beyond @ along.mT @ along
    beyond = torch.linalg.solve_triangular(torch.linalg.cholesky(beyond @ beyond.mT), beyond, upper=False)
    return gradient[..., : n + 1] @ along + gradient[..., n + 1 : 2 * n + 1] @ beyond


def test_gradients_in_the_frame_below_have_the_moments_of_drawn_ones():
    """At n = 2, d = 12: first to fourth moments and products of all coordinates that rows have met; z below 5."""
    stack, draws = Stack(width=12, depth=1, tokens=2, vocab=3), 100_000
    engine = GramEngine(RandomStreams([0], draws), torch.float64, stack)
    engine.next_frame(3)
    engine.frame.used = 5
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(1, 2, 9, dtype=torch.float64)
    total[..., :5] = torch.randn(1, 2, 5, generator=generator, dtype=torch.float64)
    total = total.repeat(draws, 1, 1).requires_grad_()
    engine._columns = iter([9])
    after = rebased(total, engine)
    gradient = torch.zeros_like(after)
    gradient[..., :5] = torch.randn(1, 2, 5, generator=generator, dtype=torch.float64)
    (found,) = torch.autograd.grad(after, total, gradient)
    met = total.detach()[..., :5]
    rows = torch.cat([torch.eye(5, dtype=torch.float64)[:1].expand(draws, 1, 5), met], 1)
    expected = explicit_gradients(met, torch.linalg.cholesky(rows @ rows.mT), gradient, 12)
    torch.testing.assert_close(found @ found.mT, expected @ expected.mT)
    ours, theirs = (each[..., :5].flatten(1).numpy() for each in (found, expected))
    for power in (1, 2, 3, 4):
        products = [((x[:, :, None] * x[:, None]).reshape(draws, -1) ** 2 for x in (ours, theirs))]
        for a, b in [(ours**power, theirs**power), *products * (power == 2)]:
            z = (a.mean(0) - b.mean(0)) / np.sqrt((a.var(0) + b.var(0)) / draws + 1e-12)
            assert np.abs(z).max() < 5, power


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
