"""Experts by groups of tokens: beside all tokens, beside planted errors, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

from theory import NoRuleError, Stack, predict
from theory.configurations import PUBLISHED, stack_from_config
from theory.first_step.noise_scale import noise_scale
from theory.mean_field import experts as rules
from theory.mean_field.attention.grouped import GroupedAttention, grouped_patterns
from theory.mean_field.group_members import MEMBERS, MemberLayout
from theory.mean_field.kernels import cholesky
from theory.mean_field.prediction import predict_sequences
from theory.mean_field.token_groups import representative_count, token_groups

# So wide that what products of two tokens vary by, of order n/d, does not enter.
WIDE = Stack(
    placement="pre", width=2**20, head_width=32, heads=4, depth=2, tokens=64, vocab=64, mask="causal",
    query_key_scale=1.0, output_projection="random",
)  # fmt: skip
GATED = {"ffn": "gated", "activation": "silu"}
CASES = {
    "mixtral": {"experts": 8, "experts_per_token": 2, "router_norm": "sum", **GATED},
    "mixtral, Post-LN": {"placement": "post", "experts": 8, "experts_per_token": 2, "router_norm": "sum", **GATED},
    "olmoe": {"experts": 16, "experts_per_token": 4, **GATED},
    "sigmoid": {
        "experts": 4, "experts_per_token": 2, "router_scores": "sigmoid", "router_norm": "sum", "routed_scale": 2.5,
        "mask": "none",
    },
    "a shared one with a gate": {
        "experts": 6, "experts_per_token": 2, "router_gain": 2.0, "shared_ratio": 0.5, "shared_gate": "sigmoid",
        "mask": "none",
    },
    "one of four, uniform attention": {
        "placement": "post", "experts": 4, "router_scores": "sigmoid", "initialization": "he", "query_key_scale": 0.0,
    },
}  # fmt: skip


def deviations(one, other):
    """Differences over the second, and over their standard errors, of every quantity that varies, by name."""
    found = {}
    for name in other:
        value = np.atleast_1d(other[name])
        error = np.hypot(np.atleast_1d(one.errors[name]), np.atleast_1d(other.errors[name])) / np.abs(value)
        found[name] = (np.atleast_1d(one[name]) / value - 1.0, error)
    return found


def off(one, other):
    """Quantities beyond 1.5% and 4.5 standard errors."""
    return [
        name
        for name, (relative, error) in deviations(one, other).items()
        if (np.abs(relative) > np.maximum(0.015, 4.5 * error)).any()
    ]


def test_groups_are_as_all_of_their_tokens():
    """Of some 30 numbers, loads too, none is beyond 1.5% and 4.5 standard errors: a false alarm in 5000 runs."""
    of_all = predict(replace(WIDE, **CASES["sigmoid"]), patterns=64)
    assert len(token_groups(64, causal=False).sizes) == 16
    found = predict(of_all.stack, grouped=True, patterns=64)
    assert max(error.max() for _, error in deviations(found, of_all).values()) < 0.1
    assert not off(found, of_all)


@pytest.mark.quick
@pytest.mark.parametrize("causal", [True, False])
def test_pooled_kernels_are_means_over_pairs(causal):
    """Pair by pair; and sums over all tokens stay."""
    tokens = MemberLayout.of(token_groups(40, causal=causal))
    groups, kernel = tokens.groups, np.random.default_rng(0).standard_normal((len(tokens.sizes),) * 2)
    kernel = kernel + kernel.T
    sums, numbers = np.zeros((2, *groups.pairs.shape))
    for i, a in enumerate(tokens.group):
        for j, b in enumerate(tokens.group):
            # Two different tokens of one representative are as it and its twin.
            for row, column in [(a, groups.twins[a]), (groups.twins[a], a)] if a == b and i != j else [(a, b)]:
                share = tokens.pairs[i, j] / (2.0 if a == b and i != j else 1.0)
                sums[row, column] += share * kernel[i, j]
                numbers[row, column] += share
    np.testing.assert_allclose(tokens.pooled(kernel), sums / numbers, atol=1e-12)
    np.testing.assert_allclose(numbers, groups.pairs)
    np.testing.assert_allclose(tokens.total(kernel), groups.total(tokens.pooled(kernel)))
    spread = tokens.spread(tokens.pooled(kernel))
    np.testing.assert_allclose(tokens.pooled(spread), tokens.pooled(kernel), atol=1e-12)
    np.testing.assert_allclose(tokens.unlike(spread), 0.0, atol=1e-6)


def test_what_pairs_vary_by():
    """Products of experts of two kinds beside sums of rows and columns, which do not enter: ±2 of every pair."""
    tokens = MemberLayout.of(token_groups(64, causal=False))
    kind = np.arange(len(tokens.group)) % 2 * 2.0 - 1.0
    rows = np.random.default_rng(0).standard_normal(len(kind))
    np.testing.assert_allclose(tokens.unlike(2.0 * np.outer(kind, kind) + rows + rows[:, None]), 2.0)


@pytest.mark.parametrize("rotary", [0.0, 0.5])
def test_what_pairs_vary_by_joins_what_few_coordinates_do(rotary):
    """As much of both is twice as much."""
    stack, tokens = replace(WIDE, width=256, head_width=0, rotary=rotary), token_groups(64, causal=True)
    kernel = 0.5 + 0.5 * np.eye(len(tokens.sizes))[None]
    patterns = grouped_patterns(stack, tokens, kernel, 2, np.random.default_rng(0))
    attention = GroupedAttention(stack, np.array([1.5]), np.random.default_rng(0))
    both = replace(attention, unlike=(1.5 / 256) ** 0.5 * tokens.differing(kernel))
    once, twice = (part._varying(tokens, patterns, kernel) for part in (attention, both))
    np.testing.assert_allclose(twice, 2.0 * once)


def test_loads_vary_as_those_of_all_tokens():
    """Of independent tokens squared deviations are (E/k - 1)/n; with shares of 5.5/6 a token they were 2.8% less.

    A false alarm in 2000 runs.
    """
    stack = replace(WIDE, experts=128, experts_per_token=64)
    tokens = MemberLayout.of(token_groups(64, causal=True))
    kernel = np.broadcast_to(np.eye(len(tokens.sizes)), (500, *2 * [len(tokens.sizes)]))
    loads = rules._loads_of_groups(stack, tokens, kernel, np.random.default_rng(0))
    squares = 64 * np.square(loads["expert_load_deviation"])
    assert abs(squares.mean() - 1.0) < 3.5 * squares.std() / 500**0.5 < 0.021


@pytest.mark.parametrize("count", [1, 13, 16, 17, 100, 4097])
def test_members_stand_for_all_tokens(count):
    groups = token_groups(count, causal=True)
    tokens = MemberLayout.of(groups)
    assert len(tokens.sizes) == representative_count(count, causal=True, members=MEMBERS)
    np.testing.assert_allclose(tokens.sizes.sum(), count)
    np.testing.assert_allclose(tokens.pairs.sum(), count**2)
    np.testing.assert_allclose(tokens.seen.sum(-1), groups.seen.sum(-1)[tokens.group])
    assert (tokens.twins[tokens.twins] == np.arange(len(tokens.sizes))).all()


def test_two_sequences():
    """What two sequences' gradients share, by groups and by all tokens: within 3% and 4.5 standard errors."""
    stack = Stack(placement="pre", depth=1, tokens=24, vocab=64, experts=4, experts_per_token=2, positions="learned")
    groups, of_all = (noise_scale(stack, patterns=128, grouped=grouped) for grouped in (True, False))
    for role, product in of_all.product.items():
        error = np.hypot(groups.product_sem[role], of_all.product_sem[role])
        assert (np.abs(groups.product[role] - product) <= np.maximum(0.03 * np.abs(product), 4.5 * error)).all(), role


