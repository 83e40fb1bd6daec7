"""How products of two tokens vary over texts, by how often their sequences hold the same words.

A kernel of text has counts of words at their mean. In two texts m and m' tokens long the share κ̂ of the pairs of one
word varies about κ = Σ_w f_w², as two sums of independent numbers and what is left of every pair:

    Var κ̂ = τ/m + τ/m' + (κ − κ² − 2τ)/(m m'),  τ = Σ_w f_w³ − κ²,

by 0.18 κ for Zipf's law on 512 words and 128 tokens, so that E Q_ij² is more than (E Q_ij)². Linear maps leave products
at their mean; units with Q_ij F(Q_ij) do not (`text_units.py`).

Weights follow the words up the stream: what x_i·x_j/d is moved by, a sum over pairs of tokens of weights u_ik u_jl. A
branch of attention makes of them A u, and of the words themselves √w A, with w what a word adds to a product; units
pass them by the slope of their kernel. Weights behind equally many attentions are alike, and kept as one.

A norm divides by a size that frequent words make larger too, and leaves of the two sums what angles vary by.

Assumes independent words (windows of 64 words of English captions have Var κ̂ 4% below), and even weights of attention:
those of h heads with patterns of their own are even in the mean to 1/h. Of two tokens of one sequence, whose texts are
in part the same, what varies is taken as that of two sequences.

Slopes of units and what norms leave are those of two tokens of one text, which are more alike than those of two texts:
the deeper, the more do products vary too much, by 1.4 in layer 4 of ReLU units and three times with gated ones that
are tied. By those of two texts variances behind the first layer are within 17% of sampled ones with ReLU (12 to 48
tokens) and up to a third too large with gated units, of whose matrices two sequences then share what they should within
6%; but then the other error that `text_groups` names is alone, and squares too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from theory.mean_field.kernels import Array, Number
from theory.mean_field.sublayers import Passed, SublayerState
from theory.mean_field.text_groups import TextLayout
from theory.stack.plan import Step
from theory.stack.weights import gain, weight_shapes

# Attentions whose weights are kept apart; behind more they are almost alike.
_MOST = 6


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weights of words behind as many attentions, of every place of a sequence.

    Attributes:
        each: on all tokens of a place together, (batch, r, r).
        itself: on its own token alone, (batch, r).
        whole: their sum, less what norms take of how it varies with the words of a text, (batch, r).
    """

    each: Array
    itself: Array
    whole: Array

    def times(self, factors: Array, left: Array | float = 1.0) -> Weights:
        """By every place so much, and of the sum what is left, (batch or 1, r)."""
        return Weights(self.each * factors[..., None], self.itself * factors, self.whole * factors * left)


