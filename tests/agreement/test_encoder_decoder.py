"""Layers that attend to an encoder: limits, conservation, reductions, and what is refused."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

from simulate import Cell, sample
from simulate.runs.cost import block_work
from simulate.text import TextWindows
from tests.helpers.agreement import off
from theory import Stack, predict


@pytest.mark.parametrize("tokens", [2, 8])
def test_post_gradients_grow_by_the_memorys_share(tokens):
    """√2 a layer as the memory aligns, and the tokens' own alignment by 1/4."""
    prediction = predict(Stack(depth=40, tokens=tokens, source_tokens=tokens, vocab=100))
    growth = np.sqrt(prediction["grad_sq_W2"][21:] / prediction["grad_sq_W2"][20:-1])
    assert growth == pytest.approx(2**0.5, rel=1e-6)
    gap = (1 - prediction["token_correlation"] / 1.5)[5:10]
    assert gap[1:] / gap[:-1] == pytest.approx(0.25, abs=0.02)


def test_the_pages_example():
    page = (Path(__file__).parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    test = doctest.DocTestParser().get_doctest(block, {}, "page", None, None)
    assert doctest.DocTestRunner().run(test) == doctest.TestResults(0, 5)


def test_the_memorys_correlation_sets_the_rate():
    """With one layer of encoder and decoder, a decoder's W2 against the memory's own correlation: the formula at μ.

    One token, so that attention among tokens and the feed-forward branch are neutral in every layer.
    """
    for depth in (1, 3):
        stack = Stack(depth=depth, tokens=1, source_tokens=6, vocab=100)
        gap = 1 - predict(stack.encoder)["token_correlation"][-1] / 1.5
        prediction = predict(stack)
        # The memory's mean adds 1 - mu + mu/n to a token's energy, by which the norm divides its gradient.
        total = prediction["input_gradient_sq"] * (2 - gap + gap / 6) ** depth
        assert total == pytest.approx(float(prediction["loss_gradient_sq"]), rel=1e-9)


def test_gradients_are_conserved():
    """Once the memory has aligned, the summed gradient of tokens and encoder is that at the output.

    In W2's energy: the encoder's last layer has what the decoder's last has, and the decoder's first has nothing.
    """
    prediction = predict(Stack(depth=40, tokens=8, source_tokens=8, vocab=100))
    decoder, encoder = prediction["grad_sq_W2"], prediction["encoder_grad_sq_W2"]
    assert encoder[-1] == pytest.approx(decoder[-1], rel=1e-6)
    assert decoder[0] < 1e-10 * decoder[-1]


def test_pre_exponents():
    """Local exponents between l = 500 and 1000 of L = 2000; corrections fall like a small power of l."""
    prediction = predict(Stack(placement="pre", depth=2000, tokens=8, source_tokens=8, vocab=100))
    energy, gradient = prediction["hidden_energy"], prediction["grad_sq_W2"]
    assert energy[1000] - energy[999] == pytest.approx(2.5, rel=0.01)
    local = np.log(gradient[999] / gradient[499]) / np.log(2)
    assert local == pytest.approx(-0.6, abs=0.02)


def test_pairs_and_matrices_agree():
    """Exchangeable tokens as pairs, and the same as arrays: a causal mask over one token changes nothing."""
    pair, arrays = (predict(Stack(tokens=1, source_tokens=5, depth=3, mask=mask)) for mask in ("none", "causal"))
    for name in pair:
        np.testing.assert_allclose(arrays[name], pair[name], rtol=1e-9, err_msg=name)


def test_random_queries_and_keys():
    """4 standard errors or 3%, as `test_relaxations`.

    About 70 numbers a case, most of them correlated: at most 0.5% of false alarms, with a fixed seed.
    """
    stack = Stack(
        width=1024, depth=2, tokens=4, source_tokens=4, vocab=16, query_key_scale=1.2, heads=2,
        mask="causal", output_projection="random",
    )  # fmt: skip
    worst, names = off(sample(stack, draws=128, seed=5), predict(stack))
    assert worst <= 1, names


def test_one_token_has_one_weight():
    """A softmax over one token is 1, whatever its logit: no gradient reaches queries and keys, in either engine."""
    stack = Stack(width=16, depth=2, tokens=1, source_tokens=1, query_key_scale=1.0, vocab=8)
    for engine in ("dense", "conditioned"):
        draws = sample(stack, draws=2, seed=0, engine=engine)
        assert draws["grad_sq_WQ"].max() < 1e-12
        assert draws["grad_sq_XK"].max() < 1e-12
    assert not predict(stack)["grad_sq_XQ"].any()


def test_what_no_source_has_is_refused():
    with pytest.raises(ValueError, match="^source_tokens must be an integer of at least 0, got -1"):
        Stack(source_tokens=-1)
    with pytest.raises(ValueError, match=r"^input_correlation must be at least -1/\(source_tokens - 1\) = -0.25"):
        Stack(tokens=2, source_tokens=5, input_correlation=-0.5)
    windows = TextWindows(ids=np.ones((3, 9), dtype=np.int64), digest="0" * 64, source="text")
    with pytest.raises(ValueError, match="^source_tokens must be 0 with a text"):
        Cell(Stack(source_tokens=4), text=windows)


def test_work_counts_the_encoder():
    """Twice the layers without attention to it, and four matrices more with queries, keys and a projection."""
    plain = block_work(Cell(Stack(width=256), "dense"))
    whole = block_work(Cell(Stack(width=256, source_tokens=8), "dense"))
    each = (
        Cell(Stack(width=256), "dense").draws_per_block,
        Cell(Stack(width=256, source_tokens=8), "dense").draws_per_block,
    )
    assert whole.steps == 2 * 6 + 1
    layers = [one.normals / draws - 512 * 256 for one, draws in zip((plain, whole), each, strict=True)]
    assert layers[1] / layers[0] == pytest.approx((3 + 4) / 3, rel=0.01)


def test_the_memory_receives_what_its_values_multiply():
    """He's values double what a gradient passes; at gain 1, of every other test here, nobody sees whether they do."""
    stack = Stack(width=256, depth=1, tokens=2, source_tokens=3, vocab=16, initialization="he")
    widest, beyond = off(sample(stack, draws=128, seed=0), predict(stack))
    assert widest <= 1, beyond


def test_an_encoder_of_another_depth():
    """Forward it is the stack of its own depth, and in samples its layers and the decoder's have theory's gradients."""
    stack = Stack(placement="pre", width=512, depth=2, encoder_depth=5, tokens=3, source_tokens=4, vocab=16)
    prediction, own = predict(stack), predict(Stack(placement="pre", width=512, depth=5, tokens=4, vocab=16))
    for name in ("hidden_energy", "token_correlation"):
        np.testing.assert_allclose(prediction[f"encoder_{name}"], own[name], rtol=1e-12)
    assert [len(prediction[name]) for name in ("grad_sq_W2", "encoder_grad_sq_W2")] == [2, 5]
    assert len(prediction.to_frame()) == 6
    worst, names = off(sample(stack, draws=192, seed=5), prediction)
    assert worst <= 1, names
    equal = predict(Stack(placement="pre", width=512, depth=2, tokens=3, source_tokens=4, vocab=16))
    assert prediction["grad_sq_W2"][0] != pytest.approx(equal["grad_sq_W2"][0], rel=0.01)


def test_an_encoder_of_the_same_depth_given_is_the_same():
    given, not_given = (Stack(depth=3, source_tokens=2, encoder_depth=depth) for depth in (3, 0))
    assert given.encoder == not_given.encoder
    work = [block_work(Cell(Stack(width=256, source_tokens=8, encoder_depth=depth), "dense")).steps for depth in (6, 9)]
    assert work == [13, 16]
