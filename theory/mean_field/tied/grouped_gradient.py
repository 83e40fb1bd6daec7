"""Tied embeddings over thousands of tokens: a gradient with overlaps, by representatives of groups of tokens.

The state is that of `gradient`, g_i = Σ_p M_ip x_p/√d + Σ_p C_ip w_p/√d + noise, and quadratic in it. Words are
distinct, so that w_i·w_p is 1 for a token with itself and 0 else, and C is the error (p − t) in the words' columns:
large at a token's own word, and elsewhere as small as in every other column. So over the logits

    C_ip = C̄_ip + δ_ip c_i,

with c of different tokens independent, and what the errors in the other words' columns vary by is noise. Of the mean
all rules hold, in sums over tokens that hold a smooth entry as often as a group has tokens and one of a token with
itself once (`TokenMatrix`). Of c every token has a coefficient of its own on its stream and on its word, which norms
and units change; a sum over other tokens holds their variance once for each, and no product of two. Behind attention,
where the variation of one token reaches many, it is noise of the same size.

Assumes d → ∞ as `gradient` does, and n large: for few tokens what is known of that variation matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from theory.mean_field.kernels import Array, Number
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
from theory.mean_field.tied.grouped_branches import below_attention, below_units
from theory.mean_field.tied.grouped_output import grouped_output
from theory.mean_field.tied.walk import norm_overlaps, norm_root
from theory.mean_field.token_groups import GroupLayout, TokenMatrix
from theory.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a gradient is: kernel of the stream, (batch, r, r), and how much of its word every token holds."""

    kernel: Array
    held: Array


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient on its way back.

    Attributes:
        tokens: their layout.
        noise: kernel of what is orthogonal to all else, (batch, r, r).
        stream: mean coefficients M on the stream's tokens.
        words: mean coefficients C on the words.
        own_stream: coefficient of each token on its own stream, for a variation of its error by one standard deviation,
            (batch, r).
        own_words: the same on its word.
    """

    tokens: GroupLayout
    noise: Array
    stream: TokenMatrix
    words: TokenMatrix
    own_stream: Array
    own_words: Array

    def kernel(self, place: Place) -> Array:
        """g_i·g_j."""
        across = self.stream @ self.words.mT.rows(place.held)
        within = self.stream @ self.tokens.matrix(place.kernel) @ self.stream.mT + self.words @ self.words.mT
        square = np.linalg.diagonal(place.kernel) * self.own_stream**2 + self.own_words**2
        square = square + 2.0 * self.own_stream * self.own_words * place.held
        return self.noise + (within + across + across.mT).plus_diagonal(square).kernel

    def along(self, place: Place) -> tuple[TokenMatrix, Array]:
        """g_i·x_j/√d in the mean, and g_i·x_i/√d for a standard deviation of a token's error."""
        certain = self.stream @ self.tokens.matrix(place.kernel) + self.words.columns(place.held)
        return certain, self.own_stream * np.linalg.diagonal(place.kernel) + self.own_words * place.held

    def below_norm(self, place: Place, scales: Number) -> Gradient:
        """The gradient at a place above which a norm divides by these scales; 1 if there is none."""
        if isinstance(scales, float):
            return self
        size = norm_root(scales)
        above = self.above_norm(size)
        certain, varying = above.along(place)
        stream = above.stream.plus_diagonal(-certain.diagonal / size**2).rows(1.0 / size)
        own_stream = (above.own_stream - varying / size**2) / size
        return Gradient(
            self.tokens, self.noise / scales, stream, self.words.rows(1.0 / size), own_stream, self.own_words / size
        )

    def of_norm(self, stack: Stack, place: Place, scales: Number) -> SquaredNorms:
        """What that norm's gains and biases have of the gradient above it, as in `gradient`."""
        if isinstance(scales, float) or not self.tokens.apart:
            return {}
        size, tokens = norm_root(scales), self.tokens
        above = self.above_norm(size)
        certain, varying = above.along(place)
        along, varying = certain.columns(1.0 / size), varying / size
        removed, crossed = along.diagonal, along.kernel * along.mT.kernel
        squares = of_norm(stack, tokens, above.kernel(place), place.kernel / scales)
        itself = 2.0 * np.eye(len(tokens.sizes)) * varying[..., None] ** 2
        coherent = tokens.total(removed[..., :, None] * removed[..., None, :] + crossed + itself)
        return with_more(squares, {"gain": coherent / (stack.width * stack.norm_gain**2)})

    def above_norm(self, size: Array) -> Gradient:
        """By the tokens that the norm is given."""
        stream, own_stream = self.stream.columns(1.0 / size), self.own_stream / size
        return Gradient(self.tokens, self.noise, stream, self.words, own_stream, self.own_words)


