"""Tied embeddings on random text: a gradient with overlaps, by representatives of text.

What is known of a token's gradient is along its own stream and its own word, with coefficients in proportion to one
random number, the error e_i = (p − t)_i in the column of that word:

    g_i = e_i (a_i x_i + b_i w_i)/√d + noise,

so that products are entrywise in the products E e_i e_j of either class of pairs. All else is noise here: labels, the
words of others, and what attention brings of other tokens. Labels are words, so that a token's gradient overlaps with
the tokens of other words by b_i r_iv, with r_iv its error in the column of that word.

Assumes d → ∞ as `gradient` does, and many tokens. Left out are relative O(1/n) and what a certain gradient at the
logits of attention brings (`docs/first_step.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from theory.mean_field.kernels import Array, Number
from theory.mean_field.outputs import loss_variance
from theory.mean_field.passes import Backward, Forward
from theory.mean_field.sublayers import (
    Overlaps,
    SquaredNorms,
    SublayerState,
    of_norm,
    scaled_overlaps,
    summed_overlaps,
    with_more,
)
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.tied.text_branches import below_attention, below_units
from theory.mean_field.tied.text_output import TextOutput, text_output
from theory.mean_field.tied.walk import held_words, norm_overlaps, norm_root, walk_down
from theory.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a gradient is: kernel of the stream, (batch, 2 R, 2 R), and how much of its word every token holds."""

    kernel: Array
    held: Array


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient on its way back.

    Attributes:
        tokens: their layout.
        output: products of errors.
        noise: kernel of what is orthogonal to all else, (batch, 2 R, 2 R).
        stream: coefficients a, of a unit of error, (batch, 2 R).
        words: coefficients b.
    """

    tokens: TextLayout
    output: TextOutput
    noise: Array
    stream: Array
    words: Array

    def kernel(self, place: Place) -> Array:
        """g_i·g_j."""
        across = _products(self.stream * place.held, self.words)
        across = (self.tokens.one_word * self.output.own + self.output.others.mT) * across
        along = _products(self.stream, self.stream) * place.kernel
        along = along + self.tokens.one_word * _products(self.words, self.words)
        return self.noise + self.output.own * along + across + across.mT

    def along(self, place: Place) -> Array:
        """g_i·x_j/√d of a unit of i's error, (batch, 2 R, 2 R)."""
        return self.stream[..., :, None] * place.kernel + self.tokens.one_word * _products(self.words, place.held)

    def below_norm(self, place: Place, scales: Number) -> Gradient:
        """The gradient at a place above which a norm divides by these scales; 1 if there is none."""
        if isinstance(scales, float):
            return self
        size = norm_root(scales)
        stream = self.stream / size
        along = stream * np.linalg.diagonal(place.kernel) + self.words * place.held
        return replace(
            self, noise=self.noise / scales, stream=(stream - along / size**2) / size, words=self.words / size
        )

    def of_norm(self, stack: Stack, tokens: TextLayout, place: Place, scales: Number) -> SquaredNorms:
        """What that norm's gains and biases have of the gradient above it, as in `gradient`."""
        if isinstance(scales, float) or not tokens.apart:
            return {}
        size = norm_root(scales)
        above = self.above_norm(size)
        along = above.along(place) / size[..., None, :]
        removed = np.linalg.diagonal(along)
        squares = of_norm(stack, tokens, above.kernel(place), place.kernel / scales)
        # Two words: what the gradient of each has of the other's.
        word_sizes = place.held / size
        of_words = self.output.others.mT * above.stream[..., :, None] * place.kernel / size[..., None, :]
        of_words = of_words * _products(word_sizes, self.words)
        of_words = (
            of_words + of_words.mT + self.output.crossed * _products(word_sizes * self.words, word_sizes * self.words)
        )
        coherent = tokens.total(self.output.own * (_products(removed, removed) + along * along.mT) + of_words)
        return with_more(squares, {"gain": coherent / (stack.width * stack.norm_gain**2)})

    def above_norm(self, size: Array) -> Gradient:
        """By the tokens that the norm is given."""
        return replace(self, stream=self.stream / size)


