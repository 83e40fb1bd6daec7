"""Groups of tokens: their law for short sequences, beside all tokens, beside networks, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

from theory import NoRuleError, Stack, predict
from theory.mean_field import overlap_variance, prediction
from theory.mean_field.attention.grouped import GroupedAttention
from theory.mean_field.attention.grouped_patterns import grouped_patterns
from theory.mean_field.sequence_blocks import mean_sandwich
from theory.mean_field.token_groups import token_groups

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


def _deviations(one, other, names=()):
    """Differences over the second, and over their standard errors, of every gradient and statistic of attention."""
    names = names or [name for name in other if name.startswith(("grad_sq_W", "attention_", "input_gradient"))]
    pairs = [(np.atleast_1d(one[name]), np.atleast_1d(other[name]), name) for name in names]
    relative = np.concatenate([a / b - 1.0 for a, b, _ in pairs])
    errors = np.concatenate(
        [np.hypot(np.atleast_1d(one.errors[n]), np.atleast_1d(other.errors[n])) / b for _, b, n in pairs]
    )
    return relative, errors


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
    relative, errors = _deviations(predict(stack, grouped=True, patterns=160), predict(stack, patterns=320))
    assert errors.max() < 0.03
    assert (np.abs(relative) < np.maximum(0.015, 4.5 * errors)).all()


def test_groups_are_as_all_of_their_tokens():
    """Beside the patterns of all 44 tokens: within 1.5% and 4.5 standard errors, of at most 2.5%."""
    stack = replace(WIDE, tokens=44)
    of_all = predict(stack, patterns=192)
    assert len(token_groups(44, causal=True).sizes) < 30
    relative, errors = _deviations(predict(stack, grouped=True, patterns=160), of_all)
    assert errors.max() < 0.025
    assert (np.abs(relative) < np.maximum(0.015, 4.5 * errors)).all()


def test_a_window():
    """The narrowest window that is taken, beside the patterns of all tokens: within 4% and 4.5 standard errors."""
    stack = replace(WIDE, tokens=64, window=32, depth=1)
    relative, errors = _deviations(predict(stack, grouped=True, patterns=64), predict(stack, patterns=64))
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
    for fields in (
        dict(query_key="tied"),
        dict(loss_on="last"),
        dict(attention_dropout=0.1),
        dict(positions="sinusoidal"),
    ):
        with pytest.raises(NoRuleError, match="a prediction by groups of its tokens"):
            predict(replace(WIDE, width=128, head_width=0, **fields), grouped=True)


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
