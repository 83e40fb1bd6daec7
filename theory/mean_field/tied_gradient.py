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

from dataclasses import dataclass, replace

import numpy as np

from theory.mean_field.activations import activation_of
from theory.mean_field.inputs import Inputs, attention_pattern
from theory.mean_field.kernels import Array, Number, cholesky
from theory.mean_field.passes import Backward, Forward
from theory.mean_field.sublayers import Energies, Inside, Stream
from theory.mean_field.tied_loss import embedding_energy, sampled_output
from theory.stack import Stack
from theory.stack.weights import gain

# Gaussian samples of an activation's inputs, the same for a whole batch.
_POINTS = 4096


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


def _place(stream: Stream[Array], words: Array, held: Array) -> Place:
    return Place(stream.centred().kernel, 0.0 if stream.means is None else stream.means, words, held)


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
        own = self.stream @ place.kernel @ self.stream.mT + self.words @ place.words @ self.words.mT
        return self.noise + own + across + across.mT + self.mean[..., :, None] * self.mean[..., None, :]

    def along(self, place: Place) -> Array:
        """g_i·x_j/√d, x without its mean."""
        return self.stream @ place.kernel + self.words @ place.words * place.held[..., None, :]

    def below_norm(self, place: Place, scales: Number) -> "Gradient":
        """The gradient at a place above which a norm divides by these scales; 1 if there is none."""
        if isinstance(scales, float):
            return self
        root = _root(scales)
        stream = self.stream / root[..., None, :]
        removed = np.linalg.diagonal(replace(self, stream=stream).along(place)) / root
        stream = stream - (removed / root)[..., :, None] * np.eye(root.shape[-1])
        rows = root[..., :, None]
        return Gradient(self.noise / scales, stream / rows, self.words / rows, 0.0 * self.mean)


def tied_backward(
    stack: Stack, inputs: Inputs[Array], forward: Forward[Array], generator: np.random.Generator
) -> Backward[Array]:
    """The way down, for some samples of the logits of every entry of the batch, along the batch's last axis.

    Args:
        stack: the network.
        inputs: with the words of every row and sample; labels are drawn where there are none.
        forward: the way up, the same for all samples: of kernels (entries, 1, N, N).
        generator: of logits, labels and samples of activations.
    """
    composition, insides = stack.composition, forward.insides
    same = 1.0 * (inputs.words[..., :, None] == inputs.words[..., None, :])
    held = [np.full(inputs.words.shape, stack.embedding_scale)]
    for inside in insides:
        held.append(held[-1] * composition.residual(stack.depth) / _root(inside.after_scales))
    scales = forward.output_scales
    remains = 1.0 / _root(scales)
    output = sampled_output(stack, inputs, forward.output, held[-1] * remains, generator)
    zeros = np.zeros_like(output.own)
    top = Gradient(stack.output_scale**2 * output.others, zeros, stack.output_scale * output.own, zeros[..., 0])
    at_output = Stream(forward.output, None if composition.final_norm else forward.stream.means)
    place = _place(at_output, same, held[-1] * remains)
    gradient = top.below_norm(_place(forward.stream, same, held[-1]), scales)
    # What has left the stream on the way down still overlaps with the tokens at the output.
    across = zeros
    collected = []
    for index in reversed(range(2 * stack.depth)):
        inside = insides[index]
        total = _place(inside.total, same, held[index] * composition.residual(stack.depth))
        gradient = gradient.below_norm(total, inside.after_scales)
        rows = _root(inside.after_scales)
        remains, across = remains / rows, across / np.reshape(rows, (*np.shape(rows), 1))
        if index == 2 * stack.depth - 1:
            at_total = gradient.kernel(total)
        below = _place(inside.stream, same, held[index])
        gradient, left, energies = _below_sublayer(stack, index, gradient, total, below, inside, generator)
        across = composition.residual(stack.depth) * across + left @ inside.added * remains[..., None, :]
        remains = remains * composition.residual(stack.depth)
        collected.append(energies)
    across = across + gradient.along(below) * remains[..., None, :] + gradient.mean[..., None] * place.means
    bottom = gradient.kernel(below)
    return Backward(
        loss=output.loss,
        output=top.kernel(place),
        total=at_total,
        inputs=bottom,
        embedding=embedding_energy(stack, inputs, forward.output, output, bottom, across.mT),
        energies=collected,
    )


