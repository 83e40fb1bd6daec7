"""The effect of repeated token ids on attention, if a few representative tokens replace all tokens.

A token's key is the sum of a part common to all tokens, a part of its word (token id), and its own part. All tokens
of a word lean to a query together. So a sum over n keys varies like one over 1/κ words, and a word with a large
weight is a noticeable share of its own sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array
from theory.mean_field.sequence_blocks import rows
from theory.mean_field.text_groups import TextLayout

_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class WordShares:
    """The sampled share of a token id among the tokens to which a query attends.

    Attributes:
        tokens: layout of all sequences.
        of_two: weights of a probe where another token of a row's sequence is known to have its id, blocks
            (batch, heads, samples, S, 2 r, r).
        held: share of a probe's id in a row's sums that contain a probe, with the shape of `of_two`.
        changes: factor on the effect of a logit where two tokens are known to have that id, which is smaller there,
            with the shape of `of_two`.
        others: number of the tokens seen by a row that share another one's id, times the ratio of their mean weight
            to its own, (..., S, 2 r, 2 r).
    """

    tokens: TextLayout
    of_two: Array
    held: Array
    changes: Array
    others: Array


def probe_weights(
    tokens: TextLayout, weights: Array, holding: Array, again: Array, generator: np.random.Generator
) -> tuple[Array, Array, WordShares]:
    """Return the attention weights of texts in which token ids repeat, and the shares of the repeated ids.

    The first result is weight sums, which contain a token exactly once. The second is the weights of probes:
    representatives that share one token id.

    Args:
        tokens: layout of all sequences.
        weights: unnormalized weights of one token, blocks (batch, heads, samples, S, 2 r, 2 r).
        holding: for each token the weight sum over the tokens that a row sees, with that token included and all
            others of other words, with the shape of `weights`.
        again: mean weight of another token of the same word, given a token's weight, with the shape of `weights`.
        generator: random generator of the words.
    """
    layout = tokens.one
    probes, beside, seen = layout.probes, layout.beside, np.maximum(layout.seen_all, 1.0)
    weight = weights[..., probes]
    of_word = (layout.seen[:, beside] * weight).sum(-1, keepdims=True)
    of_token, of_pair = (rows(share, tokens.sequences) for share in tokens.sampled_shares(generator, weights.shape[:3]))
    rest = 1.0 - 1.0 / seen
    # In place of the token beside it.
    with_probe = np.maximum(holding[..., beside] - weights[..., beside], 0.0) + weight
    # Of other words than a probe's in this sample: the words of a text make sums vary.
    samples = of_word.shape[2] - 1
    words = (of_word.sum(2, keepdims=True) - of_word) / samples
    varying = np.minimum(layout.varying * samples**0.5, 1.0)
    with_probe, holding = (part + varying * (words - part) for part in (with_probe, holding))
    holding = holding + of_token * ((seen - 1.0) * again - (holding - weights))
    # Of the other tokens of a row, beside the one token that is known; where two are, with the other layout.
    shares = of_pair, (1.0 + np.maximum(seen - 2.0, 0.0) * of_pair) / np.maximum(seen - 1.0, 1.0)
    sums = [np.maximum(with_probe + share * (of_word - with_probe), _TINY) for share in shares]
    of_one, of_two = (
        np.minimum((weight + rest * share * of_word) / whole, 1.0) for share, whole in zip(shares, sums, strict=True)
    )
    changes = sums[0] * (1.0 - of_two) / (sums[1] * np.maximum(1.0 - of_one, _TINY))
    ratio = np.divide(again, weights, out=np.zeros_like(weights), where=weights > 0)
    others = of_token * rest * layout.seen_all * ratio
    return holding, weight / sums[0], WordShares(tokens, weight / sums[1], of_one, changes, others)


def rows_of_words(tokens: TextLayout, kernel: Array, coincidences: Array) -> Array:
    """Return the factor by which equal ids of two tokens change the products of their attention rows.

    The shape is (..., 2 R, 2 R).

    Rows of two sequences with one id see more of the same words. The factor applies to the words' part of the
    products, and not to the part common to positions, with the squares of both. Gradients of rows that share an id do
    not vary with how often texts repeat words, because this makes their sizes larger too.

    Args:
        tokens: layout of all sequences.
        kernel: kernel of attention's input.
        coincidences: how much likelier two rows see one word, under rotary positions, (2 R, 2 R).
    """
    if tokens.sequences == 1:
        return np.ones((1, 1))
    places, same = tokens.same_places()[0]
    of_word = np.zeros(kernel.shape[:-1])
    of_word[..., tokens.probes] = of_word[..., tokens.beside] = np.linalg.diagonal(tokens.of_words(kernel)[0])
    of_place = kernel[..., places, same] - tokens.across_tokens(kernel, tokens.neighbours)[..., places, same]
    of_place = of_place[..., tokens.generic]
    words = tokens.repeats[0, -1] * np.square(of_word)
    whole_square = words + np.square(of_place) / np.maximum(tokens.seen_all[:, 0], 1.0)
    root = np.sqrt(np.divide(words, whole_square, out=np.ones_like(words), where=whole_square > 0))
    excess = (coincidences - 1.0) * root[..., :, None] * root[..., None, :]
    return np.asarray(np.where(tokens.one_sequence, 1.0, 1.0 + excess))
