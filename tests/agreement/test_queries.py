"""Random queries and keys: the network against a slow twin, theory against samples, limits, and the overlaps."""

import math
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from checks.theory_and_samples import comparison
from simulate import sample
from tests.helpers.agreement import off
from tests.helpers.twins.relaxed import deviation
from theory import Prediction, Stack, predict
from theory.mean_field import cost, prediction
from theory.mean_field.attention import sampled

SMALL = Stack(width=12, depth=2, tokens=4, vocab=5, query_key_scale=1.3)
CASES = [
    {"heads": 3},
    {"query_key_norm": "head", "heads": 3, "norm_epsilon": 0.1},
    {"query_key_norm": "all", "heads": 2, "rotary": 0.7, "rotary_base": 50.0, "mask": "causal"},
    {"rotary": 1.0, "sequences": 2, "tokens": 3},
    {"heads": 4, "kv_heads": 2, "logit_softcap": 0.7, "query_key_norm": "all"},
    {"heads": 5, "head_width": 3, "output_projection": "random"},
    {"heads": 4, "kv_heads": 2},
    {"mask": "causal", "output_projection": "random"},
    {"query_key": "tied", "attention_scale": "linear", "heads": 2},
    {"sequences": 2, "tokens": 2, "attention_scale": "linear"},
    {"heads": 3, "query_key_norm": "head", "logit_factor": 1.7, "logit_softcap": 2.0},
    {"heads": 3, "query_key_norm": "head", "kv_heads": 1, "rotary": 1.0, "window": 2, "mask": "causal", "tokens": 5},
]


@pytest.mark.parametrize(("case", "placement"), list(zip(CASES, cycle(["post", "pre"]))), ids=str)
def test_the_network_is_the_slow_one(case, placement):
    assert deviation(replace(SMALL, placement=placement, **case)) < 1e-9


THEORY = [
    {"query_key_scale": 0.5, "depth": 4, "tokens": 8},
    {"query_key_scale": 1.2, "heads": 8, "rotary": 1.0, "mask": "causal", "placement": "pre", "tokens": 6},
    {"query_key_scale": 0.6, "heads": 16, "rotary": 0.5, "sequences": 2, "input_correlation": 0.8},
    {"query_key_scale": 0.5, "heads": 8, "query_key_norm": "head", "norm_epsilon": 0.1},
    {"query_key_scale": 1.5, "heads": 8, "kv_heads": 2, "logit_softcap": 1.0, "mask": "causal", "window": 2},
    {"query_key_scale": 0.7, "heads": 8, "query_key_norm": "all", "placement": "output", "rotary": 1.0},
    {"query_key_scale": 1.5, "heads": 6, "head_width": 32, "output_projection": "random", "init_std": 0.04},
    {"placement": "pre", "query_key_scale": 1.0, "mask": "causal", "output_projection": "random", "depth": 3},
    {"placement": "peri", "query_key_scale": 1.0, "heads": 2, "sequences": 2},
    {"placement": "deepnorm", "query_key_scale": 1.0, "dropout": 0.1},
    {"placement": "pre", "query_key_scale": 1.0, "norm_epsilon": 0.3, "positions": "sinusoidal", "heads": 2},
    {"attention_dropout": 0.2, "heads": 4},
    {"placement": "rezero", "attention_dropout": 0.2, "mask": "causal"},
    {"query_key_scale": 1.0, "attention_dropout": 0.3, "placement": "peri", "heads": 2, "norm_epsilon": 0.1},
    {"query_key_scale": 1.0, "attention_dropout": 0.4, "attention_scale": "linear", "query_key": "tied", "depth": 1},
    {"placement": "residual", "query_key_scale": 1.0, "dropout": 0.1},
    {"query_key_scale": 1.3, "attention_scale": "linear", "query_key": "tied"},
    {"query_key_scale": 1.0, "query_gain": 0.0, "heads": 4, "mask": "causal"},
    {"query_key_scale": 1.0, "query_gain": 2.0, "key_gain": 0.6, "heads": 4, "source_tokens": 3, "placement": "pre"},
    {
        "query_key_scale": 1.0, "query_gain": 0.5, "query_key_norm": "head", "heads": 8, "norm_epsilon": 0.1,
        "embeddings": "tied", "vocab": 128, "placement": "peri",
    },
    {"query_key_scale": 1.0, "query_gain": 0.6, "embeddings": "tied", "vocab": 128, "placement": "pre", "depth": 1},
]  # fmt: skip


