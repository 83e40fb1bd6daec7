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

Attention: Where the gradient has coefficients M on attention's output, its products with a head's values, r_ij =
g_i·v_j, have a mean of order √d M in addition to their noise. So the gradient at the logits has a mean given the
attention weights, and that at queries and keys is along keys and queries. Through W^Q and W^K it comes back with
coefficients on the tokens, and noise.

Experts: Let the gradient have coefficients M on a branch's output f_p = Σ_e p_pe F_e(u_p). Then the gradient of expert
e is p_ie g_i, and has coefficients p_ie M_ip p_pe on F_e's own output; outputs of other experts are noise to it. The
product of a token's gradient with an expert's output, t_ie = F_e(u_i)·g_i, has the mean √d Σ_p M_ip p_pe K_ip in
addition to its noise. So the gradient at the router's logits has a mean given the choice of experts. Through W^R it
comes back as noise and along the tokens, whose logits are known. Derived in docs/report.md.
"""

from dataclasses import dataclass, replace

import numpy as np

from theory.coverage import has_experts
from theory.mean_field.attention.patterns import Patterns, bare_logit_scale, logit_scale, rotated
from theory.mean_field.attention.sampled import query_path
from theory.mean_field.experts import Routed
from theory.mean_field.inputs import Inputs, attention_pattern
from theory.mean_field.kernels import Array, KernelLayout, Number
from theory.mean_field.passes import Backward, Forward
from theory.mean_field.sublayers import (
    Overlaps,
    SquaredNorms,
    SublayerState,
    TokenMoments,
    add_energies,
    bias_gradients,
    norm_parameter_gradients,
)
from theory.mean_field.tied.loss import embedding_energy, sampled_output
from theory.mean_field.tied.units import below_network, below_units
from theory.mean_field.tied.walk import held_words, norm_root, walk_down
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio


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


def below_attention(
    stack: Stack, tokens: KernelLayout[Array], noise: Array, part: Array, inside: SublayerState[Array],
    overlaps: Overlaps[Array],
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through attention, including the gradient's part along the branch's output.

    The branch is softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O, or A x W^V W^O with fixed weights A.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (entries, samples, N, N).
        part: the gradient's coefficients on the output's tokens, (entries, samples, N, N).
        inside: kernels of the sub-layer, (entries, 1, N, N).
        overlaps: the part of the noise that norms above removed.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    ratio, energies = inner_ratio(stack), SquaredNorms()
    if stack.output_projection == "random":
        whole, size = noise + part @ inside.made @ part.mT, gain(stack, "WO")
        energies["WO"] = ratio * tokens.total(inside.made / size * whole)
        energies |= bias_gradients(stack, tokens, WO=whole)
        noise, part = size * whole, size / ratio * part
    if inside.attended is None:
        return _below_equal_weights(stack, tokens, energies, noise, part, inside.given)
    patterns, kept = inside.attended
    given, share, value_gain = inside.given, stack.key_width / stack.width, gain(stack, "WV")
    values = value_gain * given[..., None, :, :]
    of_heads = part[..., None, :, :]
    back = kept.mT @ of_heads @ kept
    # Heads that share values add up what they ask of them.
    groups = back.reshape(*back.shape[:-3], stack.key_heads, -1, *back.shape[-2:]).sum(-3)
    below = (kept.mT @ noise[..., None, :, :] @ kept).mean(-3) + share * (groups @ values @ groups.mT).sum(-3)
    energies["WV"] = tokens.total(given * below)
    energies |= bias_gradients(stack, tokens, WV=below)
    noise_below, part_below = value_gain * below, value_gain * share * groups.sum(-3)
    if not stack.query_key_scale:
        return noise_below, part_below, energies
    mixed = kept @ values
    certain = kept * (of_heads @ mixed) * (share * stack.width**0.5)
    certain = certain - patterns.weights * certain.sum(-1, keepdims=True)
    certain = certain if patterns.slopes is None else certain * patterns.slopes
    head = noise[..., None, :, :] / stack.heads + share * of_heads @ (mixed @ kept.mT) @ of_heads.mT
    certain_energies, fresh, along = _along_queries(stack, tokens, given, patterns, certain)
    layouts, kernels = (tokens, tokens), (given, given)
    query_energies, *of_queries = query_path(stack, "W", layouts, kernels, patterns, kept, head, overlaps)
    energies |= {role: query_energies[role] + energy for role, energy in certain_energies.items()}
    return noise_below + fresh + sum(of_queries), part_below + along, energies


def _below_equal_weights(
    stack: Stack, tokens: KernelLayout[Array], energies: SquaredNorms, noise: Array, part: Array, given: Array
) -> tuple[Array, Array, SquaredNorms]:
    """Propagate the gradient back through the values of heads that all have the same fixed attention weights.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        energies: squared gradient norms of the matrices above.
        noise: kernel of the gradient's noise at the attended values.
        part: its coefficients on the attended values.
        given: kernel of the branch's input.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    pattern, n = attention_pattern(stack), given.shape[-1]
    pattern = np.full((n, n), 1.0 / n) if pattern is None else pattern
    value_gain, group = gain(stack, "WV"), stack.heads / stack.key_heads
    back = inner_ratio(stack) * pattern.T @ part @ pattern
    below = pattern.T @ noise @ pattern + (group / inner_ratio(stack) * (back @ (value_gain * given) @ back.mT))
    return (
        value_gain * below,
        value_gain * back,
        energies | {"WV": tokens.total(given * below)} | bias_gradients(stack, tokens, WV=below),
    )