@dataclass(frozen=True, slots=True, eq=False)
class WordWeights:
    """Those of the stream, of one of the sequences, which are all alike; by the number of attentions from 1."""

    behind: tuple[Weights, ...] = ()

    def variance(self, tokens: TextLayout, stream: Array) -> Array:
        """Of products of two tokens over texts, given whether they hold one word, over what both have, (..., 2 R, 2 R).

        Args:
            tokens: their layout.
            stream: kernel of the stream that has these weights, likewise; a norm of it leaves what angles vary by.
        """
        if not self.behind:
            return np.zeros_like(stream)
        law, seen = tokens.frequencies, _seen(tokens)
        same, triple = float((law**2).sum()), float((law**3).sum())
        first = triple - same**2
        left = max(same - same**2 - 2.0 * first, 0.0)
        each = np.stack([weights.each for weights in self.behind], 1) / np.sqrt(np.maximum(seen, 1.0))
        alone_weights, sums = (
            np.stack(parts, 1) for parts in zip(*((w.itself, w.whole) for w in self.behind), strict=True)
        )
        # Products of the weights of two numbers of attentions, in one axis: over all tokens, and of the own one.
        pairs = np.einsum("bpra,bqra->brpq", each, each).reshape(len(stream), len(seen), -1)
        alone, both, others = (_squares(part) for part in (alone_weights, sums, np.maximum(sums - alone_weights, 0.0)))
        # Of the pair of a row's own token and the column's it is given whether they hold one word.
        of_rows = (pairs - alone) @ both.mT + alone @ others.mT
        of_pairs = pairs @ pairs.mT - alone @ alone.mT
        places = tokens.generic % (2 * len(seen))
        of_rows, of_pairs = (part[:, places[:, None], places] for part in (of_rows + of_rows.mT, of_pairs))
        energies = np.linalg.diagonal(stream)
        both = energies[..., :, None] * energies[..., None, :]
        # What a token has more of frequent words is in its norm as well.
        angles = np.maximum(1.0 - np.maximum(tokens.any_words(stream), 0.0) / np.sqrt(both), 0.0)
        varying = (first * of_rows * angles**2 + left * of_pairs) / both
        return np.asarray(varying * (1.0 - np.eye(len(places))))

    def passed(self, step: Step, tokens: TextLayout, passed: Passed[Array]) -> WordWeights:
        """Those of the stream after a sub-layer; of two streams they are not known, and stay."""
        if not passed.insides:
            return self
        parts = [[weights.times(np.full((1, 1), step.residual))] for weights in self.behind]
        for inside in passed.insides:
            branch_weights = self._of_branch(inside, tokens)
            factor = inside.step.branch / _root(inside.made_scales, tokens)
            left = _left(inside.made_scales, tokens, inside.made)
            for number, weights in enumerate(branch_weights):
                parts += [[]] * (number == len(parts))
                parts[number] = [*parts[number], weights.times(factor, left)]
        inside = passed.insides[0]
        after, left = 1.0 / _root(inside.after_scales, tokens), _left(inside.after_scales, tokens, inside.total.kernel)
        return WordWeights(tuple(_added(each).times(after, left) for each in parts))

    def _of_branch(self, inside: SublayerState[Array], tokens: TextLayout) -> list[Weights]:
        """What a branch makes of them, by the number of attentions, before the norm of its output."""
        stack, seen = inside.step.stack, _seen(tokens)
        count = len(seen)
        given = inside.step.input_scale / _root(inside.given_scales, tokens)
        weights = [each.times(given, _left(inside.given_scales, tokens, inside.given)) for each in self.behind]
        if inside.step.kinds == ("units",):
            slopes, _ = inside.pullback(np.ones_like(inside.given), None)
            slopes = np.sqrt(np.maximum(_beside(slopes, tokens), 0.0))
            return [each.times(slopes) for each in weights]
        size = gain(stack, "WV") * (gain(stack, "WO") if "WO" in weight_shapes(stack) else 1.0)
        # A word adds as much to the product of two tokens that hold it, beside what these have seen of themselves.
        added = np.linalg.diagonal(tokens.of_words(inside.given)[0])[..., :count]
        added = added - sum(np.square(each.itself) for each in weights)
        word = np.sqrt(np.maximum(added, 0.0))
        all_seen = seen.sum(-1, keepdims=True)
        even, alone = seen / all_seen, 1.0 / all_seen[:, 0]
        words = Weights(word[..., None] * np.eye(count), word, word)
        moved = [
            Weights(even @ each.each, alone * each.itself, (even @ each.whole[..., None])[..., 0])
            for each in (words, *weights)
        ]
        if len(moved) > _MOST:
            moved[-2:] = [_added(moved[-2:])]
        return [each.times(np.full((1, 1), size**0.5)) for each in moved]


def _added(parts: Sequence[Weights]) -> Weights:
    """The weights of several ways that are alike, of which products of two tokens add up."""
    fields = zip(*((weights.each, weights.itself, weights.whole) for weights in parts), strict=True)
    return Weights(*(np.sqrt(sum(np.square(part) for part in each)) for each in fields))


def _seen(tokens: TextLayout) -> Array:
    """How many tokens of a place one of another sees, (r, r)."""
    count = len(tokens.probes) // tokens.sequences
    return np.asarray(tokens.seen[:count, :count])


def _beside(kernel: Array, tokens: TextLayout) -> Array:
    """Entries of a place and the next one, which hold other words, (batch, r)."""
    count = len(tokens.probes) // tokens.sequences
    return np.asarray(kernel[..., range(count), tokens.neighbours[:count]])


def _root(scales: Number, tokens: TextLayout) -> Array:
    """What a norm divides tokens by, (batch or 1, r)."""
    count = len(tokens.probes) // tokens.sequences
    if isinstance(scales, float):
        return np.full((1, count), scales**0.5)
    return np.asarray(np.sqrt(np.linalg.diagonal(scales)[..., :count]))


def _left(scales: Number, tokens: TextLayout, kernel: Array) -> Array | float:
    """What a norm leaves of how a token's products vary with how frequent its words are, which its size does too."""
    if isinstance(scales, float):
        return 1.0
    energies = np.linalg.diagonal(kernel)[..., : len(_seen(tokens))]
    return np.asarray(np.clip(1.0 - _beside(kernel, tokens) / energies, 0.0, 1.0))


def _squares(sums: Array) -> Array:
    """Products of every two of numbers (batch, p, r), in one axis: (batch, r, p²)."""
    return np.einsum("bpr,bqr->brpq", sums, sums).reshape(len(sums), sums.shape[-1], -1)
