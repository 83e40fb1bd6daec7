"""The backward pass through attention with tied embeddings, where gradients correlate with the residual stream.

Where the gradient has coefficients M on attention's output, its products with a head's values, r_ij = g_i·v_j, have a
mean of order √d M in addition to their noise. So the gradient at the logits has a mean given the attention weights,
and that at queries and keys is along keys and queries. Through W^Q and W^K it comes back with coefficients on the
tokens, and noise.
"""

import numpy as np

from theory.mean_field.attention.patterns import Patterns, bare_logit_scale, logit_scale, rotated
from theory.mean_field.attention.sampled import query_path
from theory.mean_field.inputs import attention_pattern
from theory.mean_field.kernels import Array, KernelLayout
from theory.mean_field.sublayers import Overlaps, SquaredNorms, SublayerState, bias_gradients
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio


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