@pytest.mark.parametrize("case", THEORY, ids=str)
def test_theory_is_what_samples_do(case):
    """Every quantity of every layer within 3% or 4 standard errors, of samples and of sampled patterns together.

    Of so many patterns the error is some 0.6% of W^Q's gradient, and less elsewhere.
    """
    stack = Stack(**{"width": 512, "depth": 2, "tokens": 4, "vocab": 64} | case)
    worst, names = off(sample(stack, draws=128, seed=4), predict(stack, patterns=256))
    assert worst <= 1, names


OVERLAPS = [
    (2500, {"placement": "peri", "width": 256, "query_key_scale": 1.0}),
    (3500, {"query_key_scale": 1.0, "dropout": 0.6, "output_projection": "random", "initialization": "he"}),
    (4000, {"width": 256, "query_key_scale": 1.3, "attention_scale": "linear", "query_key": "tied"}),
]


@pytest.mark.parametrize(("draws", "fields"), OVERLAPS)
def test_overlaps_change_the_gradients_of_queries_and_keys(draws, fields, monkeypatch):
    """Within 4 standard errors, which are below 6%. Without the components that norms remove, they change by more."""
    stack = Stack(**{"width": 512, "depth": 1, "tokens": 4, "vocab": 64} | fields)
    samples, theory = sample(stack, draws=draws, seed=0), predict(stack, patterns=4096)
    monkeypatch.setattr(sampled, "_of_a_head", lambda *_: None)
    without = predict(stack, patterns=4096)
    for name in {"grad_sq_WQ", "grad_sq_WK"} & set(theory):
        assert abs(without[name] / theory[name] - 1.0) > 0.06, name
        values = samples[name][:, 0].astype(float)
        error = math.hypot(values.std() / math.sqrt(draws), float(theory.errors[name][0]))
        assert abs(values.mean() - theory[name]) < 4 * error < 0.06 * theory[name], name


NARROW = [
    {"heads": 512, "mask": "causal"},
    {"heads": 128, "query_key": "tied", "placement": "peri"},
    {"heads": 128, "kv_heads": 32, "attention_scale": "linear", "placement": "pre", "output_projection": "random"},
    {"heads": 256, "source_tokens": 3, "depth": 1},
]


@pytest.mark.parametrize("case", NARROW, ids=str)
def test_narrow_heads(case):
    """Heads of 1 to 4 coordinates, as above, where the law of wide heads is seen to be another."""
    stack = Stack(**{"width": 512, "depth": 2, "tokens": 4, "vocab": 64, "query_key_scale": 1.2} | case)
    samples, patterns = sample(stack, draws=192, seed=0), max(16, 8192 // stack.heads)
    worst, names = off(samples, predict(stack, patterns=patterns))
    assert worst <= 1, names
    assert off(samples, in_wide_heads(stack, patterns))[0] > 1


def in_wide_heads(stack, patterns):
    """Predictions of heads of 2^32 coordinates each, with the gradients that only the width scales as they are here."""
    wide = predict(replace(stack, width=stack.heads * 2**32), patterns=patterns)
    less = {name for name in wide if "grad_sq" in name}
    arrays, errors = (
        {name: value * (stack.width / wide.stack.width if name in less else 1.0) for name, value in found.items()}
        for found in (wide, wide.errors)
    )
    return Prediction(stack, arrays, errors)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"patterns": 0}, "^patterns must be an integer of at least 1 or None, got 0"),
    ({"patterns": 2.5}, "^patterns must be an integer of at least 1 or None, got 2.5"),
])  # fmt: skip
def test_bad_numbers_of_patterns_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        predict(Stack(query_key_scale=1.0), **arguments)


