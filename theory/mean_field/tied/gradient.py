"""Tied embeddings: a gradient that has overlaps of order one with the stream, on its way back.

The output matrix has the words of the batch as columns, and the stream still holds x_0. So the logit of a position's
own word grows like √d, and the gradient at the output has a component along the words as large as all the rest:

    g_i = Σ_p M_ip x_p/√d + Σ_p C_ip w_p/√d + z_i (1, ..., 1)/√d + noise,

with x the stream where the gradient is, without the mean of its coordinates, and w the words. Backward the state is
(N, M, C, z), N the kernel of the noise. A linear map y = x W takes y to a multiple of x, since y Wᵀ = x W Wᵀ, and all
else to noise; a norm takes R_i x_i/√d away, with R_i = g_i·x_i/√d; what a branch adds to the stream is noise below it;
the gradient of an activation is projected on its pre-activations, by averages over Gaussian samples.

Assumes d → ∞ at fixed n, L, V and σ_e √d, so that the softmax is neither flat nor sure of a position's own word; its
logits are sampled, with independent fluctuations of variance σ_e² Q.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from theory.coverage import has_experts
from theory.mean_field.inputs import Inputs
from theory.mean_field.kernels import Array, KernelLayout, Number
from theory.mean_field.passes import Backward, Forward
from theory.mean_field.sublayers import (
    Overlaps,
    SquaredNorms,
    SublayerState,
    TokenMoments,
    of_norm,
    scaled_overlaps,
    summed_overlaps,
    with_more,
)
from theory.mean_field.tied.attention import below_attention
from theory.mean_field.tied.experts import below_experts
from theory.mean_field.tied.loss import embedding_energy, sampled_output
from theory.mean_field.tied.units import below_units
from theory.mean_field.tied.walk import held_words, norm_overlaps, norm_root, walk_down
from theory.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a gradient is: what it has overlaps with.

    Attributes:
        kernel: of the stream without its mean, (entries, 1, N, N).
        means: of its coordinates, (N,), or 0.
        words: w_i·w_j/d, 1 where the words are one, (entries, 1, N, N).
        held: how much of its word every token holds, (entries, 1, N).
    """

    kernel: Array
    means: Array | float
    words: Array
    held: Array