@dataclass(frozen=True, slots=True, eq=False)
class _Across:
    """x_j·g_i/√d of tokens at the output and a gradient: in the mean, and a token's own by its error."""

    certain: TokenMatrix
    own: Array

    def rows(self, factors: Array) -> _Across:
        return _Across(self.certain.rows(factors), self.own * factors)

    def columns(self, factors: Array) -> _Across:
        return _Across(self.certain.columns(factors), self.own * factors)

    def times(self, factor: float) -> _Across:
        return _Across(self.certain * factor, self.own * factor)

    def __add__(self, other: _Across) -> _Across:
        return _Across(self.certain + other.certain, self.own + other.own)


def grouped_tied_backward(
    stack: Stack, tokens: GroupLayout, forward: Forward[Array], generator: np.random.Generator
) -> Backward[Array]:
    """The way down, for a sample of the logits of every entry of the batch.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        forward: the way up, of kernels (batch, r, r).
        generator: of logits and samples of activations.
    """
    insides = forward.insides
    ones = np.ones(forward.output.shape[:-1])
    word_sizes = [stack.embedding_scale * ones]
    for inside, *_ in insides:
        word_sizes.append(word_sizes[-1] * inside.step.residual / norm_root(inside.after_scales))
    scales, sigma = forward.output_scales, stack.output_scale
    remains = ones / norm_root(scales)
    output = grouped_output(stack, tokens, forward.output, word_sizes[-1] * remains, generator)
    deviation = np.sqrt(output.own)
    zeros = TokenMatrix(tokens.sizes, 0.0 * forward.output, 0.0 * ones)
    known = (output.words @ output.words.mT).plus_diagonal(output.own).kernel
    top = Gradient(
        tokens, sigma**2 * (output.errors - known), zeros, sigma * output.words, 0.0 * ones, sigma * deviation
    )
    last = Place(forward.stream.kernel, word_sizes[-1])
    gradient, overlaps = top.below_norm(last, scales), norm_overlaps(top, last, scales)
    collected = [top.of_norm(stack, last, scales)]
    # What has left the stream on the way down still overlaps with the tokens at the output.
    across = _Across(zeros, 0.0 * ones)
    for branches, sizes in reversed(list(zip(insides, word_sizes, strict=False))):
        inside = branches[0]  # all branches have the stream and the sum in common
        alpha = inside.step.residual
        total = Place(inside.total.kernel, sizes * alpha)
        overlaps = norm_overlaps(gradient, total, inside.after_scales) or overlaps
        of_norms = gradient.of_norm(stack, total, inside.after_scales)
        gradient = gradient.below_norm(total, inside.after_scales)
        size = norm_root(inside.after_scales)
        remains, across = remains / size, across.rows(1.0 / size)
        if branches is insides[-1]:
            at_total = gradient.kernel(total)
        below = Place(inside.stream.kernel, sizes)
        gradient, overlaps, left, energies = _below_sublayer(gradient, overlaps, total, below, branches, generator)
        across = across.times(alpha) + left.columns(remains)
        remains = remains * alpha
        collected.append(with_more(energies, of_norms))
    across = across + _Across(*gradient.along(below)).columns(remains)
    bottom = gradient.kernel(below)
    into = stack.embedding_scale / sigma
    itself = np.eye(len(tokens.sizes))
    product = output.words.mT.kernel * across.certain.kernel + itself * (deviation * across.own)[..., None]
    embedding = tokens.total(forward.output * output.errors) + 2.0 * into * tokens.total(product)
    return Backward(
        loss=output.loss,
        output=sigma**2 * output.errors,
        total=at_total,
        inputs=bottom,
        embedding=embedding + into**2 * tokens.total(itself * bottom),
        energies=collected,
    )