def _below_sublayer(
    stack: Stack, index: int, gradient: Gradient, total: Place, below: Place, inside: Inside[Array],
    generator: np.random.Generator,
) -> tuple[Gradient, Array, Energies]:  # fmt: skip
    """The gradient before a sub-layer, its coefficients on what the branch added, and E‖∂L/∂W‖²/d of its matrices.

    Args:
        stack: the network.
        index: of the sub-layer, from 0; attention has the even ones.
        gradient: at the residual sum.
        total: the residual sum.
        below: the stream before it.
        inside: of the sub-layer.
        generator: of the samples of activations.
    """
    composition = stack.composition
    alpha, tau = composition.residual(stack.depth), composition.branch(stack.depth)
    kappa = composition.input_scale(index // 2 + 1)
    # All but what the branch made is noise to it, and what it made is noise below it.
    own = tau * gradient.stream
    own_kernel = own @ inside.added @ own.mT
    noise, part = tau**2 * (gradient.kernel(total) - own_kernel), tau * own
    empty = 0.0 * gradient.mean
    made = Gradient(noise, part, 0.0 * part, empty).below_norm(
        Place(inside.made, 0.0, below.words, empty), inside.made_scales
    )
    branch = _below_units if index % 2 else _below_attention
    own_stack = stack.of_layer(index // 2 + 1)
    noise, part, energies = branch(own_stack, made.noise, made.stream, inside, generator)
    given = Gradient(kappa**2 * noise, kappa**2 * part, 0.0 * part, kappa**2 * (part * below.means).sum(-1))
    given = given.below_norm(below, inside.given_scales)
    direct = gradient.noise + own_kernel
    passed = Gradient(
        alpha**2 * direct + given.noise,
        alpha**2 * gradient.stream + given.stream,
        alpha * gradient.words,
        alpha * gradient.mean + given.mean,
    )
    return passed, alpha * own, energies


def _below_attention(
    stack: Stack, noise: Array, part: Array, inside: Inside[Array], _: np.random.Generator
) -> tuple[Array, Array, Energies]:
    """Below A x W^V W^O."""
    pattern = attention_pattern(stack)
    n = inside.given.shape[-1]
    pattern = np.full((n, n), 1.0 / n) if pattern is None else pattern
    mean = pattern @ inside.given @ pattern.T
    values = gain(stack, "WV") * mean
    energies = {}
    if stack.output_projection == "random":
        whole = noise + part @ inside.made @ part.mT
        energies["WO"] = (values * whole).sum((-2, -1))
        noise, part = gain(stack, "WO") * whole, gain(stack, "WO") * part
    whole = noise + part @ values @ part.mT
    energies["WV"] = (mean * whole).sum((-2, -1))
    noise, part = (gain(stack, "WV") * pattern.T @ one @ pattern for one in (whole, part))
    return noise, part, energies


def _below_units(
    stack: Stack, noise: Array, part: Array, inside: Inside[Array], generator: np.random.Generator
) -> tuple[Array, Array, Energies]:
    """Below φ(x W1) W2 or (φ(x WG) ∘ x W1) W2.

    With h the units, the gradient there is C h/√d and noise; times the slope s of a pre-activation u it is w/√d and
    noise, w = s ∘ C h, and w is B u and what has no overlap with any u_i: B = E[w uᵀ] Q_u⁻¹.
    """
    from scipy.stats import qmc  # scipy.stats takes as long to load as all the rest of theory

    activation, ratio = activation_of(stack.activation, stack.leaky_slope), stack.ffn_width / stack.width
    first, second = gain(stack, "W1"), gain(stack, "W2")
    whole = noise + part @ inside.made @ part.mT
    energies = {"W2": ratio * (inside.made / second * whole).sum((-2, -1))}
    noise, part = second * whole, second / ratio * part
    gate = gain(stack, "WG") if stack.ffn == "gated" else first
    root = cholesky(inside.given)
    n = root.shape[-1]
    normals = qmc.MultivariateNormalQMC(np.zeros(2 * n), rng=generator).random(_POINTS)
    gates = normals[:, :n] @ root.mT * gate**0.5
    active, slope = activation.value(gates), activation.slope(gates)
    if stack.ffn == "gated":
        lines = normals[:, n:] @ root.mT * first**0.5
        hidden = active * lines
        paths = {"W1": (lines, active), "WG": (gates, slope * lines)}
    else:
        hidden = active
        paths = {"W1": (gates, slope)}
    inverse = np.linalg.pinv(inside.given, rcond=1e-10, hermitian=True)
    below, along = np.zeros_like(noise), np.zeros_like(noise)
    for role, (units, slopes) in paths.items():
        # w_i = Σ_p C_ip (s_i h_p): its moments are forms in C, and their matrices the same for all samples.
        products = slopes[..., :, None] * hidden[..., None, :]
        with_units = np.einsum("...aip,...ak->...ipk", products, units, optimize=True) / _POINTS
        flat = products.reshape(*products.shape[:-2], n * n)
        moments = (flat.mT @ flat / _POINTS).reshape(*flat.shape[:-2], n, n, n, n)
        on = np.einsum("...ip,...ipk->...ik", part, with_units, optimize=True) @ inverse
        squares = np.einsum("...ip,...ipjq,...jq->...ij", part, moments, part, optimize=True)
        whole = noise * (slopes.mT @ slopes / _POINTS) + ratio * squares
        energies[role] = (inside.given * whole).sum((-2, -1))
        # B has the inverse of the units' own kernel, which is that of their gain times the tokens'.
        below, along = below + gain(stack, role) * whole, along + ratio * on
    return below, along, energies


def _root(scales: Number) -> Array:
    """What a norm divides each token by; 1 if there is none."""
    return np.ones(1) if isinstance(scales, float) else np.sqrt(np.linalg.diagonal(scales))