def test_errors_of_attention_samples():
    """The error is that of a mean over patterns: two seeds' means differ by it, and more patterns reduce it."""
    stack = Stack(width=64, depth=2, tokens=4, vocab=16, query_key_scale=1.0)
    rough, fine = predict(stack), predict(stack, patterns=8192)
    assert set(rough.errors) == set(rough)
    assert not predict(Stack(depth=2)).errors
    for name in ("grad_sq_WQ", "grad_sq_W2", "hidden_energy"):
        assert (np.abs(rough[name] - fine[name]) <= 4.5 * rough.errors[name] + 1e-12).all()
        assert (fine.errors[name] <= 0.002 * fine[name]).all()
    assert (rough.errors["grad_sq_WQ"] > 0.002 * rough["grad_sq_WQ"]).any()


@pytest.mark.parametrize("placement", ["post", "pre", "peri"])
def test_no_queries_are_the_papers_setting(placement):
    """S = 0 is the same code, bit for bit; and s -> 0 tends to it in every quantity that both have."""
    zero, small = (predict(Stack(placement=placement, depth=3, query_key_scale=s)) for s in (0.0, 0.01))
    plain = predict(Stack(placement=placement, depth=3))
    for name, value in zero.items():
        np.testing.assert_array_equal(value, plain[name])
        np.testing.assert_allclose(small[name], value, rtol=1e-3)
    assert small["attention_entropy"] == pytest.approx(math.log(8), abs=1e-6)
    assert small["attention_squares"] == pytest.approx(1 / 8, abs=1e-6)
    np.testing.assert_allclose(small["grad_sq_WQ"] / plain["grad_sq_WV"], 0.0, atol=1e-3)


@pytest.mark.parametrize(("case", "how"), [
    ({}, {}), ({"embeddings": "tied", "placement": "pre"}, {}),
    ({"source_tokens": 3}, {}), ({"tokens": 32, "vocab": 64, "mask": "causal"}, {"grouped": True}),
], ids=str)  # fmt: skip
def test_a_factor_on_logits_is_one_on_the_variance_of_queries_and_keys(case, how):
    """The logits are the same, and squared gradients of W^Q and W^K that factor larger."""
    fields = {"width": 512, "depth": 2, "tokens": 4, "vocab": 16, "output_projection": "random"} | case
    one = Stack(query_key_scale=1.0, logit_factor=1.5, **fields)
    mine, theirs = (
        predict(stack, patterns=4, **how) for stack in (one, replace(one, query_key_scale=1.5**0.5, logit_factor=1.0))
    )
    for name in ("grad_sq_WQ", "grad_sq_WK", "grad_sq_WV", "grad_sq_W2", "loss"):
        factor = 1.5 if name in ("grad_sq_WQ", "grad_sq_WK") else 1.0
        np.testing.assert_allclose(mine[name], factor * theirs[name], rtol=1e-9, err_msg=name)


def test_many_heads_average_out():
    """What varies from pattern to pattern falls like 1/heads."""
    spread = [
        predict(Stack(width=256, depth=1, tokens=4, vocab=16, query_key_scale=1.0, heads=h)).errors["grad_sq_WV"][0]
        for h in (1, 16)
    ]
    assert spread[0] / spread[1] == pytest.approx(4.0, rel=0.3)


def test_without_norms_the_rule_is_approximate():
    """W^Q is 9% larger than predicted, other matrices are not; none of it is judged."""
    stack = Stack(placement="unnormed", width=1024, depth=1, tokens=4, vocab=64, query_key_scale=1.0)
    samples = sample(stack, draws=400, seed=0)
    prediction = predict(stack, patterns=4096)
    assert 1.02 < samples["grad_sq_WQ"].mean() / prediction["grad_sq_WQ"] < 1.14
    for role in ("WV", "W1", "W2"):
        assert samples[f"grad_sq_{role}"].mean() == pytest.approx(float(prediction[f"grad_sq_{role}"][0]), rel=0.02)
    assert set(comparison([samples])["agreement"]) == {"", "beyond"}  # "" where nothing is predicted


