"""Groups of tokens, experts too: their law, beside all tokens and networks, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

from theory import Stack, predict
from theory.configurations import PUBLISHED, stack_from_config
from theory.first_step.noise_scale import noise_scale
from theory.mean_field import experts as rules, overlap_variance, prediction
from theory.mean_field.attention.grouped import GroupedAttention
from theory.mean_field.attention.grouped_patterns import grouped_patterns
from theory.mean_field.group_members import MEMBERS, MemberLayout
from theory.mean_field.kernels import cholesky
from theory.mean_field.prediction import predict_sequences
from theory.mean_field.sequence_blocks import mean_sandwich
from theory.mean_field.token_groups import representative_count, token_groups

# So wide that what products of two tokens vary by, of order n/d, does not enter.
WIDE = Stack(
    placement="pre", width=2**20, head_width=32, heads=4, depth=2, tokens=10, vocab=32, mask="causal",
    query_key_scale=1.0, output_projection="random",
)  # fmt: skip
SHORT = {
    "rotary": dict(rotary=0.5),
    "capped": dict(placement="post", logit_softcap=1.0),
    "normed": dict(placement="peri", query_key_norm="head"),
    "positions": dict(positions="learned", logit_softcap=0.0, attention_scale="linear", query_key_scale=2.0),
    "all": dict(placement="post", query_key_norm="all", input_correlation=0.4),
}


def deviations(one, other, names=()):
    """Differences over the second, and over their standard errors, of every quantity that varies, by name."""
    found = {}
    for name in names or other:
        value = np.atleast_1d(other[name])
        error = np.hypot(np.atleast_1d(one.errors[name]), np.atleast_1d(other.errors[name])) / np.abs(value)
        found[name] = (np.atleast_1d(one[name]) / value - 1.0, error)
    return found


def of_attention(one, other, names=()):
    """The same of every gradient and statistic of attention, side by side."""
    names = names or [name for name in other if name.startswith(("grad_sq_W", "attention_", "input_gradient"))]
    return map(np.concatenate, zip(*deviations(one, other, names).values(), strict=True))


def test_blocks_between_three_sequences_add_up_to_the_whole_product():
    """For blocks (batch, heads, samples, sequences, r, r) and a matrix without symmetry."""
    generator = np.random.default_rng(0)
    (first, other), middle = generator.standard_normal((2, 2, 3, 2, 3, 4, 4)), generator.random((2, 3, 2, 12, 12))
    parts = [mean_sandwich(first, middle, other, shifts=range(k, k + 1)) for k in range(3)]
    assert sum(parts) == pytest.approx(mean_sandwich(first, middle, other))


@pytest.mark.parametrize("name", SHORT)
def test_a_short_sequence_has_its_law(name):
    """Every first token stands for itself, so that both rules are of one law, up to the 1/d_k of a norm or a rotation.

    Of some 20 numbers none is beyond 1.5% and 4.5 standard errors, of at most 3%: a false alarm in 7000 runs.
    """
    stack = replace(WIDE, **SHORT[name])
    relative, errors = of_attention(predict(stack, grouped=True, patterns=160), predict(stack, patterns=320))
    assert errors.max() < 0.03
    assert (np.abs(relative) < np.maximum(0.015, 4.5 * errors)).all()


def test_groups_are_as_all_of_their_tokens():
    """Beside the patterns of all 44 tokens: within 1.5% and 4.5 standard errors, of at most 2.5%."""
    stack = replace(WIDE, tokens=44)
    of_all = predict(stack, patterns=192)
    assert len(token_groups(44, causal=True).sizes) < 30
    relative, errors = of_attention(predict(stack, grouped=True, patterns=160), of_all)
    assert errors.max() < 0.025
    assert (np.abs(relative) < np.maximum(0.015, 4.5 * errors)).all()


def test_a_window():
    """The narrowest window that is taken, beside the patterns of all tokens: within 4% and 4.5 standard errors."""
    stack = replace(WIDE, tokens=64, window=32, depth=1)
    relative, errors = of_attention(predict(stack, grouped=True, patterns=64), predict(stack, patterns=64))
    assert errors.max() < 0.025
    assert (np.abs(relative) < np.maximum(0.04, 4.5 * errors)).all()


@pytest.mark.parametrize("fields", [dict(), dict(placement="post", window=32), dict(positions="learned")])
def test_uniform_attention(fields):
    """Nothing is sampled, and 200 tokens are as their groups within 1%."""
    stack = Stack(**dict(placement="pre", depth=3, tokens=200, vocab=64, mask="causal") | fields)
    groups, of_all = predict(stack, grouped=True), predict(stack, grouped=False)
    assert not groups.errors
    for name in of_all:
        if not name.startswith("loss") or name == "loss":
            np.testing.assert_allclose(groups[name], of_all[name], rtol=0.01, err_msg=name)


def _overlap_ratios(stack, seed):
    """Measure d tr Σ²/(tr Σ)² of 4000 tokens after every sub-layer of a network; attention is the mean token."""
    generator = np.random.default_rng(seed)
    d, m, n = stack.width, stack.ffn_width, 4000
    x, ratios = generator.standard_normal((n, d)), []

    def matrix(rows, columns):
        return generator.standard_normal((rows, columns)) * (2.0 / (rows + columns)) ** 0.5

    def normed(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True))

    for _ in range(stack.depth):
        for branch in ("attention", "units"):
            y = x if stack.placement == "post" else normed(x)
            if branch == "attention":
                added = y.mean(0) @ matrix(d, d)
            else:
                hidden = y @ matrix(d, m)
                gate = hidden if stack.ffn == "plain" else y @ matrix(d, m)
                values = np.maximum(gate, 0.0) if stack.activation == "relu" else gate / (1.0 + np.exp(-gate))
                added = (values if stack.ffn == "plain" else values * hidden) @ matrix(m, d)
            x = normed(x + added) if stack.placement == "post" else x + added
            differing = x - x.mean(0)
            covariance = differing.T @ differing / n
            trace = np.trace(covariance)
            ratios.append(d * ((covariance**2).sum() - trace**2 / n) / trace**2)
    return np.array(ratios)


@pytest.mark.parametrize(
    "fields",
    [dict(placement="pre"), dict(placement="post", depth=3), dict(placement="pre", ffn="gated", activation="silu")],
)
def test_how_products_of_tokens_vary(fields, monkeypatch):
    """ρ beside the covariance of tokens of three networks of width 192: within 4% each, seen to spread by 1% to 2%."""
    stack = Stack(**dict(width=192, depth=2, tokens=4000, vocab=32, mask="causal") | fields)
    found = []

    def recorded(*arguments):
        found.append(float(overlap_variance.propagate_overlap_variance(*arguments).mean()))
        return np.array([found[-1]])

    monkeypatch.setitem(prediction.recursion.__globals__, "propagate_overlap_variance", recorded)
    predict(stack, grouped=True)
    measured = np.mean([_overlap_ratios(stack, seed) for seed in range(3)], axis=0)
    assert measured[-1] > 1.05 if stack.ffn == "gated" else measured[-1] > 1.5
    np.testing.assert_allclose(found, measured, rtol=0.04)


def test_more_tokens_than_coordinates():
    """n/d = 2 beside 48 networks: W^Q and W^K within 4% and 4 standard errors; of that term they have 30%."""
    from simulate import sample

    stack = replace(WIDE, width=128, head_width=0, heads=2, depth=1, tokens=256, query_key_scale=0.5)
    draws = sample(stack, draws=48, seed=3)
    within = predict(stack, grouped=True, patterns=96)
    for name in ("grad_sq_WQ", "grad_sq_WK"):
        values = np.asarray(draws[name])[:, 0]
        error = np.hypot(values.std(ddof=1) / 48**0.5, within.errors[name][0]) / values.mean()
        assert error < 0.03
        assert abs(within[name][0] / values.mean() - 1.0) < 0.04 + 4.0 * error


def test_gated_units_of_more_tokens_than_coordinates():
    """At n/d = 2 independent tokens stay uncorrelated except by chance: within 4 standard errors of 64 networks."""
    from simulate import sample

    stack = Stack(
        placement="pre", branches="feed_forward", width=64, depth=2, tokens=128, vocab=32, ffn="gated",
        activation="silu", normalization="rms",
    )  # fmt: skip
    values = np.asarray(sample(stack, draws=64, seed=3)["token_correlation"])
    error = values.std(0, ddof=1) / 64**0.5
    assert (error < 0.12 * values.mean(0)).all()
    found = predict(stack, grouped=True)["token_correlation"]
    assert (np.abs(found - values.mean(0)) < 4.0 * error).all(), (found, values.mean(0), error)


@pytest.mark.parametrize("count", [1, 2, 13, 15, 16, 17, 100, 4097])
@pytest.mark.parametrize("window", [0, 16])
def test_representatives_stand_for_all_tokens(count, window):
    tokens = token_groups(count, causal=True, window=window)
    assert tokens.sizes.sum() == count
    assert tokens.pairs.sum() == count**2
    expected = np.minimum(tokens.places + 1.0, window or np.inf)
    np.testing.assert_allclose(tokens.seen.sum(-1), expected, rtol=1e-12)
    assert (tokens.twins[tokens.twins] == np.arange(len(tokens.sizes))).all()


def test_sums_over_tokens_vanish():
    tokens = token_groups(100, causal=True)
    kernel = np.random.default_rng(0).standard_normal((2, len(tokens.sizes), len(tokens.sizes)))
    centred = tokens.centred(kernel + kernel.mT)
    sums = (centred * tokens.pairs).sum(-1)
    np.testing.assert_allclose(sums + sums[:, tokens.twins], 0.0, atol=1e-9)


@pytest.mark.quick
@pytest.mark.parametrize("fields", [dict(tokens=1), dict(tokens=40, input_correlation=1.0)])
def test_tokens_that_are_the_same_have_the_rule_of_all(fields):
    """Nothing varies from one to another, so that there is nothing to sample, and no n/d."""
    stack = replace(WIDE, mask="causal", positions="none", **fields)
    found, expected = predict(stack, grouped=True, patterns=4), predict(stack, grouped=False, patterns=4)
    for name in ("loss", "hidden_energy", "grad_sq_WV", "grad_sq_W1", "grad_sq_W2"):
        assert found[name] == pytest.approx(expected[name], rel=1e-3), name


def test_thousands_of_tokens_are_grouped_unasked():
    """Where all tokens would take longer than ten seconds, with any number of patterns; all of them are refused."""
    stack = replace(WIDE, width=512, head_width=0, tokens=4096)
    assert predict(stack, patterns=4).errors
    np.testing.assert_array_equal(
        predict(replace(stack, query_key_scale=0.0))["grad_sq_WV"],
        predict(replace(stack, query_key_scale=0.0), grouped=True)["grad_sq_WV"],
    )
    with pytest.raises(ValueError, match="max_time .* is too short"):
        predict(stack, patterns=4, grouped=False, max_time=60.0)


def test_refusals():
    with pytest.raises(ValueError, match="grouped must be False with windows"):
        predict(WIDE, np.zeros((2, 11), dtype=int), grouped=True)
    with pytest.raises(ValueError, match="grouped must be True or False"):
        predict(WIDE, grouped="yes")


def test_what_products_vary_by_is_centred():
    """Rows of two sequences under even weights, beside sampled tokens: Σ_jl Ã_ij Ã_kl (x_j·x_l/d)², to 5% of the last.

    A row that sees one token has nothing left.
    """
    stack = replace(WIDE, width=64, head_width=16, query_key_scale=1e-3)
    n, width = stack.tokens, stack.width
    tokens = token_groups(n, causal=True).repeated(2)
    kernel, generator = np.eye(2 * n)[None], np.random.default_rng(0)
    patterns = grouped_patterns(stack, tokens, kernel, 2, generator)
    varying = GroupedAttention(stack, np.ones(1), generator)._varying(tokens, patterns, kernel)[0].mean((0, 1))
    weights = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    mean = np.zeros((n, n))
    for _ in range(2000):
        products = generator.standard_normal((n, width)) @ generator.standard_normal((n, width)).T / width
        sums, others = weights @ products, products @ weights.T
        mean += weights @ products**2 @ weights.T - sums**2 @ weights.T - weights @ others**2 + (sums @ weights.T) ** 2
    np.testing.assert_allclose(varying[:n, n:], mean / 2000, atol=0.05 / width)
    assert abs(varying[0]).max() < 1e-12


# So wide that what products of two tokens vary by, of order n/d, does not enter.
LONG = Stack(
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


def off(one, other):
    """Quantities beyond 1.5% and 4.5 standard errors."""
    return [
        name
        for name, (relative, error) in deviations(one, other).items()
        if (np.abs(relative) > np.maximum(0.015, 4.5 * error)).any()
    ]


def test_groups_with_experts_are_as_all_of_their_tokens():
    """Of some 30 numbers, loads too, none is beyond 1.5% and 4.5 standard errors: a false alarm in 5000 runs."""
    of_all = predict(replace(LONG, **CASES["sigmoid"]), patterns=64)
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
    stack, tokens = replace(LONG, width=256, head_width=0, rotary=rotary), token_groups(64, causal=True)
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
    stack = replace(LONG, experts=128, experts_per_token=64)
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


def test_pairs_of_text_have_the_mean_of_sampled_routings():
    """Weights and gradients at the logits agree within 2 and 3%, at least three standard errors."""
    stack = replace(LONG, experts=8, experts_per_token=2, router_norm="sum", normalization="rms")
    kernel = np.array([[[1.0, 0.8], [0.8, 1.0]]])
    logits = rules.gain(stack, "WR") ** 0.5 * cholesky(kernel) @ np.random.default_rng(1).standard_normal((2**15, 2, 8))
    sampled, mean, ones = rules.routing(stack, logits), rules.MeanRouting.of(stack, "WR", kernel), np.ones((1, 2, 2))
    assert mean.overlap[0] == pytest.approx(sampled.overlap.mean(0), rel=0.02)
    both = (route.at_logits(ones, ones, None).mean(0) for route in (mean, sampled))
    assert next(both) == pytest.approx(next(both), rel=0.03)
