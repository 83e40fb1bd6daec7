"""Tied embeddings by groups of tokens whose words all differ: beside all tokens, and beside networks."""

from dataclasses import replace

import numpy as np
import pytest

from simulate import sample
from theory import NoRuleError, Stack, predict
from theory.mean_field.prediction import is_grouped

# Post-LN, whose gradients the words change most.
POST = Stack(
    width=512, depth=2, tokens=24, vocab=64, mask="causal", output_projection="random", embeddings="tied",
    output_scale=0.2,
)  # fmt: skip
GPT = Stack(
    placement="pre", width=256, depth=2, tokens=64, vocab=256, mask="causal", query_key_scale=0.8, heads=4,
    output_projection="random", activation="gelu", ffn_ratio=4.0, positions="learned", embedding_scale=0.05,
    init_std=0.05, depth_scaling="depth", output_scale=0.8, norm_epsilon=1e-5, embeddings="tied",
)  # fmt: skip
ROTARY = replace(
    GPT, positions="none", rotary=1.0, normalization="rms", ffn="gated", activation="silu", init_std=None,
    depth_scaling="none", embedding_scale=1.0, output_scale=0.15,
)  # fmt: skip


@pytest.fixture(scope="module")
def all_tokens():
    return predict(POST, grouped=False, patterns=192)


def _beyond(of_all):
    """Names of the loss and of gradients that groups have further than 1% and 4.5 standard errors from all tokens."""
    found = predict(POST, grouped=True)
    names = [name for name in found if name.startswith(("grad_sq_", "loss", "input_gradient"))]
    error = {name: np.broadcast_to(of_all.errors[name], np.shape(of_all[name])) for name in names}
    assert all((error[name] < 0.03 * of_all[name]).all() for name in names)
    off = {name: np.abs(found[name] - of_all[name]) for name in names}
    return {name for name in names if (off[name] > np.maximum(0.01 * of_all[name], 4.5 * error[name])).any()}


def test_fixed_attention_is_as_all_tokens(all_tokens):
    """Of 24 tokens, of which 12 stand for themselves; some 15 numbers: a false alarm in 10⁴ seeds."""
    assert _beyond(all_tokens) == set()


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
    assert is_grouped(replace(GPT, depth=4, tokens=1024, vocab=2048))
    assert is_grouped(replace(POST, tokens=256, vocab=512))
    assert not is_grouped(POST)
    with pytest.raises(NoRuleError, match="untied embeddings or labels 'uniform' .* by groups of its tokens"):
        predict(replace(POST, labels="zipf"), grouped=True)
    with pytest.raises(NoRuleError, match="or at least 2 sqrt"):
        predict(replace(GPT, tokens=31), grouped=True)
    with pytest.raises(NoRuleError, match="untied embeddings or no dropout"):
        predict(replace(POST, dropout=0.1), grouped=True)
    with pytest.raises(ValueError, match="at most 0.25 for groups of tokens, got 1 .*grouped=False"):
        predict(replace(POST, output_scale=1.0), grouped=True)
