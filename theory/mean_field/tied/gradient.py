"""The backward pass with tied embeddings for all tokens, where gradients correlate with the residual stream.

The output matrix has the batch's words as columns, and the stream still contains x_0. So the logit of a position's
own word grows like √d, and the gradient at the output has a component along the words as large as all the rest:

    g_i = Σ_p M_ip x_p/√d + Σ_p C_ip w_p/√d + z_i (1, ..., 1)/√d + noise,

with x the stream where the gradient is, without the mean of its coordinates, and w the words' embeddings. Backward
the state is (N, M, C, z), N the kernel of the noise. A linear map y = x W takes y to a multiple of x, since y Wᵀ = x
W Wᵀ, and all else to noise. A norm removes R_i x_i/√d, with R_i = g_i·x_i/√d. The component along a branch's output
becomes noise below the branch. The gradient of an activation is projected on its pre-activations, by averages over
Gaussian samples.

Assumes d → ∞ at fixed n, L, V and σ_e √d, so that the softmax is neither flat nor certain of a position's own word;
its logits are sampled, with independent fluctuations of variance σ_e² Q.
"""

from dataclasses import dataclass, replace

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
    add_energies,
    norm_parameter_gradients,
)
from theory.mean_field.tied.attention import below_attention
from theory.mean_field.tied.experts import below_experts
from theory.mean_field.tied.loss import embedding_energy, sampled_output
from theory.mean_field.tied.units import below_units
from theory.mean_field.tied.walk import held_words, norm_root, walk_down
from theory.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The vectors at one point of the network that a gradient correlates with: tokens and word embeddings.

    Attributes:
        kernel: kernel of the stream without its coordinates' mean, (entries, 1, N, N).
        means: mean of the coordinates, (N,), or 0.
        words: w_i·w_j/d, 1 where the token ids are equal, (entries, 1, N, N).
        held: coefficient of every token on its own word, (entries, 1, N).
    """

    kernel: Array
    means: Array | float
    words: Array
    held: Array

    def without_words(self, kernel: Array) -> "Place":
        """Return the vectors at the output of a branch, whose tokens have no component along word embeddings."""
        return Place(kernel, 0.0, self.words, 0.0 * self.held)


def _place(stream: TokenMoments[Array], words: Array, word_sizes: Array) -> Place:
    return Place(stream.centred().kernel, 0.0 if stream.means is None else stream.means, words, word_sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """The gradient at one point of the network, as a sum of tokens, word embeddings, and independent noise.

    Attributes:
        noise: kernel N of the part that is orthogonal to all else, (entries, samples, N, N).
        stream: coefficients M on the stream's tokens, (entries, samples, N, N).
        words: coefficients C on the words, (entries, samples, N, N).
        mean: coefficient z on (1, ..., 1), (entries, samples, N).
    """

    noise: Array
    stream: Array
    words: Array
    mean: Array

    def kernel(self, place: Place) -> Array:
        """Return the inner products g_i·g_j of the gradients g of tokens i and j, (entries, samples, N, N)."""
        across = self.stream @ (place.held[..., None] * place.words) @ self.words.mT
        within = self.stream @ place.kernel @ self.stream.mT + self.words @ place.words @ self.words.mT
        return self.noise + within + across + across.mT + self.mean[..., :, None] * self.mean[..., None, :]

    def known(self, scale: float, added: Array) -> tuple[Array, Array]:
        """Split off the gradient's part along a branch's output: return its kernel, and its products with that output.

        For the output y, the second result is g_i·y_j/√d.
        """
        stream = scale * self.stream
        along = stream @ added
        return along @ stream.mT, along

    def without_words(self, noise: Array, stream: Array, place: Place) -> "Gradient":
        """Return a gradient with given noise and given components along tokens, and none along word embeddings."""
        return Gradient(noise, stream, 0.0 * stream, (stream * place.means).sum(-1))

    def past_branches(self, alpha: float, direct: Array, given: "Gradient") -> "Gradient":
        """Add the gradient that passes a sub-layer on the skip connection and the one that comes through its branches.

        Args:
            alpha: scale of the residual stream.
            direct: noise of the part that passes the branches.
            given: the gradient that comes back through the branches.
        """
        return Gradient(
            direct + given.noise,
            alpha**2 * self.stream + given.stream,
            alpha * self.words,
            alpha * self.mean + given.mean,
        )

    def along(self, place: Place) -> Array:
        """Return the products g_i·x_j/√d of gradients g and tokens x of the residual stream without their means."""
        return self.stream @ place.kernel + self.words @ place.words * place.held[..., None, :]

    def below_norm(self, place: Place, scales: Number) -> "Gradient":
        """Propagate the gradient back through a norm; without a norm, it is unchanged."""
        if isinstance(scales, float):
            return self
        root = norm_root(scales)
        above = self.above_norm(root)
        taken = np.linalg.diagonal(above.along(place)) / root
        stream = above.stream - (taken / root)[..., :, None] * np.eye(root.shape[-1])
        rows = root[..., :, None]
        return Gradient(self.noise / scales, stream / rows, self.words / rows, above.mean)

    def norm_parameter_gradients(
        self, stack: Stack, tokens: KernelLayout[Array], place: Place, scales: Number
    ) -> SquaredNorms:
        """Return the squared gradient norms of the gains and biases of a norm, divided by the width.

        The table is empty without a norm, and if the layout does not tell sequences apart.

        Let x be the tokens after the norm with gain γ, and A_ij = g_i·x_j/√d. The squared norm of the gains is Σ_ij
        (G_ij Q_ij + A_ii A_jj + A_ij A_ji)/γ². The products of A occur because the coordinates of x are Gaussian.
        """
        if isinstance(scales, float) or not tokens.apart:
            return {}
        root = norm_root(scales)
        above = replace(self.above_norm(root), mean=self.mean)
        along = above.along(place) / root[..., None, :]
        removed = np.linalg.diagonal(along)
        squares = norm_parameter_gradients(stack, tokens, above.kernel(place), place.kernel / scales)
        coherent = tokens.total(removed[..., :, None] * removed[..., None, :] + along * along.mT)
        return add_energies(squares, {"gain": coherent / (stack.width * stack.norm_gain**2)})

    def above_norm(self, root: Array) -> "Gradient":
        """Write the gradient above a norm in terms of the tokens before the norm, without the part along their mean.

        Args:
            root: divisor of each token in the norm.
        """
        return replace(self, stream=self.stream / root[..., None, :], mean=0.0 * self.mean)


def tied_backward(
    stack: Stack, tokens: KernelLayout[Array], inputs: Inputs[Array], forward: Forward[Array],
    generator: np.random.Generator, *, mean_labels: bool = False,
) -> Backward[Array]:  # fmt: skip
    """Run the backward pass with tied embeddings, for several samples of the logits of every batch entry.

    Samples are along the last axis of the batch.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        inputs: inputs, with the token ids of every row and sample; labels are sampled if there are none.
        forward: the forward pass, the same for all samples, with kernels (entries, 1, N, N).
        generator: random generator of logits, labels and samples of activations.
        mean_labels: whether missing labels are replaced by their law, as in `sampled_output`.
    """
    same = 1.0 * (inputs.words[..., :, None] == inputs.words[..., None, :])
    word_sizes = held_words(stack, forward, np.ones(inputs.words.shape))
    last_words = word_sizes[-1] / norm_root(forward.output_scales)
    output = sampled_output(stack, inputs, forward.output, last_words, generator, mean_labels=mean_labels)
    zeros = np.zeros_like(output.own)
    top = Gradient(stack.output_scale**2 * output.others, zeros, stack.output_scale * output.own, zeros[..., 0])
    at_output = TokenMoments(forward.output, None if stack.composition.final_norm else forward.stream.means)

    def rule(
        arrived: Gradient, inside: SublayerState[Array], overlaps: Overlaps[Array]
    ) -> tuple[Array, Array, SquaredNorms]:
        step, parts = inside.step, (arrived.noise, arrived.stream, inside)
        if step.kinds != ("units",):
            return below_attention(step.stack, tokens, *parts, overlaps)
        if has_experts(step.stack):
            return below_experts(step.stack, tokens, *parts, overlaps, generator)
        return below_units(step.stack, tokens, *parts, generator)

    output_place = _place(at_output, same, last_words)
    down = walk_down(stack, tokens, forward, top, word_sizes, lambda stream, sizes: _place(stream, same, sizes), rule)
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
