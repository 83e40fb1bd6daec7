"""Tied embeddings by groups of tokens: sums over tokens, the loss, beside all tokens and beside networks."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from simulate import sample
from theory import NoRuleError, Stack, predict
from theory.mean_field.attention.grouped import GroupedAttention
from theory.mean_field.prediction import is_grouped
from theory.mean_field.tied import grouped_branches, grouped_gradient
from theory.mean_field.tied.grouped_output import grouped_output
from theory.mean_field.token_groups import TokenMatrix, token_groups

# Post-LN, whose gradients the words change most.
POST = Stack(width=512, depth=2, tokens=24, vocab=64, mask="causal", output_projection="random", embeddings="tied")
QUERIES = replace(POST, width=256, tokens=32, heads=4, query_key_scale=1.0)
GPT = Stack(
    placement="pre", width=256, depth=2, tokens=64, vocab=256, mask="causal", query_key_scale=0.8, heads=4,
    output_projection="random", activation="gelu", ffn_ratio=4.0, positions="learned", embedding_scale=0.05,
    init_std=0.05, depth_scaling="depth", output_scale=0.8, norm_epsilon=1e-5, embeddings="tied",
)  # fmt: skip
ROTARY = replace(
    GPT, positions="none", rotary=1.0, normalization="rms", ffn="gated", activation="silu", init_std=None,
    depth_scaling="none", embedding_scale=1.0, output_scale=0.5,
)  # fmt: skip


def _beyond(one, other, allowed):
    """Gradients and the loss that differ by more than a share and 4.5 standard errors."""
    beyond = []
    for name in other:
        if name.startswith(("grad_sq_", "loss", "input_gradient")):
            a, b = np.atleast_1d(one[name]), np.atleast_1d(other[name])
            error = np.hypot(np.atleast_1d(one.errors[name]), np.atleast_1d(other.errors[name]))
            assert (error < 0.03 * b).all(), name
            if (np.abs(a - b) > np.maximum(allowed * b, 4.5 * error)).any():
                beyond.append(name)
    return beyond


def _expanded(matrix, group):
    return matrix.smooth[np.ix_(group, group)] + np.diag(matrix.alone[group])


def test_products_are_those_of_all_tokens():
    sizes = np.array([1, 1, 3, 2, 5])
    group, generator = np.repeat(np.arange(5), sizes), np.random.default_rng(0)
    first, second = (
        TokenMatrix(sizes * 1.0, generator.standard_normal((5, 5)), generator.standard_normal(5)) for _ in range(2)
    )
    whole = [_expanded(matrix, group) for matrix in (first, second)]
    np.testing.assert_allclose(_expanded(first @ second.mT, group), whole[0] @ whole[1].T)
    kernel = TokenMatrix(first.sizes, second.smooth @ second.smooth.mT, 1.0 + second.alone**2)
    inverse = grouped_branches._over(first, kernel)
    expected = whole[0] @ np.linalg.inv(_expanded(kernel, group))
    np.testing.assert_allclose(_expanded(inverse, group), expected, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_sampled_logits(smoothing):
    """Of 4 tokens and 12 words beside 60000 draws of every logit and label: within 5 standard errors."""
    stack = replace(POST, tokens=4, vocab=12, width=16, label_smoothing=smoothing)
    tokens, generator = token_groups(4, causal=True), np.random.default_rng(1)
    kernel = 0.3 + 0.7 * np.eye(4)
    held = np.array([0.9, 0.5, 0.3, 0.1])
    batch = 4000
    output = grouped_output(
        stack, tokens, np.broadcast_to(kernel, (batch, 4, 4)), np.broadcast_to(held, (batch, 4)), generator
    )
    draws = 60000
    logits = np.linalg.cholesky(kernel) @ generator.standard_normal((draws, 4, 12))
    logits[:, np.arange(4), np.arange(4)] += 4.0 * held
    targets = np.eye(12)[generator.integers(12, size=(draws, 4))] * (1 - smoothing) + smoothing / 12
    probability = softmax(logits, axis=-1)
    errors = (probability - targets) / 4
    own = errors[:, np.arange(4), np.arange(4)]
    measured = {
        "loss": -(targets * np.log(probability)).sum((1, 2)) / 4,
        "errors": errors @ errors.mT,
        "words": errors[..., :4],
        "own": own**2,
    }
    found = {"loss": output.loss, "errors": output.errors, "words": output.words.kernel}
    found["own"] = output.own + output.words.diagonal**2
    for name, values in measured.items():
        error = np.hypot(values.std(0) / draws**0.5, found[name].std(0) / batch**0.5)
        assert (np.abs(found[name].mean(0) - values.mean(0)) < 5 * error + 1e-4 * values.mean(0).max()).all(), name


@pytest.fixture(scope="module")
def all_tokens():
    return predict(POST, grouped=False, patterns=192)


def test_fixed_attention_is_as_all_tokens(all_tokens):
    """Of 24 tokens, of which 12 stand for themselves: within 1% and 4.5 standard errors."""
    assert _beyond(predict(POST, grouped=True, patterns=32), all_tokens, 0.01) == []


def a_token_once_in_every_sum(monkeypatch):
    monkeypatch.setattr(TokenMatrix, "kernel", property(lambda matrix: matrix.smooth))


def no_response_of_units(monkeypatch):
    right = grouped_branches._response
    monkeypatch.setattr(grouped_branches, "_response", lambda *given: [0.0 * part for part in right(*given)])


@pytest.mark.parametrize("error", [a_token_once_in_every_sum, no_response_of_units])
def test_planted_errors_are_seen(all_tokens, error, monkeypatch):
    error(monkeypatch)
    assert _beyond(predict(POST, grouped=True, patterns=32), all_tokens, 0.01) != []


def test_what_a_tokens_own_error_varies_by_is_needed(monkeypatch):
    """Where the softmax is neither flat nor sure; as noise it leaves the gradient of W_emb 2% too large."""
    stack, right = replace(POST, width=64), grouped_gradient.grouped_output
    of_all, of_groups = predict(stack, grouped=False, patterns=768), predict(stack, grouped=True, patterns=128)
    name = "grad_sq_Wemb"
    error = np.hypot(of_all.errors[name], of_groups.errors[name]) / of_all[name]
    assert error < 0.003
    assert abs(of_groups[name] / of_all[name] - 1.0) < 0.01
    monkeypatch.setattr(
        grouped_gradient, "grouped_output",
        lambda *given: replace(output := right(*given), own=0.0 * output.own),
    )  # fmt: skip
    assert predict(stack, grouped=True, patterns=128)[name] / of_all[name] > 1.0 + 4.0 * error


@pytest.fixture
def no_varying_products(monkeypatch):
    """Without what products of two tokens vary by, which all tokens do not have."""
    right = GroupedAttention._varying
    monkeypatch.setattr(GroupedAttention, "_varying", lambda self, *given: 0.0 * right(self, *given))


def test_random_queries_are_as_all_tokens(no_varying_products, monkeypatch):
    """Of 32 tokens: within 2%, of W^Q and W^K within 6%, and 4.5 standard errors; these need the certain gradient."""
    of_all = predict(QUERIES, grouped=False, patterns=128)
    of_groups = predict(QUERIES, grouped=True, patterns=64)
    assert set(_beyond(of_groups, of_all, 0.02)) <= {"grad_sq_WQ", "grad_sq_WK"}
    assert _beyond(of_groups, of_all, 0.06) == []
    monkeypatch.setattr(grouped_branches, "bare_logit_scale", lambda stack: 0.0)
    assert "grad_sq_WQ" in _beyond(predict(QUERIES, grouped=True, patterns=64), of_all, 0.06)


@pytest.mark.parametrize("stack", [GPT, ROTARY], ids=["GPT-2", "rotary"])
def test_beside_networks(stack):
    """Of 64 tokens at d = 256: 4% and 4.5 standard errors, of W^Q and W^K 8%, which products of two tokens change."""
    draws, found = sample(stack, draws=32, seed=3), predict(stack, grouped=True, patterns=12)
    for name in found:
        if name.startswith(("grad_sq_", "loss", "input_gradient", "hidden")):
            values = np.asarray(draws[name])
            mean = np.atleast_1d(values.mean(0))
            error = np.hypot(np.atleast_1d(values.std(0, ddof=1)) / 32**0.5, np.atleast_1d(found.errors[name]))
            allowed = 0.08 if name in ("grad_sq_WQ", "grad_sq_WK") else 0.04
            assert (np.abs(found[name] - mean) < np.maximum(allowed * mean, 4.5 * error)).all(), name


@pytest.mark.quick
def test_long_sequences_are_grouped_unasked_and_others_refused():
    assert is_grouped(replace(QUERIES, tokens=1024, vocab=2048))
    assert is_grouped(replace(POST, tokens=256, vocab=512))
    assert not is_grouped(POST)
    with pytest.raises(NoRuleError, match="untied embeddings or labels 'uniform' .* by groups of its tokens"):
        predict(replace(POST, labels="zipf"), grouped=True)
    with pytest.raises(NoRuleError, match="or at least 2 sqrt"):
        predict(replace(QUERIES, tokens=31), grouped=True)
    with pytest.raises(NoRuleError, match="untied embeddings or no dropout"):
        predict(replace(POST, dropout=0.1), grouped=True)
