"""Experts: the network against a slow twin, theory against samples, and what is known without either."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from simulate import sample
from tests.helpers.agreement import off
from tests.helpers.twins.relaxed import deviation
from theory import Stack, predict
from theory.first_step.noise_scale import noise_scale
from theory.mean_field import experts as rules
from theory.mean_field.text_law import TextLaw
from theory.mean_field.tied import gradient as tied
from theory.stack.weights import gain

CASES = {
    "one of four, its sigmoid": {
        "placement": "post", "experts": 4, "router_scores": "sigmoid", "initialization": "he", "mask": "causal",
    },
    "two of six, softmax over all": {
        "placement": "pre", "experts": 6, "experts_per_token": 2, "routed_scale": 3.0, "layout": "parallel",
    },
    "two of five, softmax of the chosen": {
        "placement": "peri", "experts": 5, "experts_per_token": 2, "router_norm": "sum", "router_gain": 2.0,
        "shared_ratio": 2.0, "dropout": 0.2, "loss_on": "last",
    },
    "gated, with a shared one and a dense layer": {
        "placement": "pre", "normalization": "rms", "experts": 4, "experts_per_token": 3, "router_scores": "sigmoid",
        "router_norm": "sum", "routed_scale": 2.5, "ffn": "gated", "activation": "silu", "shared_ratio": 0.5,
        "shared_gate": "sigmoid", "dense_layers": 1, "dense_ratio": 2.0, "query_key_scale": 1.0, "heads": 4,
        "mask": "causal", "output_projection": "random", "init_std": 0.05,
    },
}  # fmt: skip
ALL = pytest.mark.parametrize("case", CASES)


@ALL
def test_the_network_is_the_slow_one(case):
    fields = CASES[case] | {"width": 16, "depth": 2, "tokens": 4, "vocab": 5, "dropout": 0.0, "placement": "pre"}
    for placement in ("post", "pre"):
        assert deviation(Stack(**fields | {"placement": placement})) < 1e-9


@ALL
def test_theory_is_what_samples_do(case):
    """Every quantity of every layer within 3% or 4 standard errors: at most 0.3% of false alarms a case, seed fixed."""
    stack = Stack(**{"width": 1024, "depth": 2, "tokens": 4, "vocab": 16} | CASES[case])
    worst, names = off(sample(stack, draws=160, seed=1), predict(stack, patterns=512))
    assert worst <= 1, names


def test_tied_embeddings():
    """The gradients of router and gate come mostly from the part of the logits' gradient that is certain."""
    fields = {
        "placement": "post", "experts": 4, "experts_per_token": 2, "ffn": "gated", "activation": "silu",
        "shared_ratio": 0.5, "shared_gate": "sigmoid", "query_key_scale": 1.0, "heads": 4, "mask": "causal",
    }  # fmt: skip
    stack = Stack(width=512, depth=2, tokens=3, vocab=64, embeddings="tied", **fields)
    worst, names = off(sample(stack, draws=160, seed=1), predict(stack, patterns=512))
    assert worst <= 1, names


@pytest.mark.parametrize(("case", "least", "most"), [
    ("one of four, its sigmoid", 5, 6.5), ("two of six, softmax over all", 3, 4),
])  # fmt: skip
def test_how_much_of_a_router_is_certain(monkeypatch, case, least, most):
    """As docs/attention.md has it, in two layers."""
    stack = Stack(**{"width": 1024, "depth": 2, "tokens": 4, "vocab": 64, "embeddings": "tied"} | CASES[case])
    whole, right = predict(stack, patterns=128)["grad_sq_WR"], tied._below_router
    monkeypatch.setattr(tied, "_below_router", lambda *given: right(*given[:3], 0.0 * given[3], *given[4:]))
    times = (whole / predict(stack, patterns=128)["grad_sq_WR"]) ** 0.5
    assert ((times > least) & (times < most)).all(), times


