"""How products of tokens vary over texts and by chance, beside texts that are sampled and passed through the stack."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, rms_norm, silu

from gradbounds import Stack, TextLaw, noise_scale, predict
from theory.mean_field import recursion, text_groups

TOKENS, TEXTS, RATIO = 12, 3000, 2.0
STACK = Stack(
    width=2**16, depth=4, tokens=TOKENS, vocab=64, placement="pre", mask="causal", normalization="rms",
    output_projection="random", ffn_ratio=RATIO, init_std=2.0**-8, activation="relu",
)  # fmt: skip
LAW = TextLaw.zipf(1.0, STACK.vocab)
# Small embeddings, as of Llama: the stream is what branches made, and tokens' products vary most.
ALONG = Stack(
    width=2**16, depth=2, tokens=16, vocab=64, placement="pre", mask="causal", normalization="rms",
    output_projection="random", ffn="gated", activation="silu", ffn_ratio=2.0, init_std=0.45 * 2.0**-8,
    embedding_scale=0.02,
)  # fmt: skip
ALONG_LAW, ALONG_TEXTS, STACKED = TextLaw.zipf(1.0, ALONG.vocab), 1000, (16, 16)


def sizes(kernel):
    """Products of the roots of both tokens' energies, of pairs of texts: own blocks, and between them."""
    roots = [np.sqrt(np.diagonal(block, axis1=1, axis2=2)) for block in (kernel[0], kernel[2])]
    sides = ((roots[0], roots[0]), (roots[0], roots[1]), (roots[1], roots[1]))
    return [left[:, :, None] * right[:, None, :] for left, right in sides]


def normed(stack, kernel):
    """What branches are given."""
    if stack.normalization == "none":
        return kernel
    return [block / size for block, size in zip(kernel, sizes(kernel), strict=True)]


def relu_units(kernel):
    """Twice as many units of ReLU as coordinates: Cho and Saul's formula."""
    parts = []
    for block, size in zip(kernel, sizes(kernel), strict=True):
        angle = np.arccos(np.clip(block / size, -1.0, 1.0))
        parts.append(RATIO * (np.sin(angle) * size + (np.pi - angle) * block) / (2.0 * np.pi))
    return parts


def sampled_variances(stack, ids=None):
    """Variance over pairs of texts of what the units of every layer are given, of other words, (12, 12) each.

    Over the mean energies of both tokens.
    """
    ids = LAW.windows(2 * TEXTS, TOKENS, np.random.default_rng(3))[:, :-1] if ids is None else ids
    ids = ids.reshape(TEXTS, 2, TOKENS)
    first, other = ids[:, 0], ids[:, 1]
    pairs = (first, first), (first, other), (other, other)
    stream = [stack.embedding_scale**2 * (left[:, :, None] == right[:, None, :]) for left, right in pairs]
    even = np.tril(np.ones((TOKENS, TOKENS))) / np.arange(1, TOKENS + 1)[:, None]
    differ, variances = pairs[1][0][:, :, None] != pairs[1][1][:, None, :], []
    for _ in range(stack.depth):
        stream = [block + even @ part @ even.T for block, part in zip(stream, normed(stack, stream), strict=True)]
        given = normed(stack, stream)
        energies = np.diagonal(given[0], axis1=1, axis2=2).mean(0)
        variances.append(np.nanvar(np.where(differ, given[1], np.nan), axis=0) / energies[:, None] / energies)
        stream = [block + part for block, part in zip(stream, relu_units(given), strict=True)]
    return variances


def variances(monkeypatch, stack, law=LAW):
    """The same by theory."""
    seen, rule = [], recursion.averaged_units
    monkeypatch.setattr(
        recursion, "averaged_units", lambda stack, ratio, words: seen.append(words) or rule(stack, ratio, words)
    )
    noise_scale(stack, text=law)
    assert len(seen) == stack.depth
    return [words[0][:TOKENS, 2 * TOKENS : 3 * TOKENS] for words in seen]


@pytest.mark.parametrize("scale", [0.4, 0.1])
def test_variance_over_texts(monkeypatch, scale):
    """Within 10% in the mean over places, also of a stream that small embeddings leave to branches.

    Of the first layer, whose tokens have seen few others, sizes vary too much for first order.
    """
    stack = replace(STACK, embedding_scale=scale)
    theories, ratios = variances(monkeypatch, stack), []
    for theory, sampled in zip(theories, sampled_variances(stack), strict=True):
        assert theory[0, 0] == pytest.approx(0.0, abs=1e-12), "one token sees itself alone"
        ratios.append(theory.mean() / sampled.mean())
    assert ratios[1:] == pytest.approx([1.0] * (stack.depth - 1), rel=0.1)
    if ratios[0] != pytest.approx(1.0, rel=0.1):
        pytest.xfail(f"what the first layer's units are given varies by {ratios[0]:.2f} times as much as it does")


def test_variance_over_texts_without_norms(monkeypatch):
    """Within 10% in the mean over places: sizes vary as well, which norms would take away."""
    stack = replace(STACK, depth=2, normalization="none", embedding_scale=1.0)
    pairs = zip(variances(monkeypatch, stack), sampled_variances(stack), strict=True)
    assert [theory.mean() / sampled.mean() for theory, sampled in pairs] == pytest.approx([1.0, 1.0], rel=0.1)