def _along_queries(
    stack: Stack, tokens: KernelLayout[Array], given: Array, patterns: Patterns, certain: Array
) -> tuple[SquaredNorms, Array, Array]:
    """Return the effect of a fixed gradient at the logits: squared norms of W^Q and W^K, noise, and coefficients.

    Heads that share keys have fixed gradients of the same keys, which add up.
    """
    gradients, products = _at_queries_and_keys(stack, patterns, certain)
    shared = gradients[1].reshape(*gradients[1].shape[:-3], stack.key_heads, -1, *gradients[1].shape[-2:]).sum(-3)
    # Gradients are those of s z, with z the coordinates: the logits' scale without the matrix's own.
    sizes, scale = (gain(stack, "WQ"), gain(stack, "WK")), bare_logit_scale(stack) ** 2
    of_both = [scale * other * g @ g.mT for g, other in zip((gradients[0], shared), reversed(sizes), strict=True)]
    queries, keys = (kernel.sum(-3) for kernel in of_both)
    noise = sizes[0] * queries + sizes[1] * keys
    # Tokens that are equal, or nearly, have no inverse.
    inverse = np.linalg.pinv(given, rcond=1e-10, hermitian=True)
    along = logit_scale(stack) * products.sum(-3) @ inverse / stack.width**0.5
    energies: SquaredNorms = {"WQ": tokens.total(given * queries), "WK": tokens.total(given * keys)}
    return energies | bias_gradients(stack, tokens, WQ=queries, WK=keys), noise, along


