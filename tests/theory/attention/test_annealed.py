"""The closed form of random queries and keys: its moments against samples, where it is exact, and how far off else."""

import math

import numpy as np
import pytest
from scipy.special import softmax

from theory import Stack, predict
from theory.mean_field.attention.annealed import annealed_attention, softmax_moments
from theory.mean_field.attention.sampled import random_attention
from theory.mean_field.kernels import MatrixLayout, Pair, PairLayout


@pytest.mark.parametrize(("n", "variance", "correlation"), [(4, 1.0, 0.3), (16, 4.0, -0.05), (8, 16.0, 0.99)])
def test_moments(n, variance, correlation):
    """Price's theorem: slopes of the overlap are moments of four weights. 5 standard errors, of 200000 rows."""
    generator = np.random.default_rng(0)
    shared = generator.standard_normal((200_000, n))
    rows = [
        softmax(
            math.sqrt(variance)
            * (sign * math.sqrt(abs(correlation)) * shared
               + math.sqrt(1 - abs(correlation)) * generator.standard_normal(shared.shape)),
            axis=1,
        )
        for sign in (1.0, math.copysign(1.0, correlation))
    ]  # fmt: skip
    slope = [
        (a * b * (1 - a - b)).sum(1) + (a * b).sum(1) ** 2 for a, b in ((rows[0], rows[0]), (rows[0], rows[1]))
    ]  # fmt: skip
    sampled = [(rows[0] ** 2).sum(1), (rows[0] * rows[1]).sum(1), *slope]
    for found, values in zip(softmax_moments(variance, correlation, n), sampled, strict=True):
        assert abs(found - values.mean()) < 5 * values.std() / math.sqrt(len(values))
        assert values.std() / math.sqrt(len(values)) < 0.005 * found


def test_small_logits_meet_the_linear_softmax():
    below, above = softmax_moments(0.99e-3, 0.4, 6), softmax_moments(1.01e-3, 0.4, 6)
    np.testing.assert_allclose(below, above, rtol=1e-3)


def worst(stack, annealed, sampled):
    """The largest relative deviation, and its error."""
    pairs = [
        (np.atleast_1d(np.abs(annealed[name] / value - 1)), np.atleast_1d(sampled.errors[name] / np.abs(value)))
        for name, value in sampled.items()
    ]
    return max((float(deviation.max()), float(error[deviation.argmax()])) for deviation, error in pairs)


def test_one_attention_layer_is_exact():
    """Forward, and backward for a given gradient, against the mean over 40000 patterns, to 4.5 errors of it."""
    stack = Stack(placement="pre", tokens=5, query_key_scale=1.2, heads=2, output_projection="random")
    of_pairs, of_arrays = annealed_attention(stack), random_attention(stack, None, np.random.default_rng(0))
    same = np.eye(5, dtype=bool)
    pairs = Pair(1.3, 0.4), Pair(0.7, -0.1)
    kernel, gradient = (np.where(same, pair.diagonal, pair.off) for pair in pairs)
    out, pullback, recorded = of_pairs(PairLayout(5), pairs[0])
    outs, pullbacks, all_recorded = of_arrays(MatrixLayout(5), np.broadcast_to(kernel, (20_000, 5, 5)))
    below, energies = pullback(pairs[1], None)
    belows, all_energies = pullbacks(gradient, None)

    def meet(value, samples):
        samples = samples.reshape(len(samples), -1).mean(1)
        assert abs(value - samples.mean()) < 4.5 * samples.std() / math.sqrt(len(samples)) + 1e-9

    for pair, arrays in ((out, outs), (below, belows)):
        meet(pair.diagonal, arrays[:, same])
        meet(pair.off, arrays[:, ~same])
    assert set(energies) == set(all_energies) == {"WQ", "WK", "WV", "WO"}
    for name, value in energies.items():
        meet(value, all_energies[name])
    for name, value in recorded.items():
        meet(value, all_recorded[name])


@pytest.mark.parametrize(("scale", "allowed"), [(0.5, 0.005), (1.0, 0.03), (2.0, 0.22)])
def test_the_error_is_the_one_stated(scale, allowed):
    """Of every quantity, over L = 6 and one head; the last is seen to be needed."""
    stack = Stack(width=1024, depth=6, tokens=4, vocab=64, query_key_scale=scale)
    deviation, error = worst(stack, predict(stack, annealed=True), predict(stack, patterns=8192))
    assert deviation < allowed
    if scale == 2.0:
        assert deviation - 4 * error > 0.1


def test_many_heads_are_annealed():
    """What is left falls like 1/heads, of heads so wide that their logits are Gaussian, as the closed form has them."""
    left = []
    for heads in (1, 4, 16):
        stack = Stack(width=2**20, depth=3, tokens=4, vocab=64, query_key_scale=1.5, heads=heads)
        left.append(worst(stack, predict(stack, annealed=True), predict(stack, patterns=32768 // heads))[0])
    assert left[0] > 2.5 * left[1] > 5 * left[2]


def test_no_queries_are_its_limit():
    """And one token attends to itself."""
    plain, small = predict(Stack(depth=3)), predict(Stack(depth=3, query_key_scale=0.02), annealed=True)
    for name, value in plain.items():
        np.testing.assert_allclose(small[name], value, rtol=1e-3, err_msg=name)
    one = predict(Stack(tokens=1, query_key_scale=2.0), annealed=True)
    np.testing.assert_allclose(one["grad_sq_WQ"], 0.0, atol=1e-12)
    np.testing.assert_allclose(one["attention_squares"], 1.0)


def test_long_sequences_condense():
    """Logits of size β √(ln n): beyond β = √2 a few weights are most of a row, E Σ A² → 1 − √2/β (random energies)."""
    beta = 3.0
    squares = []
    for n in (2**10, 2**20):
        squares.append(softmax_moments(beta**2 * math.log(n), 0.0, n)[0])
        low = softmax_moments(math.log(n) / 2, 0.0, n)[0]
    limit = 1 - math.sqrt(2) / beta
    assert abs(squares[1] - limit) < abs(squares[0] - limit) < 0.1
    assert low < 0.01


@pytest.mark.parametrize("fields", [
    {}, {"query_key_scale": 1.0, "mask": "causal"}, {"query_key_scale": 1.0, "attention_scale": "linear"},
    {"query_key_scale": 1.0, "query_key": "tied"}, {"query_key_scale": 1.0, "attention_dropout": 0.1},
])  # fmt: skip
def test_what_has_no_closed_form_is_refused(fields):
    with pytest.raises(ValueError, match="^stack must have query_key_scale > 0 with untied matrices"):
        predict(Stack(**fields), annealed=True)


def test_narrow_heads_are_refused():
    """Their logits are not Gaussian; by the law of a head's width W^Q is 2% less at the least that is taken."""
    with pytest.raises(
        ValueError, match="^stack must have heads of at least 16 coordinates each .* for a prediction in closed form"
    ):
        predict(Stack(width=512, heads=64, query_key_scale=1.0), annealed=True)
    stack = Stack(width=512, heads=32, depth=1, tokens=4, vocab=16, query_key_scale=1.0)
    found, exact = predict(stack, annealed=True), predict(stack, patterns=512)
    assert exact["grad_sq_WQ"][0] / found["grad_sq_WQ"][0] == pytest.approx(0.975, abs=0.01)