def text_tied_backward(stack: Stack, tokens: TextLayout, same_label: Array, forward: Forward[Array]) -> Backward[Array]:
    """The way down, in the mean over texts.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        same_label: the chance that two labels agree, (batch, 2 R, 2 R).
        forward: the way up, of kernels (batch, 2 R, 2 R).
    """
    ones, sigma = np.ones(forward.output.shape[:-1]), stack.output_scale
    word_sizes = held_words(stack, forward, ones)
    last_words = word_sizes[-1] / norm_root(forward.output_scales)
    output = text_output(stack, tokens, forward.output, last_words, same_label)
    noise = sigma**2 * (output.errors - tokens.one_word * output.own)
    top = Gradient(tokens, output, noise, 0.0 * ones, sigma * ones)
    down = walk_down(
        stack, tokens, forward, top, word_sizes, lambda stream, sizes: Place(stream.kernel, sizes), _below_sublayer
    )
    gradient, below = down.gradient, down.below
    across = down.across + gradient.along(below) * down.remains[..., None, :]
    bottom = gradient.kernel(below)
    into = stack.embedding_scale / sigma
    # In the column of a word: its errors, and the gradients of the inputs that hold it.
    product = tokens.one_word * output.own * across + output.others.mT * across
    product = product + output.crossed * _products(gradient.words, last_words)
    embedding = tokens.total(forward.output * output.errors) + 2.0 * into * tokens.total(product)
    return Backward(
        loss=output.loss,
        output=sigma**2 * output.errors,
        total=down.at_total,
        inputs=bottom,
        embedding=embedding + into**2 * tokens.total(tokens.one_word * bottom),
        energies=down.energies,
        loss_variance=_loss_variance(stack, tokens, forward.output, last_words, same_label) if tokens.apart else None,
    )


def _below_sublayer(
    gradient: Gradient, overlaps: Overlaps[Array], total: Place, below: Place,
    branches: Sequence[SublayerState[Array]],
) -> tuple[Gradient, Overlaps[Array], Array, SquaredNorms]:  # fmt: skip
    """Before a sub-layer, as in `gradient`; what has left the stream there is along what branches added."""
    inside, tokens = branches[0], gradient.tokens
    alpha, kappa, arriving = inside.step.residual, inside.step.input_scale, gradient.kernel(total)
    direct, energies, left = gradient.noise, SquaredNorms(), 0.0 * gradient.noise
    noises, parts = [], []
    for branch in branches:
        # All but what the branch made is noise to it, what other branches made too; what it made is noise below it.
        tau = branch.step.branch
        stream = gradient.stream * tau
        within = gradient.output.own * _products(stream, stream) * branch.added
        noise, part, of_branch = _below_branch(gradient, arriving - within, overlaps, branch)
        noises.append(noise)
        parts.append(part)
        energies |= of_branch
        direct = direct + within
        left = left + alpha * tau * stream[..., :, None] * branch.added
    if inside.step.learned:
        kernels = reduce(add, (branch.added for branch in branches))
        energies["scalar"] = tokens.total(kernels * arriving) / inside.step.stack.width
    noise, part = reduce(add, noises), reduce(add, parts)
    given = replace(gradient, noise=kappa**2 * noise, stream=kappa**2 * part, words=0.0 * part)
    energies = with_more(energies, given.of_norm(inside.step.stack, tokens, below, inside.given_scales))
    overlaps = summed_overlaps(scaled_overlaps(overlaps, alpha**4), norm_overlaps(given, below, inside.given_scales))
    given = given.below_norm(below, inside.given_scales)
    passed = replace(
        gradient,
        noise=alpha**2 * direct + given.noise,
        stream=alpha**2 * gradient.stream + given.stream,
        words=alpha * gradient.words,
    )
    return passed, overlaps, left, energies


def _below_branch(
    gradient: Gradient, others: Array, overlaps: Overlaps[Array], inside: SublayerState[Array]
) -> tuple[Array, Array, SquaredNorms]:
    """What one branch brings back: noise and coefficients at what it is given, and its energies."""
    step, tau, none = inside.step, inside.step.branch, 0.0 * gradient.words
    arrived = replace(gradient, noise=tau**2 * others, stream=tau**2 * gradient.stream, words=none)
    place = Place(inside.made, none)
    of_branch = norm_overlaps(arrived, place, inside.made_scales) or scaled_overlaps(overlaps, tau**4)
    of_norms = arrived.of_norm(step.stack, gradient.tokens, place, inside.made_scales)
    arrived = arrived.below_norm(place, inside.made_scales)
    errors = gradient.output.own
    if step.kinds == ("units",):
        below = below_units(step.stack, gradient.tokens, arrived.noise, arrived.stream, errors, inside)
    else:
        below = below_attention(step.stack, gradient.tokens, arrived.noise, arrived.stream, errors, inside, of_branch)
    return *below[:2], with_more(below[2], of_norms)


def _loss_variance(stack: Stack, tokens: TextLayout, kernel: Array, word_sizes: Array, same_label: Array) -> Array:
    """As of untied embeddings, and by how often a label is the position's own word, whose logit has a mean."""
    logits, chances = stack.output_scale * stack.width**0.5 * word_sizes, np.diagonal(tokens.labels.own)
    by_text = np.eye(len(chances)) * (logits**2 * chances * (1.0 - chances))[..., None]
    of_weights = np.asarray(loss_variance(stack, tokens, kernel, same_label))
    return of_weights + tokens.total(by_text) / stack.rows**2


def _products(first: Array, other: Array) -> Array:
    """f_i h_j."""
    return first[..., :, None] * other[..., None, :]
