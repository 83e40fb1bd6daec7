"""The loss of tied embeddings, whose logits hold the words, over thousands of tokens of distinct words.

A token knows its own word: its logit is σ_e √d h_i + z with h_i how much of the word the token holds, and its
probability is p. All other classes share 1 − p as those of a fresh matrix would. Labels are independent and uniform, so
that their means are known, and the own logit's fluctuation is integrated; the other logits are sampled.
"""

from dataclasses import dataclass

import numpy as np

from theory.mean_field.attention.grouped_patterns import root
from theory.mean_field.gaussian import normal_rule
from theory.mean_field.inputs import loss_count
from theory.mean_field.kernels import Array
from theory.mean_field.token_groups import GroupLayout, TokenMatrix, with_diagonal
from theory.stack import Stack

# Nodes per unit of a token's own logit.
_DENSITY = 2.5
# Numbers of a table of logits.
LARGEST_GROUPED_TABLE = 2**21


@dataclass(frozen=True, slots=True, eq=False)
class GroupedOutput:
    """The loss and its gradient in the logits, for one sample of the other words' logits in every entry of the batch.

    Attributes:
        loss: cross-entropy, (batch,).
        errors: Σ_v (p − t)_iv (p − t)_jv/P² over all columns, of one token and of two different ones, (batch, r, r).
        words: the mean of (p − t)/P in the columns of the tokens' words.
        own: the variance of that in one's own word's column, (batch, r).
    """

    loss: Array
    errors: Array
    words: TokenMatrix
    own: Array


def grouped_output(
    stack: Stack, tokens: GroupLayout, kernel: Array, stream: Array, generator: np.random.Generator
) -> GroupedOutput:
    """Loss and gradient at the logits of representatives.

    With τ the targets, uniform in the mean, E (p − τ)_i·(p − τ)_j is E p_i·p_j − 1/V for two tokens. The column of w_i
    adds p_i (1 − p_j)/(V − 1) to p_i·p_j, times E p_i e^z/(E p_i E e^z) of the other's correlated logit z.

    Args:
        stack: the network, with uniform labels.
        tokens: layout of its tokens.
        kernel: Q of the tokens that the output matrix is given, (batch, r, r).
        stream: how much of its word every token holds, (batch, r).
        generator: of the logits.
    """
    vocab, smoothing, count, scale = stack.vocab, stack.label_smoothing, loss_count(stack), stack.output_scale
    rows = kernel.shape[-1]
    overlaps, sums, highest = _other_words(scale * root(kernel), vocab - 1, generator)
    spread = scale * np.sqrt(np.linalg.diagonal(kernel))
    nodes, weights = normal_rule(_DENSITY * float(spread.max()))
    mean_logit = scale * stack.width**0.5 * stream
    logits = mean_logit[..., None] + spread[..., None] * nodes
    normalizer = np.logaddexp(logits, (highest + np.log(sums))[..., None])
    sure = np.exp(logits - normalizer)
    first, second = sure @ weights, sure**2 @ weights
    loss = (normalizer @ weights - mean_logit / vocab) @ tokens.sizes / tokens.count
    left = 1.0 - first
    # Given x_i, the other's logit of that word leans by b x.
    leaning = scale**2 * kernel / spread[..., :, None]
    tilted = np.exp(leaning[..., None] * nodes - leaning[..., None] ** 2 / 2)
    with_others = np.einsum("...in,n,...ijn->...ij", sure, weights, tilted) * left[..., None, :] / (vocab - 1)
    products = left[..., :, None] * left[..., None, :] * overlaps * (vocab - 2) / (vocab - 1)
    products = products + with_others + with_others.mT - 1.0 / vocab
    squares = second + (1.0 - 2.0 * first + second) * np.linalg.diagonal(overlaps)
    target = (1.0 - smoothing) ** 2 + smoothing * (2.0 - smoothing) / vocab
    errors = with_diagonal(products, squares - 2.0 / vocab + target) / count**2
    of_label = ((1.0 - smoothing + smoothing / vocab) ** 2 + (vocab - 1) * (smoothing / vocab) ** 2) / vocab
    mean = first - 1.0 / vocab
    own_square = second - 2.0 * first / vocab + of_label
    others = np.repeat((left / (vocab - 1) - 1.0 / vocab)[..., None], rows, axis=-1)
    words = TokenMatrix(tokens.sizes, others / count, (mean - others[..., 0]) / count)
    return GroupedOutput(loss, errors, words, (own_square - mean**2) / count**2)


def _other_words(factor: Array, words: int, generator: np.random.Generator) -> tuple[Array, Array, Array]:
    """Of sampled logits with a covariance's root: Σ_v π_iv π_jv of their softmaxes, Σ e^(a − a*), and a*."""
    batch, rows, _ = factor.shape
    highest, sums, products = np.full((batch, rows), -np.inf), np.zeros((batch, rows)), np.zeros_like(factor)
    size = max(1, LARGEST_GROUPED_TABLE // (batch * rows))
    for start in range(0, words, size):
        logits = factor @ generator.standard_normal((batch, rows, min(size, words - start)))
        top = np.maximum(highest, logits.max(-1))
        shrunk, weights = np.exp(highest - top), np.exp(logits - top[..., None])
        sums = sums * shrunk + weights.sum(-1)
        products = products * (shrunk[..., :, None] * shrunk[..., None, :]) + weights @ weights.mT
        highest = top
    return products / (sums[..., :, None] * sums[..., None, :]), sums, highest