def test_factors_of_queries_and_keys():
    """Where their product is 1 only the gradients of the matrices themselves change."""
    fields = {"width": 256, "depth": 2, "tokens": 4, "vocab": 16, "query_key_scale": 1.2, "heads": 4}
    plain, apart = (
        predict(Stack(**fields, **gains), patterns=64) for gains in ({}, {"query_gain": 2.0, "key_gain": 0.5})
    )
    for name in plain:
        ratio = {"grad_sq_WQ": 0.25, "grad_sq_WK": 4.0}.get(name, 1.0)
        np.testing.assert_allclose(apart[name], plain[name] * ratio, rtol=1e-9, err_msg=name)


def test_without_queries_nothing_is_done_to_them():
    plain = predict(Stack(depth=2))
    for fields in ({"rotary": 1.0}, {"logit_softcap": 1.0}):
        other = predict(Stack(depth=2, **fields))
        for name, value in plain.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-9, err_msg=name)


def test_a_norm_makes_the_scale_of_no_effect_but_for_gradients_of_its_own():
    """The gradients of queries and keys are smaller by s²."""
    fields = {"depth": 2, "tokens": 4, "vocab": 16, "width": 64, "query_key_norm": "head"}
    small, large = (predict(Stack(**fields, query_key_scale=s), patterns=16) for s in (0.1, 2.0))
    for name, value in small.items():
        ratio = 400.0 if name in ("grad_sq_WQ", "grad_sq_WK") else 1.0
        np.testing.assert_allclose(value, ratio * large[name], rtol=1e-9, err_msg=name)


def test_squared_norms_are_not_negative():
    """Of identical tokens queries and keys have no gradient, which rounding may not make less than that."""
    found = predict(Stack(input_correlation=1.0, tokens=4, query_key_scale=1.5), patterns=64)
    for role in ("WQ", "WK"):
        assert (0 <= found[f"grad_sq_{role}"]).all()
        assert (found[f"grad_sq_{role}"] < 1e-12 * found["grad_sq_WV"]).all()


def test_shared_keys_and_values_change_nothing_at_large_width():
    """The lemma of docs/attention.md, with 8 heads as wide as to be Gaussian; Xavier's gain of W^V does change."""
    fields = {"width": 2**40, "depth": 2, "tokens": 4, "vocab": 16, "query_key_scale": 1.3, "heads": 8}
    for initialization, same in (("fan_in", True), ("xavier_normal", False)):
        own, shared = (
            predict(Stack(**fields, kv_heads=k, initialization=initialization), patterns=256) for k in (8, 2)
        )
        for name in ("attention_energy", "grad_sq_WQ", "grad_sq_WK", "grad_sq_WV", "input_gradient_sq"):
            error = np.hypot(own.errors[name], shared.errors[name])
            assert (np.abs(own[name] / shared[name] - 1) < 5 * error / own[name] + 1e-9).all() == same, name


def test_chunks_of_patterns_only_change_which_are_drawn(monkeypatch):
    stack = Stack(width=64, depth=1, tokens=3, vocab=8, query_key_scale=1.0)
    whole = predict(stack)
    monkeypatch.setattr(cost, "CHUNK_ENTRIES", 1000 * 9)
    parts = predict(stack)
    for name in whole:
        assert (np.abs(parts[name] - whole[name]) <= 5 * 2**0.5 * whole.errors[name] + 1e-9).all(), name
        np.testing.assert_allclose(parts.errors[name], whole.errors[name], rtol=0.3, atol=1e-9)


