"""What repeated words are to attention by representatives: their keys, their share of a row's sums, and their values.

A token's key is what all have in common, what its word adds, and its own. All tokens of a word lean to a query
together, so that a sum over n keys varies like one over 1/κ words, and a word that weighs much is a share of its own
sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array
from theory.mean_field.text_groups import TextLayout

_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class WordShares:
    """Sampled shares of words of what a row sees, (batch, heads, samples, 2 R, 1), of R probes.

    Attributes:
        held: the share of the probes' word in a row's sums, where one token is known to hold it.
        changes: by how much what a logit changes is less where two tokens are known to hold it.
        others: how many of the tokens that a row sees hold the word of a token beside it.
    """

    held: Array
    changes: Array
    others: Array


def probe_weights(
    tokens: TextLayout, weights: Array, total: Array, holding: Array, again: Array, generator: np.random.Generator
) -> tuple[Array, Array, WordShares]:
    """Sums that hold a token once, where words repeat; weights of probes over theirs; and shares of words.

    Args:
        tokens: the layout.
        weights: unnormalized ones of one token, (batch, heads, samples, 2 R, 2 R).
        total: their sums over what a row sees, with every token of another word, (..., 2 R, 1).
        holding: the same of each token, with that token in them, (..., 2 R, 2 R).
        again: the mean weight of another token of the same word, given a token's, likewise.
        generator: of words.
    """
    of_word = (tokens.seen[:, tokens.beside] * weights[..., tokens.probes]).sum(-1, keepdims=True)
    others, *shares = tokens.sampled_shares(generator, weights.shape[:3])
    # Of other words than a probe's in this sample: the words of a text make sums vary.
    others_words = of_word.shape[2] - 1
    words = (of_word.sum(2, keepdims=True) - of_word) / others_words
    varying = np.minimum(tokens.varying * others_words**0.5, 1.0)
    total, holding = (part + varying * (words - part) for part in (total, holding))
    holding = holding + others * (tokens.seen_all * again - holding)
    sums = [total + share * (of_word - total) for share in shares]
    of_one, of_two = (share * of_word / whole for share, whole in zip(shares, sums, strict=True))
    changes = sums[0] * (1.0 - of_two) / (sums[1] * np.maximum(1.0 - of_one, _TINY))
    return holding, weights[..., tokens.probes] / sums[0], WordShares(of_one, changes, others * tokens.seen_all)
