"""The loss with tied embeddings on random text, where the logits of a position depend on its own token id.

A token's own word has the logit σ_e √d h_i + z, with z ~ N(0, σ_e² Q_ii), and the probability p_i. The label of a
position is the next word. So it may be the position's own word, and a position's label may be the word of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from theory.mean_field.gaussian import SoftmaxOverlap, cross_entropy
from theory.mean_field.gaussian_interpolation import values_at
from theory.mean_field.inputs import loss_count
from theory.mean_field.kernels import Array
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.tied.hermite import gaussian_nodes, pair_means, shifted_means
from theory.stack import Stack

LARGEST_OWN_PROBABILITY = 0.25
"""The largest mean probability of a position's own word for which texts are predicted.

The known part of other tokens' gradients also acts through attention. This effect is neglected; it grows with this
probability (docs/report.md).
"""


@dataclass(frozen=True, slots=True, eq=False)
class TextOutput:
    """The loss, and the inner products of its gradients with respect to the logits of two positions.

    Here r_iv = (p − t)_iv/P, and e_i is r_iv in the column v of token i's own word.

    Attributes:
        loss: cross-entropy in nats, (batch,).
        errors: E Σ_v r_iv r_jv, (batch, 2 R, 2 R).
        own: E e_i e_j, (batch, 2 R, 2 R).
        others: E r_iv e_j with v the word of j, if i has another word; else 0. (batch, 2 R, 2 R).
        crossed: E r_iv r_jw with v the word of j and w that of i, if they differ; else 0. (batch, 2 R, 2 R).
    """

    loss: Array
    errors: Array
    own: Array
    others: Array
    crossed: Array


class OwnTokenError(ValueError):
    """An error: a tied network predicts the positions' own tokens too often for a rule for its gradients.

    Attributes:
        probability: mean probability of a position's own token.
        loss: expected loss, which has a rule.
    """

    def __init__(self, message: str, probability: float, loss: float) -> None:
        super().__init__(message)
        self.probability, self.loss = probability, loss


def own_logits(stack: Stack, energies: Array, held: Array) -> tuple[Array, Array, Array]:
    """Return the mean logit of a position's own word, its probability at the Gaussian nodes, and the log normalizer.

    Args:
        stack: the network.
        energies: mean squares of the output matrix's input, (batch, 2 R).
        held: coefficient of every token on its own word, (batch, 2 R).
    """
    nodes, weights = gaussian_nodes()
    scale, vocab = stack.output_scale, stack.vocab
    all_others = values_at(lambda q: cross_entropy(scale * q**0.5, vocab), energies) + np.log1p(-1.0 / vocab)
    mean_logit = scale * stack.width**0.5 * held
    logits = mean_logit[..., None] + scale * np.sqrt(energies)[..., None] * nodes
    return mean_logit, expit(logits - all_others[..., None]), np.logaddexp(logits, all_others[..., None]) @ weights


def loss_of_labels(stack: Stack, tokens: TextLayout, mean_logit: Array, normalizer: Array) -> Array:
    """Return the expected cross-entropy, (batch,), where a label may be the position's own word."""
    label = (1.0 - stack.label_smoothing) * np.diagonal(tokens.labels.own) + stack.label_smoothing / stack.vocab
    return np.asarray((normalizer - label * mean_logit) @ tokens.sizes / tokens.count)


