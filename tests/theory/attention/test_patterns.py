"""Queries, keys and logits of one head: in law those of projected tokens, for every width of a head, and its limit."""

import math

import numpy as np
import pytest

from theory import Stack, predict
from theory.mean_field.attention import patterns
from theory.mean_field.attention.patterns import sampled_patterns, wishart_root

DRAWS = 20_000


def gaussian_roots(shape, head_width, generator):
    """What heads without end have: queries and keys of fixed products, and normal logits."""
    normals = generator.standard_normal(shape).mT
    roots = [math.sqrt(head_width) * np.broadcast_to(np.eye(size), (*shape[:-2], size, size)) for size in shape[-2:]]
    return roots[0], normals, roots[1]


def products(queries, keys):
    """The numbers that a gradient averages: logits with products of queries and of keys, and with both."""
    head_width = queries.shape[-1]
    logits = queries @ keys.mT / math.sqrt(head_width)
    return logits, queries @ queries.mT / head_width, keys @ keys.mT / head_width


def moments(logits, queries, keys):
    """Of every draw the second and fourth moments of logits, alone and with the products; all of order one."""
    weights = np.exp(-np.square(logits))  # bounded, and of every power of a logit
    found = [logits**2, logits**4, logits[..., :1] * logits[..., 1:], queries * queries, keys * keys, weights]
    found += [(weights * logits)[..., None] * keys[..., None, :, :], weights[..., None] * queries[..., :, None, :]]
    found += [weights[..., None, :] * weights[..., None] * keys[..., None, :, :]]
    return np.concatenate([one.reshape(len(logits), -1) for one in found], axis=1)


def assert_one_law(first, second):
    """Every moment's means within 5 standard errors of their difference: false alarm 6e-7 each, of about 70."""
    error = np.sqrt((first.var(0) + second.var(0)) / len(first))
    worst = (np.abs(first.mean(0) - second.mean(0)) / np.maximum(error, 1e-300)).max()
    assert worst < 5, worst


def compare(monkeypatch, head_width, *, tied):
    """Three tokens that ask and two that are asked, or, tied, the same three."""
    generator = np.random.default_rng(head_width)
    asking = np.array([[1.0, 0.3, -0.2], [0.3, 1.5, 0.1], [-0.2, 0.1, 0.7]])
    asked = asking if tied else np.array([[1.2, 0.4], [0.4, 0.8]])
    roots = [np.linalg.cholesky(kernel) for kernel in (asking, asked)]
    slow = [root @ generator.standard_normal((DRAWS, len(root), head_width)) for root in roots]
    stack = Stack(width=head_width * 2, heads=2, query_key_scale=1.3, query_key="tied" if tied else "untied")
    kernels = [np.broadcast_to(kernel, (DRAWS // 2, *kernel.shape)) for kernel in (asking, asked)]
    monkeypatch.setattr(patterns, "softmax", lambda logits, axis: logits)
    fast = sampled_patterns(stack, *kernels, None, generator, tied=tied)
    flat = [one.reshape(DRAWS, *one.shape[2:]) for one in (fast.weights / 1.3**2, fast.queries, fast.keys)]
    assert_one_law(moments(*products(slow[0], slow[0] if tied else slow[1])), moments(*flat))


@pytest.mark.parametrize("head_width", [1, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_the_law_is_that_of_projected_tokens(monkeypatch, head_width, tied):
    """Of heads narrower and wider than the tokens are many."""
    compare(monkeypatch, head_width, tied=tied)


def test_heads_of_a_group_ask_the_same_keys(monkeypatch):
    """Moments of logits of two heads of two coordinates with common keys, drawn and written out."""
    generator = np.random.default_rng(5)
    asking, asked = (np.array([[1.0, own], [own, 0.8]]) for own in (0.3, -0.4))
    left, right = (np.linalg.cholesky(kernel) for kernel in (asking, asked))
    queries, keys = left @ generator.standard_normal((DRAWS, 2, 2, 2)), right @ generator.standard_normal((DRAWS, 2, 2))
    monkeypatch.setattr(patterns, "softmax", lambda logits, axis: logits)
    stack = Stack(width=4, heads=2, kv_heads=1, query_key_scale=1.0)
    kernels = [np.broadcast_to(kernel, (DRAWS, 2, 2)) for kernel in (asking, asked)]
    fast = sampled_patterns(stack, *kernels, None, generator)
    logits = products(queries.reshape(DRAWS, 4, 2), keys)[0]
    both = fast.weights.reshape(DRAWS, 4, 2)
    assert_one_law(*((one[..., :2, :] * one[..., 2:, :]).reshape(DRAWS, -1) ** 2 for one in (logits, both)))


def test_a_root_is_as_wide_as_its_degrees():
    generator = np.random.default_rng(0)
    assert wishart_root((5, 3), 0, generator).shape == (5, 3, 0)
    root = wishart_root((DRAWS, 3), 2, generator)
    assert root.shape == (DRAWS, 3, 2)
    np.testing.assert_allclose((root @ root.mT).mean(0), 2 * np.eye(3), atol=5 * 2 / math.sqrt(DRAWS))


def test_wide_heads_have_normal_logits(monkeypatch):
    """The same patterns, and so the same numbers; narrow heads have others: W^Q a quarter less at d_k = 1."""
    fields = {"depth": 2, "tokens": 4, "vocab": 16, "query_key_scale": 1.0}
    wide, narrow = (Stack(width=width, heads=64, **fields) for width in (2**52, 64))
    found, less = (predict(stack, patterns=64) for stack in (wide, narrow))
    monkeypatch.setattr(patterns, "_query_and_key_roots", gaussian_roots)
    for name, value in predict(wide, patterns=64).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    ratio = less["grad_sq_WQ"][0] / narrow.width / (found["grad_sq_WQ"][0] / wide.width)
    assert ratio == pytest.approx(0.755, abs=0.05)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_turns_are_the_mean_rotation_of_a_head(share):
    """t_ij t_kl, against the mean of cos((j − i) θ − (l − k) θ) over all coordinates written out.

    Means of 20 000 lattices of three heads, within 5 standard errors, 256 numbers each: false alarm 1.5e-4.
    """
    stack = Stack(width=36, heads=3, tokens=4, query_key_scale=1.0, rotary=share, rotary_base=20.0)
    turns = patterns._turns(stack, (DRAWS, 3), np.random.default_rng(3)).reshape(DRAWS, 3, -1)
    found = np.einsum("shx,shy->sxy", turns, turns) / 3
    rotated_pairs = round(6 * share)
    thetas = [20.0 ** (-pair / rotated_pairs) if pair < rotated_pairs else 0.0 for pair in range(6)]
    lags = np.array([j - i for i in range(4) for j in range(4)])
    expected = sum(np.cos((lags[:, None] - lags) * theta) for theta in thetas) / 6
    error = found.std(0) / math.sqrt(DRAWS)
    assert (np.abs(found.mean(0) - expected) <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("sequences", [1, 2])
def test_one_token_that_is_asked_leaves_queries_and_keys_without_gradient(sequences):
    """Its weight is 1 whatever the logit, so that the gradient is 0, exactly as in samples."""
    stack = Stack(
        width=64, depth=2, tokens=5, source_tokens=1, query_key_scale=2.3, norm_epsilon=0.015, dropout=0.1, heads=32,
        sequences=sequences, placement="deepnorm",
    )  # fmt: skip
    prediction = predict(stack, patterns=64)
    assert not prediction["grad_sq_XQ"].any()
    assert not prediction["grad_sq_XK"].any()
    assert prediction["grad_sq_WQ"].all()