def test_one_expert_of_weight_one_is_a_plain_network():
    """And its router has no gradient: nothing depends on its logit."""
    stack = Stack(width=64, depth=3, tokens=4, experts=1, router_norm="sum", mask="causal")
    one, plain = predict(stack, patterns=2), predict(replace(stack, experts=0, router_norm="none"))
    for name in plain:
        if name in one:
            np.testing.assert_allclose(one[name], plain[name], rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(one["grad_sq_WR"], 0.0)
    np.testing.assert_array_equal(one["expert_load_max"], 1.0)
    samples = sample(replace(stack, width=32), draws=8, seed=0, dtype="float64")
    assert samples["grad_sq_WR"].max() < 1e-24 * samples["grad_sq_W1"].min()


def test_a_shared_expert_alone_is_a_plain_network():
    """Of routed experts of no weight nothing is left but the shared one."""
    stack = Stack(width=64, depth=3, tokens=4, experts=2, routed_scale=1e-30, shared_ratio=1.0)
    shared = predict(stack, patterns=2)
    plain = predict(replace(stack, experts=0, routed_scale=1.0, shared_ratio=0.0))
    for name, other in (("grad_sq_S1", "grad_sq_W1"), ("grad_sq_S2", "grad_sq_W2"), ("hidden_energy",) * 2):
        np.testing.assert_allclose(shared[name], plain[other], rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("norm", ["none", "sum"])
def test_slopes_of_the_weights_are_their_derivatives(scores, norm):
    stack = Stack(experts=5, experts_per_token=3, router_scores=scores, router_norm=norm, routed_scale=1.7)
    logits, step = np.random.default_rng(0).standard_normal((1, 2, 5)), 1e-6
    found = rules.routing(stack, logits)
    for f in range(5):
        moved = step * np.eye(5)[f]
        up, down = (rules.routing(stack, logits + sign * moved).weights for sign in (1, -1))
        slope = found.slopes * np.eye(5)[f] - found.weights * found.shares[..., f : f + 1]
        np.testing.assert_allclose((up - down) / (2 * step), slope, atol=1e-8)


def test_loads_of_a_token_are_known():
    """A token fills k of E experts: the fullest has it, and loads are k ones and zeros."""
    prediction = predict(Stack(width=64, depth=1, tokens=1, experts=8, experts_per_token=2), patterns=4)
    np.testing.assert_allclose(prediction["expert_load_max"], 1.0)
    np.testing.assert_allclose(prediction["expert_load_deviation"], (0.25 * 0.75) ** 0.5 / 0.25)


def test_loads_of_orthogonal_tokens_are_counted():
    """Independent tokens choose one of two experts like coins: E max(c, n - c)/n of n = 2 is 3/4; 5 standard errors."""
    stack = Stack(placement="pre", branches="feed_forward", width=64, depth=1, tokens=2, experts=2)
    prediction = predict(stack, patterns=4096)
    assert abs(prediction["expert_load_max"][0] - 0.75) < 5 * 0.25 / 64
    np.testing.assert_allclose(prediction.errors["expert_load_max"], 0.25 / 64, rtol=0.05)


@pytest.mark.parametrize("cosine", [0.25, 0.75])
def test_the_fullest_expert_of_a_batch_is_that_of_counted_tokens(cosine):
    """Counts and theory are means over 200 networks, with errors of 0.012 each, 0.017 together; 3.5 of them.

    Without attention, two tokens of a text have the cosine 1 if their ids are equal, and 0 if not.
    """
    normal, parts = np.random.default_rng(1).standard_normal, (cosine**0.5, (1.0 - cosine) ** 0.5)
    counts = [
        np.bincount(each.argsort()[:, -2:].ravel(), minlength=16).max() / 1000
        for each in (parts[0] * normal(16) + parts[1] * normal((1000, 16)) for _ in range(200))
    ]
    stack = Stack(placement="pre", branches="feed_forward", width=4096, depth=1, tokens=64, vocab=512, experts=16)
    scale = noise_scale(
        replace(stack, experts_per_token=2), text=replace(TextLaw.distinct(512), across=cosine, within=cosine)
    )
    np.testing.assert_allclose(scale.stream["expert_load_max"], np.mean(counts), atol=3.5 * 0.017)
    # A share of `cosine` of pairs is equal: the balance is linear in it, and 2 for independent tokens.
    scores = np.sort(softmax(gain(stack, "WR") ** 0.5 * normal((20_000, 16)), axis=-1))
    expected = 2.0 + cosine * (16 * scores[:, -2:].sum(1).mean() - 2.0)
    np.testing.assert_allclose(scale.stream["expert_balance"], expected, rtol=0.02)