def text_output(stack: Stack, tokens: TextLayout, kernel: Array, held: Array, same_label: Array) -> TextOutput:
    """Return the expected loss, and the products of its gradients at two positions' logits, averaged over texts.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        kernel: Q, kernel of the output matrix's input, (batch, 2 R, 2 R).
        held: coefficient of every token on its own word, (batch, 2 R).
        same_label: probability that two labels agree, (batch, 2 R, 2 R).

    Raises:
        OwnTokenError: the softmax gives positions' own words too large a probability.
    """
    vocab, smoothing, scale = stack.vocab, stack.label_smoothing, stack.output_scale
    certain, count = 1.0 - smoothing, loss_count(stack)
    energies = np.linalg.diagonal(kernel)
    roots = np.sqrt(energies)
    correlation = np.clip(kernel / (roots[..., :, None] * roots[..., None, :]), -1.0, 1.0)
    mean_logit, sure, normalizer = own_logits(stack, energies, held)
    weights = gaussian_nodes()[1]
    same, chances = tokens.one_word, tokens.labels
    loss = loss_of_labels(stack, tokens, mean_logit, normalizer)
    first = sure @ weights
    if (surely := float((first @ tokens.sizes).max()) / tokens.count) > LARGEST_OWN_PROBABILITY:
        raise OwnTokenError(_too_sure(tokens, scale, surely), surely, float(loss.mean()))
    left = 1.0 - first
    both = pair_means(sure, correlation)
    overlap = tokens.gaussian(SoftmaxOverlap(scale, vocab), kernel) * (vocab / (vocab - 1.0))
    pairs = first[..., :, None] + first[..., None, :]
    # Of one word: both are as sure of it, and both labels may be that word.
    of_label = first[..., :, None] * chances.own.T + left[..., :, None] * (1.0 - chances.own.T) / (vocab - 1)
    alike = both + (1.0 - pairs + both) * overlap - certain * (of_label + of_label.mT)
    # Of two words: in the column of its word the other's logit leans as its tokens do, or the other's label is it.
    with_others = shifted_means(sure, scale * kernel / roots[..., :, None]) * left[..., None, :] / (vocab - 1)
    apart = (
        left[..., :, None] * left[..., None, :] * overlap * (vocab - 2.0) / (vocab - 1) + with_others + with_others.mT
    )
    # Of the label of j: it is the word of i, or another one.
    hit = first[..., :, None] * chances.hits + left[..., :, None] * (1.0 - chances.hits) / (vocab - 1)
    apart = apart - certain * (hit + hit.mT)
    targets = same_label * certain**2 + (smoothing * (2.0 - smoothing) - 2.0 * smoothing) / vocab
    errors = np.where(same > 0, alike, apart) + targets
    own_columns, others, crossed = _in_own_columns(stack, tokens, first, both)
    return TextOutput(loss, errors / count**2, own_columns / count**2, others / count**2, crossed / count**2)


def _in_own_columns(stack: Stack, tokens: TextLayout, first: Array, both: Array) -> tuple[Array, Array, Array]:
    """Return the products `own`, `others` and `crossed` of `TextOutput`, times P².

    Args:
        stack: the network.
        tokens: layout of its tokens.
        first: mean probability of a position's own word, (batch, 2 R).
        both: mean product of two such probabilities, (batch, 2 R, 2 R).
    """
    vocab, smoothing, same, chances = stack.vocab, stack.label_smoothing, tokens.one_word, tokens.labels
    certain, left = 1.0 - smoothing, 1.0 - first
    target = certain * chances.own + smoothing / vocab
    square = certain**2 * chances.both + smoothing / vocab * (target + target.T - smoothing / vocab)
    crossed_own = first[..., :, None] * target.T
    mean = first[..., :, None] - target
    of_own = np.where(same > 0, both - crossed_own - crossed_own.mT + square, mean * mean.mT)
    column = left / (vocab - 1) - smoothing / vocab
    unlabelled = (first - smoothing / vocab)[..., None, :]
    others = column[..., :, None] * mean.mT
    others = others - certain * (chances.hits.mT * unlabelled - certain * chances.hits_twice.mT)
    of_each = column[..., :, None] * certain * chances.hits
    crossed = column[..., :, None] * column[..., None, :] - of_each - of_each.mT + certain**2 * chances.crossed
    return of_own, np.where(same > 0, 0.0, others), np.where(same > 0, 0.0, crossed)


def _too_sure(tokens: TextLayout, scale: float, chance: float) -> str:
    """Return the error message for a softmax that gives positions' own words too large a probability."""
    given, way_out = "a text", "windows=text.windows(...) predicts texts that are given"
    if not tokens.repeats.any():
        given, way_out = "groups of tokens", "fewer tokens, or grouped=False, predict every token by itself"
    return (
        f"tied embeddings must give a position's own token id a probability of at most {LARGEST_OWN_PROBABILITY:g} for "
        f"{given}, got {chance:.2g} at a logit scale of {scale:.2g}; {way_out}. A smaller output_scale or "
        "embedding_scale, or untied embeddings, lowers it."
    )