MIRRORED: list[dict[str, Any]] = [
    {"query_key_scale": 0.7, "heads": 4, "mask": "causal", "placement": "pre"},
    {"query_key_scale": 1.0, "heads": 4, "kv_heads": 2, "rotary": 0.5, "placement": "pre"},
]


def test_the_error_of_two_patterns_of_each_window():
    """Windows 0, 2 and 1, 1: unbiased variances of 2 and 0, and the mean of four numbers; of pairs, one sample each."""
    values = np.array([[0.0, 2.0], [1.0, 1.0]])
    assert prediction._error(values, 1) == pytest.approx(((2 + 0) / 2 / 4) ** 0.5)
    mirrored = np.array([[-5.0, 5.0, 0.0, 4.0], [3.0, -1.0, 1.0, 1.0]])
    assert prediction._error(mirrored, 2) == pytest.approx(prediction._error(values, 1))


@pytest.mark.parametrize(("case", "less"), list(zip(MIRRORED, (2.0, 0.8), strict=True)), ids=str)
def test_pairs_and_control_variates_change_no_mean(case, less, monkeypatch):
    """Mirrored patterns with control variates and plain ones, within 5 standard errors of the difference.

    About 50 numbers of each case, false alarm 6e-7 each: 1e-4 in all. Variances of W^Q and W^K are smaller as stated.
    """
    stack = Stack(**{"width": 64, "depth": 2, "tokens": 4, "vocab": 16} | case)
    paired = predict(stack, patterns=2048)
    monkeypatch.setattr(cost, "is_mirrored", lambda _: False)
    monkeypatch.setattr(prediction, "is_mirrored", lambda _: False)
    plain = predict(stack, patterns=8192)
    for name, value in plain.items():
        error = np.hypot(paired.errors[name], plain.errors[name])
        assert (np.abs(paired[name] - value) <= 5 * error + 1e-9 * np.abs(value)).all(), name
    ratios = [2 * plain.errors[name] / paired.errors[name] for name in ("grad_sq_WQ", "grad_sq_WK")]
    assert np.mean(np.square(ratios)) > less


def test_layers_share_the_variance_of_two_samples():
    """The mean square in 32 layers is 0.4 to 1.8 times the exact one, and the largest 17 times, but in 1 of 1000."""
    means, shares = 2.0 ** -np.arange(32.0), np.append(0.001, np.full(31, 0.1))
    values = means[:, None, None] * (1.0 + shares[:, None, None] * np.random.default_rng(0).standard_normal((32, 1, 2)))
    shared, own = (prediction._error(values, 1, of_layers=each) / means / shares * 2.0**0.5 for each in (True, False))
    assert (0.8 * 0.4) ** 0.5 < shared[1:].min() and shared[1:].max() < (0.8 * 1.8 + 0.2 * 17) ** 0.5
    assert shared[0] == pytest.approx(12.706 / 1.96 * own[0], rel=1e-3) and own.min() < 0.25


def test_the_stated_error_is_that_over_seeds(monkeypatch):
    """Of 24 predictions of 64 patterns with seeds of their own: their variance over the mean of the stated ones.

    Of four numbers that are nearly independent: chi-square of 92 degrees over 92, whose 1e-4 quantiles are 0.53, 1.66.
    """
    stack = Stack(**{"width": 64, "depth": 1, "tokens": 6, "vocab": 16, "heads": 4} | MIRRORED[0])
    made, seeds = np.random.default_rng, iter(range(100, 200))
    monkeypatch.setattr(prediction.np.random, "default_rng", lambda _: made(next(seeds)))
    found = [predict(stack, patterns=64) for _ in range(24)]
    names = ("grad_sq_WQ", "grad_sq_WK", "grad_sq_WV", "attention_entropy")
    ratios = [
        np.var([np.mean(one[name]) for one in found], ddof=1) / np.mean([one.errors[name] ** 2 for one in found])
        for name in names
    ]
    assert 0.53 < np.mean(ratios) < 1.66
