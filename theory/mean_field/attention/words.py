"""Repeated token ids in attention by representatives: their keys, their share of a row's sums, and their values.

A token's key is what all have in common, what its word adds, and its own. All tokens of a word lean to a query
together, so that a sum over n keys varies like one over 1/κ words, and a word that weighs much is a share of its own
sum.
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
    """Sampled shares of words of what a row sees.

    Attributes:
        tokens: the layout of all sequences.
        of_two: weights of a probe where another token of a row's sequence is known to hold its word, blocks
            (batch, heads, samples, S, 2 r, r).
        held: the share of a probe's word in a row's sums that hold a probe, likewise.
        changes: by how much what a logit changes is less where two tokens are known to hold that word, likewise.
        others: how many of the tokens that a row sees hold the word of another one, times the ratio of their mean
            weight to its own, (..., S, 2 r, 2 r).
    """

    tokens: TextLayout
    of_two: Array
    held: Array
    changes: Array
    others: Array


def probe_weights(
    tokens: TextLayout, weights: Array, holding: Array, again: Array, generator: np.random.Generator
) -> tuple[Array, Array, WordShares]:
    """Sums that hold a token once, where words repeat; weights of probes over theirs; and shares of words.

    Args:
        tokens: the layout of all sequences.
        weights: unnormalized ones of one token, blocks (batch, heads, samples, S, 2 r, 2 r).
        holding: of each token their sum over what a row sees, with that token in it and all of other words, likewise.
        again: the mean weight of another token of the same word, given a token's, likewise.
        generator: of words.
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
    """By how much more of the same two rows of two sequences see, given whether they hold one word.

    Of what their words make, and not of what places do that they have in common, with the squares of both. Gradients of
    rows that hold one word do not go along with how often texts repeat words, which makes their sizes larger too.

    Args:
        tokens: the layout of all sequences.
        kernel: of what attention is given.
        coincidences: how much likelier two rows see one word, as positions turn it, (2 R, 2 R).
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
    share = np.divide(words, whole_square, out=np.ones_like(words), where=whole_square > 0)
    root = np.sqrt(share)
    excess = (coincidences - 1.0) * root[..., :, None] * root[..., None, :]
    return np.asarray(np.where(tokens.one_sequence, 1.0, 1.0 + excess))
