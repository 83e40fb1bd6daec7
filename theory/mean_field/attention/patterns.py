"""Sampling of random attention weights: queries, keys and logits of heads of width d_k, and attention dropout.

A head's queries q_i = x_i W^Q and keys k_j = x_j W^K have d_k coordinates, which are independent Gaussians with
covariance s² Q; queries and keys each have their own s. The logits a_ij = q_i·k_j/√d_k (or divided by d_k) are
Gaussian given the queries, and Gaussian themselves only as d_k grows. A gradient also needs q_i·q_k/d_k and
k_j·k_l/d_k, which vary with the logits.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from theory.coverage import holds_words
from theory.mean_field.kernels import Array, cholesky
from theory.stack import Stack
from theory.stack.weights import gain

# The fractional part of the golden ratio, whose multiples are spread evenly.
_GOLDEN = (5.0**0.5 - 1.0) / 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Patterns:
    """The sampled attention weights of every head, and the products of queries and of keys that gradients need.

    Attributes:
        weights: the softmax of the logits, (batch, heads, N, M).
        queries: q_i·q_k/(s² d_k), (batch, heads, N, N), or after a norm q_i·q_k/d_k; the kernel if queries are
            not random.
        keys: k_j·k_l/(s² d_k), (batch, heads, M, M), or after a norm k_j·k_l/d_k; the kernel if queries are
            not random.
        sizes: divisors of the norms of queries and keys, (batch, heads, N) and (batch, heads, M); None without norms.
        slopes: slopes of the cap on logits, (batch, heads, N, M); None without a cap.
        coordinates: q_i/s and k_j/s in a basis that the heads of one group share, (batch, heads, N, r) and, for heads
            with keys of their own, (batch, key heads, M, r'). The first r axes of the keys are those of the queries.
            None unless queries are random, and either embeddings are tied or the batch has one entry.
        turns: factors on a logit's change with rotary positions, (batch, heads, N, M), as in `_turns`; None without
            rotary positions.
    """

    weights: Array
    queries: Array
    keys: Array
    sizes: tuple[Array, Array] | None = None
    slopes: Array | None = None
    coordinates: tuple[Array, Array] | None = None
    turns: Array | None = None


def sampled_patterns(
    stack: Stack, query_tokens: Array, key_tokens: Array, allowed: Array | None, generator: np.random.Generator, *,
    tied: bool = False, mirrored: bool = False,
) -> Patterns:  # fmt: skip
    """Sample attention weights from random queries and keys; without random queries, the weights are uniform.

    Queries and keys have the d_k coordinates of a head.

    Args:
        stack: the network.
        query_tokens: kernel of the N tokens that attend, (batch, N, N).
        key_tokens: kernel of the M tokens that are attended to, (batch, M, M).
        allowed: number of keys that each entry represents, up to a factor for each row, and 0 where a token may not
            attend, (N, M); None if all attend to all.
        generator: random generator of the queries and keys.
        tied: whether queries are the keys, with one kernel.
        mirrored: whether entries of the batch come in pairs, of which the second has the first's normals with the
            signs of the keys reversed. It has the same law, and odd functions of the logits cancel in the mean.
    """
    shape = (*query_tokens.shape[:-2], stack.heads, query_tokens.shape[-1], key_tokens.shape[-1])
    logits, queries, keys = np.zeros(shape), query_tokens, key_tokens
    sizes = slopes = turns = coordinates = None
    if stack.query_key_scale:
        roots = cholesky(query_tokens)[..., None, :, :], cholesky(key_tokens)[..., None, :, :]
        rows, along, of_keys = _sampled_queries_and_keys(stack, roots, shape, generator, tied=tied, mirrored=mirrored)
        # Only tied embeddings, and first steps of one entry, use the coordinates.
        coordinates = (rows, of_keys) if holds_words(stack) or len(query_tokens) == 1 else None
        group = stack.heads // stack.key_heads
        queries, keys = (root @ root.mT / stack.key_width for root in (rows, of_keys))
        if group > 1:
            keys = np.repeat(keys, group, axis=-3)
        if stack.rotary:
            turns = _turns(stack, shape[:-2], generator.spawn(1)[0])
            rows, along = rotated(stack, rows), rotated(stack, along)
        if group > 1:  # heads of a group are more queries of the same keys
            rows = rows.reshape(*rows.shape[:-3], stack.key_heads, -1, rows.shape[-1])
        logits = (logit_scale(stack) * (rows @ along.mT)).reshape(shape)
        if mirrored:
            logits[1::2] *= -1.0
        if stack.query_key_norm != "none":
            first, second = sizes = _sizes(stack, "WQ", queries), _sizes(stack, "WK", keys)
            logits = logits / (first[..., :, None] * second[..., None, :])
            queries, keys = (
                gain(stack, role) * product / (size[..., :, None] * size[..., None, :])
                for role, product, size in (("WQ", queries, first), ("WK", keys, second))
            )
        if stack.logit_softcap:
            capped = np.tanh(logits / stack.logit_softcap)
            logits, slopes = stack.logit_softcap * capped, 1.0 - capped**2
    if allowed is not None:
        shares = allowed / allowed.max(-1, keepdims=True)
        logits = np.where(allowed > 0, logits + np.log(np.where(allowed > 0, shares, 1.0)), -np.inf)
    return Patterns(softmax(logits, axis=-1), queries, keys, sizes, slopes, coordinates, turns)


def _sampled_queries_and_keys(
    stack: Stack, roots: tuple[Array, Array], shape: tuple[int, ...], generator: np.random.Generator, *,
    tied: bool, mirrored: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return coordinates of random queries and of their keys, whose products have the law of logits, and of all keys.

    Args:
        stack: the network.
        roots: roots of the kernels of the query and the key tokens, (batch, 1, N, N) and (batch, 1, M, M).
        shape: shape of the logits, (batch, heads, N, M).
        generator: random generator of the normals.
        tied: whether queries are the keys.
        mirrored: whether two entries of the batch share their normals.
    """
    left, right = roots
    if tied:
        return (left @ wishart_root(shape[:-1], stack.key_width, generator),) * 3
    drawn = (shape[0] // 2, *shape[1:]) if mirrored else shape

    def of_tokens(root: Array, normals: Array) -> Array:
        if not mirrored:
            return root @ normals
        both = root.reshape(-1, 2, *root.shape[1:]) @ normals[:, None]
        return both.reshape(-1, *both.shape[2:])

    if stack.rotary:
        rows = of_tokens(left, generator.standard_normal((*drawn[:-1], stack.key_width)))
        groups = generator.standard_normal((*drawn[:-3], stack.key_heads, shape[-1], stack.key_width))
        keys = of_tokens(right, groups)
        return rows, keys, keys
    sides = zip((left, right, right), _grouped_roots(stack, drawn, generator), strict=True)
    rows, along, of_keys = (of_tokens(root, normals) for root, normals in sides)
    return rows, along, of_keys


def logit_scale(stack: Stack) -> float:
    """Return the factor that turns the product of a query and a key of unit variance into their attention logit.

    It is √(gain of W^Q · gain of W^K) times the factor of q·k. Norms of queries and keys and caps on logits are not
    included.
    """
    return float((gain(stack, "WQ") * gain(stack, "WK")) ** 0.5 * bare_logit_scale(stack))


def bare_logit_scale(stack: Stack) -> float:
    """Return the factor of q·k in attention logits: 1/√d_k or 1/d_k, times the network's `logit_factor`."""
    return stack.logit_factor / (stack.key_width if stack.attention_scale == "linear" else stack.key_width**0.5)


def logit_shrink(stack: Stack) -> float:
    """Return the factor on squared gradients of queries and keys that comes from the scale of attention logits.

    It is d_k times the squared factor of q·k in logits, and 1 for the usual factor 1/√d_k. The extra projection by a
    norm of queries and keys is O(1/d_k) and neglected.
    """
    return float(stack.key_width * bare_logit_scale(stack) ** 2)


def _sizes(stack: Stack, role: str, products: Array) -> Array:
    """Return the root mean squares of queries or keys, for each head or for all heads together, (..., heads, N)."""
    return normed_sizes(stack, role, np.linalg.diagonal(products), -2)


def normed_sizes(stack: Stack, role: str, squares: Array, heads: int) -> Array:
    """Return the root mean squares by which a norm divides queries or keys.

    They follow from the mean squares without the gain of W^Q or W^K.

    Args:
        stack: the network.
        role: "WQ" or "WK".
        squares: mean squares divided by the matrix's gain.
        heads: axis of the heads, over which a norm of all heads averages.
    """
    squares = gain(stack, role) * squares
    if stack.query_key_norm == "all":
        squares = np.broadcast_to(squares.mean(heads, keepdims=True), squares.shape)
    return np.sqrt(squares + stack.norm_epsilon)


def _positions(stack: Stack) -> NDArray[np.int64]:
    """Return the position of every row in its sequence, (N,)."""
    return np.tile(np.arange(stack.tokens), stack.sequences)


def frequencies(stack: Stack) -> Array:
    """Return the rotary frequencies, in radians per position, of the rotated coordinate pairs of a head."""
    return _frequencies(stack.rotary_base, stack.rotary_width)


def _frequencies(base: float, width: int) -> Array:
    return np.asarray(base ** (-np.arange(0, width, 2) / width))


def rotated(stack: Stack, rows: Array, sense: int = 1) -> Array:
    """Apply rotary position embeddings to the queries or keys, (..., N, d_k), of all tokens.

    Args:
        stack: the network.
        rows: queries or keys.
        sense: 1 to rotate, −1 to rotate back.
    """
    return rotated_by(stack, _positions(stack), rows, sense)


def rotated_by(stack: Stack, places: NDArray[Any], rows: Array, sense: int = 1) -> Array:
    """Apply rotary position embeddings to queries or keys at given positions, which may lie between tokens.

    Args:
        stack: the network.
        places: positions of the rows, (N,).
        rows: queries or keys.
        sense: 1 to rotate, −1 to rotate back.

    Source: Su et al. (2021), section 3.4.2.
    """
    cos, sin = _turning(stack.rotary_base, stack.rotary_width, places.tobytes(), places.dtype.str)
    half, sin = cos.shape[1], sense * sin
    first, second = rows[..., :half], rows[..., half : 2 * half]
    result = np.empty_like(rows)
    np.multiply(first, cos, out=result[..., :half])
    np.multiply(second, cos, out=result[..., half : 2 * half])
    crossed = second * sin
    result[..., :half] -= crossed
    result[..., half : 2 * half] += np.multiply(first, sin, out=crossed)
    result[..., 2 * half :] = rows[..., 2 * half :]
    return result


@lru_cache(maxsize=32)  # every layer and step turns the same places
def _turning(base: float, width: int, places: bytes, kind: str) -> tuple[Array, Array]:
    """Return cosines and sines of the angles at given positions, as the bytes of an array."""
    angles = np.frombuffer(places, kind)[:, None] * _frequencies(base, width)
    return np.cos(angles), np.sin(angles)


def _turns(stack: Stack, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return √2 cos((j − i) θ + φ) for one random pair of a head's coordinates and one random phase.

    The result is 1 for coordinates that are not rotated. q_i is rotated by i and k_j by j, so that products k_j·k_l
    come with the mean of cos((j − l) θ − (i − k) θ) over a head's coordinates, up to O(1/d_k). This is the mean of
    t_ij t_kl over θ and φ, where t is the result. Computing every i − k separately would cost n times as much and
    give the same mean, since all later steps are linear in it. The heads' coordinates and phases are spread evenly,
    on a lattice that is shifted at random.

    Args:
        stack: the network.
        shape: (..., heads).
        generator: random generator of the lattice's shift.

    Returns:
        An array of shape (..., heads, N, N).
    """
    shift = generator.random((*shape[:-1], 1, 2))
    lattice = np.arange(shape[-1])[:, None] * [1.0 / shape[-1], _GOLDEN]
    place = _positions(stack)
    pair, phase = np.moveaxis((lattice + shift) % 1.0, -1, 0)
    index = (pair * (stack.key_width / 2)).astype(int)
    theta = frequencies(stack)
    rotates = index < len(theta)
    angles = (place - place[:, None]) * theta[index * rotates][..., None, None] + np.pi * phase[..., None, None]
    return np.where(rotates[..., None, None], np.sqrt(2.0) * np.cos(angles), 1.0)


def _grouped_roots(stack: Stack, shape: tuple[int, ...], generator: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return square roots of the products of queries and of keys, for heads that may share keys in groups.

    Args:
        stack: the network.
        shape: (..., heads, N, M).
        generator: random generator of the normals.

    Returns:
        The arrays of `_query_and_key_roots`: (..., heads, N, r) for queries, and (..., key heads, M, r') for keys.
    """
    *batch, heads, query_tokens, key_tokens = shape
    group, head_width = heads // stack.key_heads, stack.key_width
    if group == 1:
        return _query_and_key_roots(shape, head_width, generator)
    of_groups = (*batch, stack.key_heads, group * query_tokens, key_tokens)
    rows, along, of_keys = _query_and_key_roots(of_groups, head_width, generator)
    return rows.reshape(*batch, heads, query_tokens, rows.shape[-1]), along, of_keys


def _query_and_key_roots(
    shape: tuple[int, ...], head_width: int, generator: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Return square roots of the products of independent normal queries Z_q and keys Z_k with d_k coordinates.

    They contain as few random numbers as the products. In an orthonormal basis that begins with one of the queries'
    span, Z_q = R O, the keys are normal again. So the products are R Rᵀ of the queries, R Nᵀ of queries and keys with
    N = Z_k Oᵀ, and N Nᵀ + S Sᵀ of the keys, with S a root in the remaining coordinates.

    Args:
        shape: shape of the products of queries and keys, (..., N, M).
        head_width: d_k.
        generator: random generator of the normals.

    Returns:
        R, (..., N, r) with r = min(N, d_k); N, (..., M, r); and [N, S], (..., M, r + min(M, d_k − r)).
    """
    # The normals of infinite heads come from the generator itself, so that wide heads have the patterns of these.
    others = generator.spawn(1)[0]
    spanned = min(shape[-2], head_width)
    along = generator.standard_normal((*shape[:-2], spanned, shape[-1])).mT
    rows = wishart_root(shape[:-1], head_width, others)
    rest = wishart_root((*shape[:-2], shape[-1]), head_width - spanned, others)
    return rows, along, np.concatenate([along, rest], axis=-1)


def wishart_root(shape: tuple[int, ...], degrees: int, generator: np.random.Generator) -> Array:
    """Sample a matrix R such that R Rᵀ is distributed like the Gram matrix of vectors of N(0, 1) numbers.

    The matrix is lower trapezoidal: this is Bartlett's decomposition.

    Args:
        shape: (..., rows).
        degrees: number of coordinates of a row, at least 0.
        generator: random generator of the entries.

    Returns:
        An array of shape (..., rows, min(rows, degrees)).
    """
    columns = min(shape[-1], degrees)
    root = np.tril(generator.standard_normal((*shape, columns)), -1)
    steps = np.arange(columns)
    root[..., steps, steps] = np.sqrt(generator.chisquare(degrees - steps, (*shape[:-1], columns)))
    return root


def dropped(stack: Stack, weights: Array, generator: np.random.Generator) -> Array:
    """Apply dropout to attention weights: set a random share of them to 0, and scale up the others."""
    if not stack.attention_dropout:
        return weights
    return weights * (generator.random(weights.shape) >= stack.attention_dropout) / (1.0 - stack.attention_dropout)