def _place(stream: TokenMoments[Array], words: Array, word_sizes: Array) -> Place:
    return Place(stream.centred().kernel, 0.0 if stream.means is None else stream.means, words, word_sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A gradient on its way back, of every entry and sample.

    Attributes:
        noise: kernel N of what is orthogonal to all else, (entries, samples, N, N).
        stream: coefficients M on the stream's tokens, (entries, samples, N, N).
        words: coefficients C on the words, (entries, samples, N, N).
        mean: coefficient z on (1, ..., 1), (entries, samples, N).
    """

    noise: Array
    stream: Array
    words: Array
    mean: Array

    def kernel(self, place: Place) -> Array:
        """g_i·g_j."""
        across = self.stream @ (place.held[..., None] * place.words) @ self.words.mT
        within = self.stream @ place.kernel @ self.stream.mT + self.words @ place.words @ self.words.mT
        return self.noise + within + across + across.mT + self.mean[..., :, None] * self.mean[..., None, :]

    def along(self, place: Place) -> Array:
        """g_i·x_j/√d, x without its mean."""
        return self.stream @ place.kernel + self.words @ place.words * place.held[..., None, :]

    def below_norm(self, place: Place, scales: Number) -> "Gradient":
        """The gradient at a place above which a norm divides by these scales; 1 if there is none."""
        if isinstance(scales, float):
            return self
        root = norm_root(scales)
        above = self.above_norm(root)
        taken = np.linalg.diagonal(above.along(place)) / root
        stream = above.stream - (taken / root)[..., :, None] * np.eye(root.shape[-1])
        rows = root[..., :, None]
        return Gradient(self.noise / scales, stream / rows, self.words / rows, above.mean)

    def of_norm(self, stack: Stack, tokens: KernelLayout[Array], place: Place, scales: Number) -> SquaredNorms:
        """What that norm's gains and biases have of the gradient above it; nothing if there is none.

        With A_ij = g_i·x_j/√d of the normalized x, the gains have Σ_ij A_ii A_jj + A_ij A_ji beside Σ_ij G_ij Q_ij: the
        coordinates of x are Gaussian.
        """
        if isinstance(scales, float) or not tokens.apart:
            return {}
        root = norm_root(scales)
        above = replace(self.above_norm(root), mean=self.mean)
        along = above.along(place) / root[..., None, :]
        removed = np.linalg.diagonal(along)
        squares = of_norm(stack, tokens, above.kernel(place), place.kernel / scales)
        coherent = tokens.total(removed[..., :, None] * removed[..., None, :] + along * along.mT)
        return with_more(squares, {"gain": coherent / (stack.width * stack.norm_gain**2)})

    def above_norm(self, root: Array) -> "Gradient":
        """By the tokens that the norm is given, without what it takes off the mean."""
        return replace(self, stream=self.stream / root[..., None, :], mean=0.0 * self.mean)


def tied_backward(
    stack: Stack, tokens: KernelLayout[Array], inputs: Inputs[Array], forward: Forward[Array],
    generator: np.random.Generator, *, mean_labels: bool = False,
) -> Backward[Array]:  # fmt: skip
    """The way down, for some samples of the logits of every entry of the batch, along the batch's last axis.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        inputs: with the words of every row and sample; labels are drawn where there are none.
        forward: the way up, the same for all samples: of kernels (entries, 1, N, N).
        generator: of logits, labels and samples of activations.
        mean_labels: as in `sampled_output`.
    """
    same = 1.0 * (inputs.words[..., :, None] == inputs.words[..., None, :])
    word_sizes = held_words(stack, forward, np.ones(inputs.words.shape))
    last_words = word_sizes[-1] / norm_root(forward.output_scales)
    output = sampled_output(stack, inputs, forward.output, last_words, generator, mean_labels=mean_labels)
    zeros = np.zeros_like(output.own)
    top = Gradient(stack.output_scale**2 * output.others, zeros, stack.output_scale * output.own, zeros[..., 0])
    at_output = TokenMoments(forward.output, None if stack.composition.final_norm else forward.stream.means)

    def below_sublayer(*arrived: Any) -> tuple[Gradient, Overlaps[Array], Array, SquaredNorms]:
        return _below_sublayer(tokens, generator, *arrived)

    output_place = _place(at_output, same, last_words)
    down = walk_down(
        stack, tokens, forward, top, word_sizes, lambda stream, sizes: _place(stream, same, sizes), below_sublayer
    )
    gradient, below = down.gradient, down.below
    across = (
        down.across + gradient.along(below) * down.remains[..., None, :] + gradient.mean[..., None] * output_place.means
    )
    bottom = gradient.kernel(below)
    return Backward(
        loss=output.loss,
        output=top.kernel(output_place),
        total=down.at_total,
        inputs=bottom,
        embedding=embedding_energy(stack, tokens, inputs, forward.output, output, bottom, across.mT),
        energies=down.energies,
    )


def _below_sublayer(
    tokens: KernelLayout[Array], generator: np.random.Generator, gradient: Gradient, overlaps: Overlaps[Array],
    total: Place, below: Place, branches: Sequence[SublayerState[Array]],
) -> tuple[Gradient, Overlaps[Array], Array, SquaredNorms]:  # fmt: skip
    """Before a sub-layer: the gradient, and what norms removed of it; g·y/√d of what branches added, y; energies.

    Args:
        tokens: layout of the tokens.
        generator: of the samples of activations.
        gradient: at the residual sum.
        overlaps: what norms above removed of it; only attention with random queries asks for them.
        total: the residual sum.
        below: the stream before it.
        branches: of the sub-layer.
    """
    inside = branches[0]
    alpha, kappa, arriving = inside.step.residual, inside.step.input_scale, gradient.kernel(total)
    direct, left, energies = gradient.noise, 0.0 * gradient.stream, SquaredNorms()
    noises, parts = [], []
    for branch in branches:
        # All but what the branch made is noise to it, what other branches made too; what it made is noise below it.
        tau = branch.step.branch
        own_stream = tau * gradient.stream
        own_kernel = own_stream @ branch.added @ own_stream.mT
        noise, part, of_branch = _below_branch(
            tokens, gradient, arriving - own_kernel, overlaps, below, branch, generator
        )
        noises.append(noise)
        parts.append(part)
        energies |= of_branch
        direct, left = direct + own_kernel, left + alpha * tau * own_stream @ branch.added
    if inside.step.learned:
        added = reduce(add, (branch.added for branch in branches))
        energies["scalar"] = tokens.total(added * arriving) / inside.step.stack.width
    # Their matrices are independent: noise adds up in the mean, what is known of it in each.
    noise, part = reduce(add, noises), reduce(add, parts)
    given = Gradient(kappa**2 * noise, kappa**2 * part, 0.0 * part, kappa**2 * (part * below.means).sum(-1))
    energies = with_more(energies, given.of_norm(inside.step.stack, tokens, below, inside.given_scales))
    overlaps = summed_overlaps(scaled_overlaps(overlaps, alpha**4), norm_overlaps(given, below, inside.given_scales))
    given = given.below_norm(below, inside.given_scales)
    passed = Gradient(
        alpha**2 * direct + given.noise,
        alpha**2 * gradient.stream + given.stream,
        alpha * gradient.words,
        alpha * gradient.mean + given.mean,
    )
    return passed, overlaps, left, energies


def _below_branch(
    tokens: KernelLayout[Array], gradient: Gradient, others: Array, overlaps: Overlaps[Array], below: Place,
    inside: SublayerState[Array], generator: np.random.Generator,
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """What one branch of a sub-layer brings back: noise, coefficients at what it is given, and its energies.

    Args:
        tokens: layout of the tokens.
        gradient: at the residual sum.
        others: kernel of what it has there beside what the branch made.
        overlaps: what norms above removed of it.
        below: the stream before the sub-layer.
        inside: of the branch.
        generator: of the samples of activations.
    """
    step, tau, empty = inside.step, inside.step.branch, 0.0 * gradient.mean
    part = tau * (tau * gradient.stream)
    arrived, place = Gradient(tau**2 * others, part, 0.0 * part, empty), Place(inside.made, 0.0, below.words, empty)
    of_branch = norm_overlaps(arrived, place, inside.made_scales) or scaled_overlaps(overlaps, tau**4)
    of_norms = arrived.of_norm(step.stack, tokens, place, inside.made_scales)
    arrived = arrived.below_norm(place, inside.made_scales)
    if step.kinds == ("units",) and has_experts(step.stack):
        below_branch = below_experts(step.stack, tokens, arrived.noise, arrived.stream, inside, of_branch, generator)
    elif step.kinds == ("units",):
        below_branch = below_units(step.stack, tokens, arrived.noise, arrived.stream, inside, generator)
    else:
        below_branch = below_attention(step.stack, tokens, arrived.noise, arrived.stream, inside, of_branch)
    return *below_branch[:2], with_more(below_branch[2], of_norms)