def test_variance_over_texts_that_clump(monkeypatch):
    """Each text has one of four topics: theory has 0.78 to 1.18 of the variance, by frequencies alone 0.53 to 0.60."""
    generator = np.random.default_rng(5)
    topics = generator.integers(0, 4, (2 * TEXTS, 1)) * STACK.vocab // 4
    ids = (LAW.windows(2 * TEXTS, TOKENS, generator)[:, :-1] + topics) % STACK.vocab
    sampled = np.array([each.mean() for each in sampled_variances(STACK, ids)])
    laws = TextLaw.of_text(np.append(ids, 0), TOKENS), TextLaw.of_counts(np.bincount(ids.ravel()))
    clumped, even = (np.array([each.mean() for each in variances(monkeypatch, STACK, law)]) / sampled for law in laws)
    np.testing.assert_allclose(clumped, 1.0, atol=0.25)
    assert max(even) < 0.65


def test_ends_share_the_way_up(monkeypatch):
    """What products of one text vary by, of the width and of the text, is one number at both ends, as the way up is."""
    varying, rule = [], recursion.averaged_units
    monkeypatch.setattr(recursion, "averaged_units", lambda stack, *parts: varying.append(parts) or rule(stack, *parts))
    predict(replace(ALONG, width=128, depth=3, init_std=0.04), text=ALONG_LAW)
    assert len(varying) == 3
    for ratio, of_text in varying:
        assert ratio[0] == pytest.approx(ratio[-1])
        np.testing.assert_allclose(of_text[0], of_text[1], rtol=1e-9)


def by_texts(seed):
    """How much more W^V of the first layer is shared than if gradients did not go along: of sampled texts, relative.

    Products of attended tokens and of gradients there, given places and whether rows hold one word.
    """
    met, rule = [], recursion.uniform_attention

    def watched(stack):
        def branch(tokens, kernel):
            out, back, recorded = rule(stack)(tokens, kernel)

            def pullback(gradient, overlaps):
                met.append((np.broadcast_to(out, gradient.shape), gradient))
                return back(gradient, overlaps)

            return out, pullback, recorded

        return branch

    texts = ALONG_LAW.windows(2 * ALONG_TEXTS, ALONG.tokens, np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recursion, "uniform_attention", watched)
        noise_scale(ALONG, texts)
    between = slice(0, ALONG.tokens), slice(ALONG.tokens, None)
    first = met[ALONG.depth - 1 :: ALONG.depth]
    attended, gradients = (
        np.concatenate(part)[..., *between].reshape(-1, *STACKED) for part in zip(*first, strict=True)
    )
    words = texts[:, :-1].reshape(ALONG_TEXTS, 2, -1)
    alike, apart = words[:, 0, :, None] == words[:, 1, None, :], 0.0
    for of_class in (alike, ~alike):
        count = of_class.sum(0)
        means = [(kernel * of_class).sum(0) / np.maximum(count, 1) for kernel in (attended, gradients)]
        apart += float((count * means[0] * means[1]).sum()) / ALONG_TEXTS
    return float((attended * gradients).sum()) / ALONG_TEXTS / apart - 1.0


def test_gradients_go_along_with_texts(monkeypatch):
    """Within 0.05 of 0.09 by sampled texts, which scatter by 0.015: 4 alarms in a thousand sets of texts."""
    shared = noise_scale(ALONG, text=ALONG_LAW).product["WV"][0]
    monkeypatch.setattr(text_groups.TextLayout, "likelier", lambda tokens, _: tokens.coincidences - 1.0)
    monkeypatch.setattr(text_groups.TextLayout, "attended_at_ends", lambda tokens, kernel, attended: attended)
    more = shared / noise_scale(ALONG, text=ALONG_LAW).product["WV"][0] - 1.0
    sampled = by_texts(3)
    assert sampled > 0.05
    assert more == pytest.approx(sampled, abs=0.05)


DRAWS = 250
NARROW = Stack(
    width=48, depth=1, tokens=2, vocab=256, placement="pre", branches="feed_forward", normalization="rms", ffn="gated",
    activation="silu", ffn_ratio=2.0, init_std=48**-0.5,
)  # fmt: skip
NARROW_LAW = TextLaw.zipf(1.0, NARROW.vocab)


def shared(stack: Stack, seed: int) -> dict[str, np.ndarray]:
    """|E g|² of one network over all words and labels of the law, by role and layer: what two sequences share."""
    generator, d = torch.Generator().manual_seed(seed), stack.width
    units, found = round(stack.ffn_ratio * d), {}

    def parameter(role: str, *shape: int) -> torch.Tensor:
        value = (torch.randn(shape, generator=generator) * d**-0.5).requires_grad_()
        found.setdefault(role, []).append(value)
        return value

    frequencies = torch.tensor(NARROW_LAW.frequencies, dtype=torch.float32)
    x = torch.randn((stack.vocab, d), generator=generator)
    for _ in range(stack.depth):
        y = rms_norm(x, (d,), eps=0.0)
        inner = silu(linear(y, parameter("WG", units, d))) * linear(y, parameter("W1", units, d))
        x = x + linear(inner, parameter("W2", d, units))
    logits = linear(rms_norm(x, (d,), eps=0.0), parameter("Wemb", stack.vocab, d))
    (-frequencies @ logits.log_softmax(-1) @ frequencies).backward()
    return {role: np.array([float(one.grad.square().sum()) for one in values]) for role, values in found.items()}


def test_what_sequences_share():
    """C of every matrix within 4 standard errors and 3% at d = 48, κ = 0.04."""
    draws = [shared(NARROW, seed) for seed in range(DRAWS)]
    theory = noise_scale(NARROW, text=NARROW_LAW).product
    for role in draws[0]:
        values = np.stack([draw[role] for draw in draws])
        mean, error = values.mean(0), values.std(0, ddof=1) / DRAWS**0.5
        assert (error < 0.04 * mean).all(), (role, error / mean)
        off = abs(np.atleast_1d(theory[role]) - mean)
        assert (off <= 4 * error + 0.03 * mean).all(), (role, theory[role] / mean, error / mean)
