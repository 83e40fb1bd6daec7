"""Theory of sentence pairs: beside windows of words, and mini-batches of more pairs than are predicted together."""

from dataclasses import replace

import numpy as np
import pytest

from studies.fig3.sentence_pairs import SentencePair, predict_group, predict_minibatch
from theory import Stack, predict


def test_pairs_of_one_length_are_sequences():
    """Two pairs of equal lengths are a stack's two sequences over windows of words, with sources of unlike tokens."""
    stack = Stack(
        placement="pre", depth=3, tokens=4, source_tokens=3, sequences=2, mask="causal", positions="sinusoidal",
        width=64, vocab=20, dropout=0.2, output_projection="random", label_smoothing=0.1,
    )  # fmt: skip
    windows = np.array([[1, 2, 1, 3, 2], [3, 4, 4, 1, 1]])
    pairs = [SentencePair(np.arange(3) + 10 * k, one[:-1], one[1:]) for k, one in enumerate(windows)]
    expected = predict(stack, windows)
    found = predict_group(replace(stack, sequences=1), pairs, np.random.default_rng(0), patterns=1)[0]
    for name in expected:
        if "token_correlation" not in name:  # there of one sequence, here of all
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, err_msg=name)


def test_minibatches_beyond_a_group():
    """Of four pairs of one length, groups' means; of infinitely many, what two pairs have in common."""
    stack = Stack(depth=2, tokens=4, source_tokens=3, mask="causal", width=64, vocab=20)
    draw = np.random.default_rng(0)
    pairs = [
        SentencePair(draw.integers(9, size=3), draw.integers(5, size=4), draw.integers(5, size=4)) for _ in range(8)
    ]
    four = predict_minibatch(stack, pairs, size=4, groups=2, patterns=1)
    chosen = np.random.default_rng(0).choice(8, (2, 4), replace=False)
    groups = [predict_group(stack, [pairs[k] for k in group], draw, patterns=1)[0]["grad_sq_W2"] for group in chosen]
    np.testing.assert_allclose(four["grad_sq_W2"], np.mean(groups, axis=0), rtol=1e-9)
    limit = predict_minibatch(stack, pairs, size=1e12, groups=2, patterns=1)["grad_sq_W2"]
    one = predict_minibatch(stack, pairs, size=1, groups=2, patterns=1)["grad_sq_W2"]
    np.testing.assert_allclose(four["grad_sq_W2"], limit + (one - limit) / 4, rtol=1e-9)
    ragged = [SentencePair(np.arange(3), *(draw.integers(5, size=(2, n)))) for n in (3, 3, 20, 20)]
    size = 46**2 / (2 * 9 + 2 * 400)
    together = predict_group(stack, ragged, draw, patterns=1)[0]["grad_sq_W2"]
    np.testing.assert_allclose(
        predict_minibatch(stack, ragged, size=size, groups=1, patterns=1)["grad_sq_W2"], together
    )
    # One pair of the text, chosen by the square of its length, as mini-batches of whole texts weigh it.
    own = [predict_group(stack, [pair], draw, patterns=1)[0]["grad_sq_W2"] for pair in ragged]
    np.testing.assert_allclose(
        predict_minibatch(stack, ragged, size=1, groups=1, patterns=1)["grad_sq_W2"],
        np.average(own, axis=0, weights=[9, 9, 400, 400]),
    )
    assert own[0][-1] > 1.5 * own[-1][-1], "lengths matter"
    with pytest.raises(ValueError, match=r"^pairs must be at least 4 \* groups = 12, and groups at least 1, got 8"):
        predict_minibatch(stack, pairs, size=4, groups=3)
    with pytest.raises(ValueError, match="^placement must have one stream and no norm after its branches .* 'peri'"):
        predict_minibatch(replace(stack, placement="peri"), pairs, size=4, groups=2, finite_width=True)
