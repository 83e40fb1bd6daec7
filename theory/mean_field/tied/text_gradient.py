"""The backward pass with tied embeddings on random text, for tokens that represent groups of tokens.

The known part of a token's gradient is along its own stream and its own word. Its coefficients are proportional to
one random number, the error e_i = (p − t)_i in the column of that word:

    g_i = e_i (a_i x_i + b_i w_i)/√d + noise,

so that products are entrywise in the products E e_i e_j of either class of pairs. All else is noise here: labels, the
words of other tokens, and the gradients that attention brings from them. Labels are words, so that a token's gradient
overlaps with the tokens of other words by b_i r_iv, with r_iv its error in the column of that word.

Assumes d → ∞ as in `gradient`, and many tokens. Relative terms of O(1/n) are neglected, and so is the effect of a
deterministic gradient at attention logits (`docs/report.md`).

Branches: The coefficients a on the branch's output are for a unit of a token's error. The known part of the gradient is
also noise for the layers below. From a token itself, hidden units leave a multiple of its pre-activation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from theory.mean_field.activations import activation_of
from theory.mean_field.kernels import Array, Number
from theory.mean_field.outputs import loss_variance
from theory.mean_field.passes import Backward, Forward
from theory.mean_field.sublayers import (
    Overlaps,
    SquaredNorms,
    SublayerState,
    add_energies,
    bias_gradients,
    norm_parameter_gradients,
)
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.tied.hermite import gaussian_nodes, pair_means
from theory.mean_field.tied.text_output import TextOutput, loss_of_labels, own_logits, text_output
from theory.mean_field.tied.walk import held_words, norm_root, walk_down
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The vectors at one point of the network that a gradient correlates with: tokens and word embeddings.

    Attributes:
        kernel: kernel of the stream, (batch, 2 R, 2 R).
        held: coefficient of every token on its own word.
    """

    kernel: Array
    held: Array

    def without_words(self, kernel: Array) -> Place:
        """Return the vectors at the output of a branch, whose tokens have no component along word embeddings."""
        return Place(kernel, 0.0 * self.held)


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """The gradient at one point of the network, as a sum of tokens, word embeddings, and independent noise.

    Attributes:
        tokens: layout of the tokens.
        output: products of errors at the logits.
        noise: kernel of the part that is orthogonal to all else, (batch, 2 R, 2 R).
        stream: coefficients a on the stream for a unit of error, (batch, 2 R).
        words: coefficients b on the words for a unit of error, (batch, 2 R).
    """

    tokens: TextLayout
    output: TextOutput
    noise: Array
    stream: Array
    words: Array

    def kernel(self, place: Place) -> Array:
        """Return the inner products g_i·g_j of the gradients g of tokens i and j, (batch, 2 R, 2 R)."""
        across = _products(self.stream * place.held, self.words)
        across = (self.tokens.one_word * self.output.own + self.output.others.mT) * across
        along = _products(self.stream, self.stream) * place.kernel
        along = along + self.tokens.one_word * _products(self.words, self.words)
        return self.noise + self.output.own * along + across + across.mT

    def known(self, scale: float, added: Array) -> tuple[Array, Array]:
        """Split off the gradient's part along a branch's output: return its kernel, and its products with that output.

        For the output y, the second result is g_i·y_j/√d.
        """
        stream = self.stream * scale
        return self.output.own * _products(stream, stream) * added, stream[..., :, None] * added

    def without_words(self, noise: Array, stream: Array, _: Place) -> Gradient:
        """Return a gradient with given noise and given components along tokens, and none along word embeddings."""
        return replace(self, noise=noise, stream=stream, words=0.0 * stream)

    def past_branches(self, alpha: float, direct: Array, given: Gradient) -> Gradient:
        """Add the gradient that passes a sub-layer on the skip connection and the one that comes through its branches.

        Args:
            alpha: scale of the residual stream.
            direct: noise of the part that passes the branches.
            given: the gradient that comes back through the branches.
        """
        return replace(
            self, noise=direct + given.noise, stream=alpha**2 * self.stream + given.stream, words=alpha * self.words
        )

    def along(self, place: Place) -> Array:
        """Return the products g_i·x_j/√d of gradients g and tokens x, (batch, 2 R, 2 R).

        They are for a unit of token i's error.
        """
        return self.stream[..., :, None] * place.kernel + self.tokens.one_word * _products(self.words, place.held)

    def below_norm(self, place: Place, scales: Number) -> Gradient:
        """Propagate the gradient back through a norm; without a norm, it is unchanged."""
        if isinstance(scales, float):
            return self
        size = norm_root(scales)
        stream = self.stream / size
        along = stream * np.linalg.diagonal(place.kernel) + self.words * place.held
        return replace(
            self, noise=self.noise / scales, stream=(stream - along / size**2) / size, words=self.words / size
        )

    def norm_parameter_gradients(self, stack: Stack, tokens: TextLayout, place: Place, scales: Number) -> SquaredNorms:
        """Return the squared gradient norms of the gains and biases of a norm, divided by the width.

        The table is empty without a norm, and if the layout does not tell sequences apart.
        """
        if isinstance(scales, float) or not tokens.apart:
            return {}
        size = norm_root(scales)
        above = self.above_norm(size)
        along = above.along(place) / size[..., None, :]
        removed = np.linalg.diagonal(along)
        squares = norm_parameter_gradients(stack, tokens, above.kernel(place), place.kernel / scales)
        # Two words: what the gradient of each has of the other's.
        word_sizes = place.held / size
        of_words = self.output.others.mT * above.stream[..., :, None] * place.kernel / size[..., None, :]
        of_words = of_words * _products(word_sizes, self.words)
        of_words = (
            of_words + of_words.mT + self.output.crossed * _products(word_sizes * self.words, word_sizes * self.words)
        )
        coherent = tokens.total(self.output.own * (_products(removed, removed) + along * along.mT) + of_words)
        return add_energies(squares, {"gain": coherent / (stack.width * stack.norm_gain**2)})

    def above_norm(self, size: Array) -> Gradient:
        """Write the gradient above a norm in terms of the tokens before the norm.

        Args:
            size: divisor of each token in the norm.
        """
        return replace(self, stream=self.stream / size)


