"""Attention with weights that are not fixed: what one pattern does to the kernel and to the gradient's.

With random W^Q, W^K of N(0, s²/d) entries the logits of a head are Gaussian with Cov(a_ij, a_kl) = s⁴ Q_ik Q_jl,
whatever the width of the head. Neither they nor dropped weights average out at finite n and number of heads, so the
recursion is averaged over sampled patterns; given those, the gradient's kernel passes linearly.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, softmax

from theory.inputs import attention_pattern
from theory.kernels import Kernel, Tokens, cholesky
from theory.stack import Stack
from theory.sublayers import Branch, BranchPullback, Energies, Overlaps
from theory.weights import gain

Array = NDArray[np.float64]


def is_fluctuating(stack: Stack) -> bool:
    """Whether attention weights differ from network to network at large width."""
    return stack.attention_dropout > 0.0 or (stack.query_key_scale > 0.0 and stack.attention_scale == "sqrt")


def is_approximate(stack: Stack) -> bool:
    """Whether W^Q and W^K have a rule that leaves overlaps of leading order out: where no norm stands anywhere.

    The gradient then has a deterministic component along the stream, which holds the values (docs/queries.md).
    """
    composition = stack.composition
    normed = composition.input_norm or composition.stream_norm or composition.output_norm
    return stack.query_key_scale > 0.0 and not normed


def random_attention(stack: Stack, generator: np.random.Generator) -> Branch:
    """softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O over heads, with one pattern per head and entry of the batch."""
    value_gain = gain(stack, "WV")
    projection_gain = 1.0 if stack.output_projection == "identity" else gain(stack, "WO")
    allowed = attention_pattern(stack)
    # Tied queries and keys over √d_k have no rule for their own gradient, and an entropy that is exponentially small.
    queries = stack.query_key_scale > 0.0 and not (stack.query_key == "tied" and stack.attention_scale == "sqrt")

    def branch(tokens: Tokens, kernel: Kernel) -> tuple[Kernel, BranchPullback, Energies]:
        softmaxed = _patterns(stack, kernel, allowed, generator)
        pattern = _dropped(stack, softmaxed, generator)
        q = kernel[..., None, :, :]
        values = value_gain * q
        out = (pattern @ values @ pattern.mT).mean(-3)

        def pullback(gradient: Kernel, overlaps: Overlaps) -> tuple[Kernel, Energies]:
            head = projection_gain * gradient[..., None, :, :] / stack.heads
            to_values = (pattern.mT @ head @ pattern).sum(-3)
            energies, below = {"WV": tokens.total(kernel * to_values)}, value_gain * to_values
            if stack.output_projection == "random":
                energies["WO"] = tokens.total(out * gradient)
            if queries:
                scale = (projection_gain / stack.heads) ** 2
                removed = None if overlaps is None else tuple(scale * one[..., None, :, :] for one in overlaps)
                more, of_queries = _query_path(stack, tokens, kernel, (softmaxed, pattern), values, head, removed)
                energies, below = energies | more, below + of_queries
            return below, energies

        return out * projection_gain, pullback, _statistics(softmaxed) if queries else {}

    return branch


def _query_path(
    stack: Stack, tokens: Tokens, kernel: Array, patterns: tuple[Array, Array], values: Array, head: Array,
    removed: Overlaps,
) -> tuple[Energies, Array]:  # fmt: skip
    """Energies of W^Q and W^K, and the gradient kernel that passes through them to the tokens.

    Patterns are those before and after some weights were dropped.
    """
    s_sq, q = stack.query_key_scale**2, kernel[..., None, :, :]
    to_queries, to_keys = _query_key(*patterns, q, values, head, removed)
    if stack.attention_scale == "sqrt":
        parts = {"WQ": to_queries.sum(-3), "WK": to_keys.sum(-3)}
        return {role: s_sq * tokens.total(kernel * part) for role, part in parts.items()}, s_sq**2 * sum(parts.values())
    # Over d_k a gradient is smaller by √d_k, and nothing of it reaches the tokens.
    parts = {"WQ": to_queries, "WK": to_keys}
    if stack.query_key == "tied":
        parts = {"WQ": to_queries + to_keys + _crossed(*patterns, q, values, head, removed)}
    shrink = s_sq * stack.heads / stack.width
    return {role: shrink * tokens.total(kernel * part.sum(-3)) for role, part in parts.items()}, 0.0 * kernel


def _patterns(stack: Stack, kernel: Array, allowed: Array | None, generator: np.random.Generator) -> Array:
    """One pattern per entry of the batch and head, (batch, heads, N, N), of softmaxed logits.

    With 1/√d_k the logits are s² L Z Lᵀ, L the Cholesky factor of Q. Tied queries and keys add the mean s² √d_k Q, and
    symmetrize. With 1/d_k nothing fluctuates: the logits are 0, or s² Q if tied; and 0 if there are none.
    """
    s_sq, n = stack.query_key_scale**2, kernel.shape[-1]
    shape = (*kernel.shape[:-2], stack.heads, n, n)
    if stack.attention_scale == "linear" or not stack.query_key_scale:
        mean = s_sq if stack.query_key == "tied" else 0.0
        logits = np.broadcast_to((mean * kernel)[..., None, :, :], shape)
    else:
        root = cholesky(kernel)[..., None, :, :]
        normals = generator.standard_normal(shape)
        if stack.query_key == "tied":
            normals = (normals + normals.mT) / np.sqrt(2.0)
        logits = s_sq * (root @ normals @ root.mT)
        if stack.query_key == "tied":
            logits = logits + s_sq * np.sqrt(stack.width / stack.heads) * kernel[..., None, :, :]
    if allowed is not None:
        logits = np.where(allowed > 0, logits, -np.inf)
    return np.asarray(softmax(logits, axis=-1))


def _dropped(stack: Stack, pattern: Array, generator: np.random.Generator) -> Array:
    """The pattern with a share of its weights 0, and the others as much larger."""
    if not stack.attention_dropout:
        return pattern
    kept = generator.random(pattern.shape) >= stack.attention_dropout
    return pattern * kept / (1.0 - stack.attention_dropout)


def _held(a: Array, b: Array, values: Array) -> tuple[Array, Array, Array]:
    """B V, B V Bᵀ, and what a logit changes of the overlap of the attended values with themselves: ∂(B V)_ii/∂a_ij."""
    u = b @ values
    w = u @ b.mT
    return u, w, b * u - a * np.linalg.diagonal(w)[..., None]


def _query_key(a: Array, b: Array, q: Array, values: Array, head: Array, overlaps: Overlaps) -> tuple[Array, Array]:
    """Gradient kernels at queries and keys over s², per head: E⟨∂L/∂q_i, ∂L/∂q_k⟩/s² and that of the keys.

    From ∂a_ij = B_ij r_ij − A_ij Σ_m B_im r_im, B the weights A that were not dropped and r_ij = g_i·v_j Gaussian with
    Cov(r_ij, r_kl) = G_ik V_jl. Where a norm above removed the gradient's component along the stream, which holds
    Σ_m B_im v_m, r varies less: the overlaps.
    """
    u, w, a1 = _held(a, b, values)
    aq = a @ q
    crossed = b @ (u * aq).mT
    to_queries = head * (b @ (q * values) @ b.mT - crossed - crossed.mT + w * (aq @ a.mT))
    p = head * q
    y = ((b.mT @ p) * u.mT) @ a
    to_keys = values * (b.mT @ p @ b) - y - y.mT + a.mT @ (p * w) @ a
    if overlaps is not None:
        first, second = overlaps
        a1q = a1 @ q
        t = first * ((u * a1q) @ b.mT - w * (a1q @ a.mT))
        to_queries = to_queries + second * (a1q @ a1.mT) - t - t.mT
        p1 = first * q
        t = a1.mT @ ((p1 @ b) * u - (p1 * w) @ a)
        to_keys = to_keys + a1.mT @ (second * q) @ a1 - t - t.mT
    return to_queries, to_keys


def _crossed(a: Array, b: Array, q: Array, values: Array, head: Array, overlaps: Overlaps) -> Array:
    """What a shared matrix adds: the products of query and key gradients, X + Xᵀ."""
    u, w, a1 = _held(a, b, values)
    x = (
        np.einsum("...jl,...il,...ij,...lk,...jk->...ik", q, head, b, b, values, optimize=True)
        - np.einsum("...jl,...il,...ij,...lk,...lj->...ik", q, head, b, a, u, optimize=True)
        - np.einsum("...jl,...il,...ij,...lk,...ik->...ik", q, head, a, b, u, optimize=True)
        + np.einsum("...jl,...il,...ij,...lk,...il->...ik", q, head, a, a, w, optimize=True)
    )
    if overlaps is not None:
        first, second = overlaps
        a1q = a1 @ q
        x = x - (u * ((a1q * first) @ b) - (a1q * first * w) @ a)
        x = x - (first * ((q * u) @ b.mT - w * (q @ a.mT))).mT @ a1 + (a1q * second) @ a1
    return x + x.mT


def _statistics(pattern: Array) -> Energies:
    """Entropy in nats and sum of squared weights of a row, averaged over rows and heads, per entry of the batch."""
    return {
        "attention_entropy": entr(pattern).sum(-1).mean((-2, -1)),
        "attention_squares": np.square(pattern).sum(-1).mean((-2, -1)),
    }