@pytest.mark.parametrize(
    ("name", "sequences"), [("mixtral-8x7b", 1), ("qwen3-30b-a3b", 1), ("olmoe-1b-7b", 1), ("olmoe-1b-7b", 2)]
)
def test_products_of_followed_tokens_are_a_kernel(monkeypatch, name, sequences):
    """With real heads, logits and experts: one pair's product for all pairs of its groups was none in OLMoE, Qwen 3."""
    stack = replace(stack_from_config(PUBLISHED[name])[0], tokens=512 // sequences**3, depth=1)
    smallest = []

    def checked(kernel):
        smallest.append(np.linalg.eigvalsh(kernel).min() / np.linalg.diagonal(kernel).mean())
        return cholesky(kernel)

    monkeypatch.setattr(rules, "cholesky", checked)
    answer = predict if sequences == 1 else predict_sequences
    assert np.isfinite(answer(stack, grouped=True, patterns=2)["grad_sq_WR"]).all()
    assert min(smallest) > 1e-3


def test_refusals():
    tied = Stack(placement="pre", tokens=64, vocab=128, experts=4, embeddings="tied")
    with pytest.raises(NoRuleError, match="untied embeddings or no experts"):
        predict(tied, grouped=True)


def test_pairs_of_text_have_the_mean_of_sampled_routings():
    """Weights and gradients at the logits agree within 2 and 3%, at least three standard errors."""
    stack = replace(WIDE, experts=8, experts_per_token=2, router_norm="sum", normalization="rms")
    kernel = np.array([[[1.0, 0.8], [0.8, 1.0]]])
    logits = rules.gain(stack, "WR") ** 0.5 * cholesky(kernel) @ np.random.default_rng(1).standard_normal((2**15, 2, 8))
    sampled, mean, ones = rules.routing(stack, logits), rules.MeanRouting.of(stack, "WR", kernel), np.ones((1, 2, 2))
    assert mean.overlap[0] == pytest.approx(sampled.overlap.mean(0), rel=0.02)
    both = (route.at_logits(ones, ones, None).mean(0) for route in (mean, sampled))
    assert next(both) == pytest.approx(next(both), rel=0.03)