def text_tied_backward(stack: Stack, tokens: TextLayout, same_label: Array, forward: Forward[Array]) -> Backward[Array]:
    """Run the backward pass with tied embeddings, averaged over random texts.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        same_label: probability that two labels agree, (batch, 2 R, 2 R).
        forward: the forward pass, with kernels (batch, 2 R, 2 R).
    """
    ones, sigma = np.ones(forward.output.shape[:-1]), stack.output_scale
    word_sizes = held_words(stack, forward, ones)
    last_words = word_sizes[-1] / norm_root(forward.output_scales)
    output = text_output(stack, tokens, forward.output, last_words, same_label)
    top = Gradient(tokens, output, sigma**2 * (output.errors - tokens.one_word * output.own), 0.0 * ones, sigma * ones)
    down = walk_down(stack, tokens, forward, top, word_sizes, lambda stream, sizes: Place(stream.kernel, sizes), _rule)
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


def loss_and_own_token(stack: Stack, tokens: TextLayout, forward: Forward[Array]) -> tuple[float, float]:
    """Return the expected loss and the mean probability of a position's own token, which need no backward pass."""
    own_words = held_words(stack, forward, np.ones(forward.output.shape[:-1]))[-1] / norm_root(forward.output_scales)
    mean_logit, sure, normalizer = own_logits(stack, np.linalg.diagonal(forward.output), own_words)
    chance = (sure @ gaussian_nodes()[1] @ tokens.sizes).mean() / tokens.count
    return float(loss_of_labels(stack, tokens, mean_logit, normalizer).mean()), float(chance)


def _rule(
    arrived: Gradient, inside: SublayerState[Array], overlaps: Overlaps[Array]
) -> tuple[Array, Array, SquaredNorms]:
    """Propagate the gradient back through one branch, and return its noise, coefficients and squared norms."""
    parts = (inside.step.stack, arrived.tokens, arrived.noise, arrived.stream, arrived.output.own, inside)
    return below_units(*parts) if inside.step.kinds == ("units",) else below_attention(*parts, overlaps)


def _loss_variance(stack: Stack, tokens: TextLayout, kernel: Array, word_sizes: Array, same_label: Array) -> Array:
    """Return the variance of the loss: that of untied embeddings plus the scatter of labels equal to the own id."""
    logits, chances = stack.output_scale * stack.width**0.5 * word_sizes, np.diagonal(tokens.labels.own)
    by_text = np.eye(len(chances)) * (logits**2 * chances * (1.0 - chances))[..., None]
    return np.asarray(loss_variance(stack, tokens, kernel, same_label)) + tokens.total(by_text) / stack.rows**2