def _at_queries_and_keys(stack: Stack, patterns: Patterns, certain: Array) -> tuple[tuple[Array, Array], Array]:
    """Return fixed gradients at the coordinates z of queries and of keys, and the sum of their products with these.

    Args:
        stack: the network.
        patterns: the attention samples.
        certain: the fixed gradient ∂a at the logits.

    Returns:
        Σ_j ∂a_ij z_j and Σ_i ∂a_ij z_i, below norms, for every head; and products with z_l, (..., heads, N, N).
    """
    assert patterns.coordinates is not None, "there are queries"
    asking, asked = patterns.coordinates
    every = rows = asking, np.repeat(asked, asking.shape[-3] // asked.shape[-3], axis=-3)
    if patterns.sizes is not None:
        rows = rows[0] / patterns.sizes[0][..., None], rows[1] / patterns.sizes[1][..., None]
    first, second = [rotated(stack, side) for side in rows] if stack.rotary else rows
    gradients = [certain @ second, certain.mT @ first]
    if stack.rotary:
        gradients = [rotated(stack, gradient, -1) for gradient in gradients]
    if patterns.sizes is not None:
        sides = zip(("WQ", "WK"), gradients, rows, patterns.sizes, strict=True)
        gradients = [_below_norm(stack, *side) for side in sides]
    products = [_dot(gradient, side) for gradient, side in zip(gradients, every, strict=True)]
    return (gradients[0], gradients[1]), products[0] + products[1]


def _dot(left: Array, other: Array) -> Array:
    """Return the products of rows of coordinates in one basis; longer rows are cut to the length of the others."""
    axes = min(left.shape[-1], other.shape[-1])
    return np.asarray(left[..., :axes] @ other[..., :axes].mT)


def _below_norm(stack: Stack, role: str, gradient: Array, normed: Array, sizes: Array) -> Array:
    """Return the gradient below the norm of queries or keys, which removes the component along their own direction.

    Args:
        stack: the network.
        role: "WQ" or "WK".
        gradient: gradient above the norm.
        normed: queries or keys after the norm.
        sizes: divisors of the norm.
    """
    along = np.linalg.diagonal(_dot(gradient, normed))[..., None] * gain(stack, role) / stack.key_width
    if stack.query_key_norm == "all":
        along = along.mean(-3, keepdims=True)
    taken = np.pad(gradient, [(0, 0)] * (gradient.ndim - 1) + [(0, max(normed.shape[-1] - gradient.shape[-1], 0))])
    taken[..., : normed.shape[-1]] -= along * normed
    return np.asarray(taken / sizes[..., None])


def below_experts(
    stack: Stack, tokens: KernelLayout[Array], noise: Array, part: Array, inside: SublayerState[Array],
    overlaps: Overlaps[Array], generator: np.random.Generator,
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through experts, including the gradient's part along the branch's output.

    The branch is Σ_e p_ie F_e(u_i), and a shared expert.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        noise: kernel of the gradient's noise at the output, (entries, samples, N, N).
        part: the gradient's coefficients on the output's tokens, (entries, samples, N, N).
        inside: kernels of the sub-layer, (entries, 1, N, N).
        overlaps: the part of the noise that norms above removed.
        generator: random generator of the Gaussian samples.

    Returns:
        Noise and coefficients at the input, and E‖∂L/∂W‖²/d of the matrices.
    """
    whole, energies = noise + part @ inside.made @ part.mT, SquaredNorms()
    below, along = np.zeros_like(whole), np.zeros_like(part)
    for routed in inside.attended:
        weights, kernels = routed.route.weights, (inside.given, routed.output)
        parts = [
            weights[..., :, e, None] * part * weights[..., None, :, e]
            for e in range(weights.shape[-1])
            if weights[..., e].any()
        ]
        to_tokens, known, of_units = below_network(
            stack, tokens, routed.route.overlap * whole, parts, kernels, generator, routed.kind
        )
        below, along, energies = below + to_tokens, along + known, energies | of_units
        if (logits := routed.logits) is not None:
            to_tokens, known, of_router = _below_router(
                stack, tokens, whole, part, (routed, logits), inside.given, overlaps
            )
            below, along, energies = below + to_tokens, along + known, energies | of_router
    return below, along, energies


def _below_router(
    stack: Stack, tokens: KernelLayout[Array], whole: Array, part: Array, of: tuple[Routed, Array], given: Array,
    overlaps: Overlaps[Array],
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through the router of experts.

    The results are noise and coefficients at the tokens, and E‖∂L/∂W^R‖²/d.
    """
    routed, logits = of
    route, role, root = routed.route, routed.kind + "R", stack.width**0.5
    certain = root * (part * routed.output) @ route.weights
    at_logits = route.slopes * certain - route.shares * (route.weights * certain).sum(-1, keepdims=True)
    kernel = at_logits @ at_logits.mT + route.at_logits(routed.output, whole, overlaps)
    # Tokens that are equal, or nearly, have no inverse.
    along = at_logits @ logits.mT @ np.linalg.pinv(given, rcond=1e-10, hermitian=True) / root
    return gain(stack, role) * kernel, along, {role: tokens.positive_total(given * kernel)}