def _below_sublayer(
    gradient: Gradient, overlaps: Overlaps[Array], total: Place, below: Place,
    branches: Sequence[SublayerState[Array]], generator: np.random.Generator,
) -> tuple[Gradient, Overlaps[Array], _Across, SquaredNorms]:  # fmt: skip
    """Before a sub-layer, as in `gradient`; what has left the stream there is along what branches added."""
    inside, tokens = branches[0], gradient.tokens
    alpha, kappa, arriving = inside.step.residual, inside.step.input_scale, gradient.kernel(total)
    direct, energies = gradient.noise, SquaredNorms()
    left = _Across(0.0 * gradient.stream, 0.0 * gradient.own_stream)
    noises, parts = [], []
    for branch in branches:
        # All but what the branch made is noise to it, what other branches made too; what it made is noise below it.
        tau, added = branch.step.branch, tokens.matrix(branch.added)
        stream, varying = gradient.stream * tau, gradient.own_stream * tau
        within = (stream @ added @ stream.mT).plus_diagonal(varying**2 * added.diagonal).kernel
        below_branch = _below_branch(gradient, arriving - within, overlaps, branch, generator)
        noises.append(below_branch[0])
        parts.append(below_branch[1:3])
        energies |= below_branch[3]
        direct = direct + within
        left = left + _Across(stream @ added, varying * added.diagonal).times(alpha * tau)
    if inside.step.learned:
        kernels = reduce(add, (branch.added for branch in branches))
        energies["scalar"] = tokens.total(kernels * arriving) / inside.step.stack.width
    # Their matrices are independent: noise adds up in the mean, what is known of it in each.
    noise, (part, own_part) = reduce(add, noises), (reduce(add, each) for each in zip(*parts, strict=True))
    empty = 0.0 * gradient.words
    given = Gradient(tokens, kappa**2 * noise, kappa**2 * part, empty, kappa**2 * own_part, 0.0 * gradient.own_words)
    energies = with_more(energies, given.of_norm(inside.step.stack, below, inside.given_scales))
    overlaps = summed_overlaps(scaled_overlaps(overlaps, alpha**4), norm_overlaps(given, below, inside.given_scales))
    given = given.below_norm(below, inside.given_scales)
    passed = Gradient(
        tokens,
        alpha**2 * direct + given.noise,
        alpha**2 * gradient.stream + given.stream,
        alpha * gradient.words,
        alpha**2 * gradient.own_stream + given.own_stream,
        alpha * gradient.own_words,
    )
    return passed, overlaps, left, energies


def _below_branch(
    gradient: Gradient, others: Array, overlaps: Overlaps[Array], inside: SublayerState[Array],
    generator: np.random.Generator,
) -> tuple[Array, TokenMatrix, Array, SquaredNorms]:  # fmt: skip
    """What one branch brings back: noise, mean and own coefficients at what it is given, and its energies."""
    step, tau, tokens = inside.step, inside.step.branch, gradient.tokens
    none = 0.0 * gradient.own_words
    arrived = Gradient(
        tokens, tau**2 * others, tau**2 * gradient.stream, 0.0 * gradient.words, tau**2 * gradient.own_stream, none
    )
    place = Place(inside.made, none)
    of_branch = norm_overlaps(arrived, place, inside.made_scales) or scaled_overlaps(overlaps, tau**4)
    of_norms = arrived.of_norm(step.stack, place, inside.made_scales)
    arrived = arrived.below_norm(place, inside.made_scales)
    parts = arrived.noise, arrived.stream, arrived.own_stream
    if step.kinds == ("units",):
        below_branch = below_units(step.stack, tokens, *parts, inside, generator)
    else:
        below_branch = below_attention(step.stack, tokens, *parts, inside, of_branch, generator)
    return *below_branch[:3], with_more(below_branch[3], of_norms)