def _products(first: Array, other: Array) -> Array:
    """Return the products f_i h_j for all i and j."""
    return first[..., :, None] * other[..., None, :]


def below_units(
    stack: Stack, tokens: TextLayout, noise: Array, part: Array, own: Array, inside: SublayerState[Array]
) -> tuple[Array, Array, SquaredNorms]:
    """Propagate the gradient back through an MLP, including the gradient's part along the branch's output.

    The MLP is φ(x W1) W2 or (φ(x WG) ∘ x W1) W2.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (batch, 2 R, 2 R).
        part: its coefficients a there, (batch, 2 R).
        own: products of tokens' errors, (batch, 2 R, 2 R).
        inside: kernels of the sub-layer.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    activation, ratio = activation_of(stack.activation, stack.leaky_slope), stack.ffn_width / stack.width
    first, second, gated = gain(stack, "W1"), gain(stack, "W2"), stack.ffn == "gated"
    gate = gain(stack, "WG") if gated else first
    below, energies = inside.pullback(noise + own * part[..., :, None] * part[..., None, :] * inside.made, None)
    part = second / ratio * part
    energy, nodes, weights = np.linalg.diagonal(inside.given), *gaussian_nodes()
    units = np.sqrt(gate * energy)[..., None] * nodes
    root = np.sqrt(energy)
    correlation = np.clip(inside.given / (root[..., :, None] * root[..., None, :]), -1.0, 1.0)
    active, slope = activation.value(units), activation.slope(units)
    bent = (units * active * slope) @ weights / (gate * energy)
    if gated:
        # w is φ² l on the way to W1, and φ' φ l² on the way to WG, with l the linear units.
        lines = first * inside.given
        line = np.linalg.diagonal(lines)
        squares = line[..., :, None] * line[..., None, :] + 2.0 * lines**2
        paths = {
            "W1": (pair_means(active**2, correlation) * lines, active**2 @ weights),
            "WG": (pair_means(active * slope, correlation) * squares, bent * line),
        }
    else:
        paths = {"W1": (pair_means(active * slope, correlation), bent)}
    along = 0.0 * part
    for role, (means, response) in paths.items():
        squares = ratio * own * part[..., :, None] * part[..., None, :] * means
        energies[role] = energies[role] + tokens.total(inside.given * squares)
        energies = add_energies(energies, bias_gradients(stack, tokens, **{role: squares}))
        size = gain(stack, role)
        below, along = below + size * squares, along + ratio * size * part * response
    return below, along, energies


def below_attention(
    stack: Stack, tokens: TextLayout, noise: Array, part: Array, own: Array, inside: SublayerState[Array],
    overlaps: Overlaps[Array],
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through attention, including the gradient's part along the branch's output.

    A token's coefficient is kept on itself, not on others that it attends to.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (batch, 2 R, 2 R).
        part: its coefficients a there, (batch, 2 R).
        own: products of tokens' errors, (batch, 2 R, 2 R).
        inside: kernels of the sub-layer.
        overlaps: the part of the noise that norms above removed.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    ratio, projected = inner_ratio(stack), stack.output_projection == "random"
    size = gain(stack, "WO") if projected else 1.0
    within = own * part[..., :, None] * part[..., None, :] * inside.made
    whole = noise + within if projected else noise
    part = size / ratio * part
    if inside.attended is None:
        below, energies = inside.pullback(whole + within / ratio, overlaps)
    else:
        known = own * part[..., :, None] * part[..., None, :] * inside.made / size
        known = (stack.key_width / stack.width * known)[:, None, None]
        # As the way back of `GroupedAttention` takes what is known at every head's output.
        below, energies = inside.attended[1](whole, overlaps, known)
    if projected:
        if inside.attended is None:
            # The rule took what is known of the gradient below W^O as if it were above it.
            energies["WO"] = energies["WO"] - tokens.total(inside.made / size * within)
        energies |= bias_gradients(stack, tokens, WO=whole)
    return below, gain(stack, "WV") * ratio * part * _to_itself(tokens, inside.attended), energies


def _to_itself(tokens: TextLayout, attended: Any) -> Array:
    """Return the mean square of a token's attention weight on itself over all heads, (..., 2 R)."""
    if attended is not None:
        squares = np.square(np.linalg.diagonal(attended[0].own)).mean((1, 2))
        return np.asarray(squares.reshape(len(squares), -1))
    return np.asarray(1.0 / tokens.seen_all[:, 0] ** 2)
