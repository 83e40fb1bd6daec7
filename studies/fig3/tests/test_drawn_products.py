"""Products of tokens drawn at their width: their law, and gradients of queries and keys, which are made of squares."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from simulate import sample
from studies.fig3 import sentence_pairs
from studies.fig3.drawn_products import DrawnLayout
from studies.fig3.sentence_pairs import SentencePair, _sampled, predict_group
from tests.helpers.same_law import differences
from theory import Stack
from theory.mean_field.kernels import MatrixLayout

COUNT, DRAWS = 3, 20000


def entries(kernels):
    i, j = np.triu_indices(COUNT)
    return kernels[:, i, j]


@pytest.mark.parametrize("width", [2, 3, 7])
def test_products_of_a_sum_have_the_law_of_vectors(width):
    """Beside explicit vectors, in fewer, as many and more coordinates than tokens; false alarm 1e-5 each."""
    draw = np.random.default_rng(width)
    x = draw.standard_normal((COUNT, width))
    mixed = draw.standard_normal((COUNT, COUNT))
    y = mixed @ draw.standard_normal((DRAWS, COUNT, width))
    expected = (x + y) @ (x + y).mT / width
    kernel, added = (np.broadcast_to(k, (DRAWS, COUNT, COUNT)) for k in (x @ x.T / width, mixed @ mixed.T))
    layout = DrawnLayout(COUNT, generator=draw)
    assert not differences(entries(layout.plus(kernel, added, width)), entries(expected))
    # Without the products of x and y, as if each had its own, variances are too small.
    apart = kernel + layout.plus(np.zeros_like(kernel), added, width)
    assert differences(entries(apart), entries(expected))
    assert np.array_equal(MatrixLayout(COUNT).plus(kernel, added, width), kernel + added)


@pytest.mark.parametrize("width", [2, 7])
def test_products_of_features_have_the_law_of_vectors(width):
    """Of images under a Gaussian matrix, and of ReLU of them; false alarm 1e-5 each."""
    draw = np.random.default_rng(width)
    mixed = draw.standard_normal((COUNT, COUNT))
    rows, kernel = mixed @ draw.standard_normal((DRAWS, COUNT, width)), mixed @ mixed.T
    given = np.broadcast_to(kernel, (DRAWS, COUNT, COUNT))
    layout = DrawnLayout(COUNT, generator=draw)
    images = layout.images(given, width)
    assert not differences(entries(images), entries(rows @ rows.mT / width))
    positive = np.maximum(rows, 0.0)
    features = layout.features(0.0 * given, lambda u: np.maximum(u, 0.0), (given,), width)
    assert not differences(entries(features), entries(positive @ positive.mT / width))
    assert differences(entries(images), entries(layout.images(given, width + 1)))
    assert layout.images(given, width, copies=4).shape == (DRAWS, 4, COUNT, COUNT)


def test_queries_and_keys_of_a_narrow_network(monkeypatch):
    """Six sequences with nothing in common, d = 64, L = 2: within 10%, where products' means are up to 27% too low.

    Gradients' own fluctuations are left out, of order L/d. The false alarm is below 1e-4 for all 12 numbers.
    """
    n, source, sequences = 3, 5, 6
    stack = Stack(
        placement="post", width=64, depth=2, tokens=n, source_tokens=source, vocab=1000, heads=4, mask="causal",
        query_key_scale=1.0, output_projection="random",
    )  # fmt: skip
    pairs = [
        SentencePair(np.arange(source) + 9 * k, np.arange(n) + 9 * k, np.arange(n) + 9 * k) for k in range(sequences)
    ]
    ways = []
    monkeypatch.setattr(sentence_pairs, "_sampled", lambda *given: ways.append(_sampled(*given)) or ways[-1])
    drawn = predict_group(stack, pairs, np.random.default_rng(0), patterns=128, finite_width=True)[0]
    (means, _), (all_drawn, _) = ways
    measured = sample(replace(stack, sequences=sequences), draws=512, seed=1)
    low = []
    for name in ("WQ", "WK", "XQ", "XK", "encoder_WQ", "encoder_WK"):
        part, _, role = name.rpartition("_")
        name = f"{part and part + '_'}grad_sq_{role}"
        found = np.asarray(measured[name])
        mean, error = found.mean(0), found.std(0) / len(found) ** 0.5
        assert (abs(mean / drawn[name] - 1) < 0.1 + 4.5 * error / mean).all(), name
        low.append(means[name] / mean)
    assert np.min(low) == pytest.approx(0.73, abs=0.03)
    # Those of other matrices are not taken from draws, which are a tenth too large in the encoder's first layer.
    second = "encoder_grad_sq_W2"
    np.testing.assert_allclose(drawn[second], means[second], rtol=1e-12)
    of_second = np.asarray(measured[second]).mean(0)
    assert (abs(means[second] / of_second - 1) < 0.08).all()
    assert all_drawn[second][0] / of_second[0] == pytest.approx(1.1, abs=0.05)


@pytest.mark.parametrize("fields", [
    {"query_key_scale": 0.0}, {"ffn": "gated", "activation": "silu"}, {"kv_heads": 2}, {"positions": "learned"},
    {"positions": "sinusoidal", "mask": "causal", "dropout": 0.1}, {"output_projection": "identity"},
])  # fmt: skip
def test_draws_of_wide_networks_are_means(fields):
    """Of every kind of branch and input, all gradients; fluctuations are of order 1/√d, and large at d = 32."""
    networks = {"placement": "pre", "depth": 2, "tokens": 3, "source_tokens": 4, "vocab": 1000, "heads": 4,
                "query_key_scale": 0.5, "output_projection": "random"} | fields  # fmt: skip
    pairs = [SentencePair(np.arange(4) + 9 * k, np.arange(3) + 9 * k, np.arange(3) + 9 * k) for k in range(2)]
    off = {}
    for width in (32, 4096):
        means, drawn = (
            _sampled(Stack(width=width, **networks), pairs, np.random.default_rng(0), 4, 0.1, layout)[0]
            for layout in (MatrixLayout, partial(DrawnLayout, generator=np.random.default_rng(1)))
        )
        off[width] = max(np.abs(drawn[name] / means[name] - 1).max() for name in means if "grad_sq_" in name)
    assert off[4096] < 0.1 < off[32]


def test_a_branch_that_adds_nothing():
    pairs = [SentencePair(np.arange(3), np.arange(4) + k, np.arange(4)) for k in range(4)]
    stack = Stack(placement="rezero", width=8, depth=1, tokens=4, vocab=20, query_key_scale=1.0)
    found = predict_group(stack, pairs, np.random.default_rng(0), patterns=2, finite_width=True)[0]
    assert found["grad_sq_WQ"] == 0.0
