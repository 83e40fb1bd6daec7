"""Attention with random queries and keys: what a sampled pattern does to the kernel and to the gradient's.

With W^Q, W^K of N(0, s²/d) entries the logits of a head are Gaussian with Cov(a_ij, a_kl) = s⁴ Q_ik Q_jl, whatever the
width of the head. They do not average out at finite n and number of heads, so the recursion is averaged over sampled
patterns; given those, the gradient's kernel passes linearly.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, softmax

from theory.inputs import attention_pattern
from theory.kernels import Kernel, Tokens
from theory.stack import Stack
from theory.sublayers import Branch, BranchPullback, Energies, Overlaps
from theory.weights import gain

Array = NDArray[np.float64]

# Tokens that have aligned make their kernel singular; its root needs no inverse.
_JITTER = 1e-12


def random_attention(stack: Stack, generator: np.random.Generator) -> Branch:
    """softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O over heads, with one sampled pattern per head and entry of the batch."""
    value_gain, head_width = gain(stack, "WV"), stack.width // stack.heads
    projection_gain = 1.0 if stack.output_projection == "identity" else gain(stack, "WO")
    s_sq, linear, tied = stack.query_key_scale**2, stack.attention_scale == "linear", stack.query_key == "tied"
    allowed = attention_pattern(stack)

    def branch(tokens: Tokens, kernel: Kernel) -> tuple[Kernel, BranchPullback, Energies]:
        pattern = _patterns(stack, kernel, allowed, generator)
        q = kernel[..., None, :, :]
        values = value_gain * q
        mixed = pattern @ values @ _t(pattern)
        out = mixed.mean(-3)

        def pullback(gradient: Kernel, overlaps: Overlaps) -> tuple[Kernel, Energies]:
            head = projection_gain * gradient[..., None, :, :] / stack.heads
            to_values = _t(pattern) @ head @ pattern
            corrections = None
            if overlaps is not None:
                scale = (projection_gain / stack.heads) ** 2
                corrections = tuple(scale * one[..., None, :, :] for one in overlaps)
            to_queries, to_keys = _query_key(pattern, q, values, head, corrections)
            energies = {"WV": tokens.total(kernel * to_values.sum(-3))}
            if stack.output_projection == "random":
                energies["WO"] = tokens.total(out * gradient)
            below = value_gain * to_values.sum(-3)
            # ∂L/∂q has the variance s² of a key, and over d_k one power of it less.
            shrink = s_sq / head_width if linear else s_sq
            if tied and linear:
                both = to_queries + to_keys + _crossed(pattern, q, values, head)
                energies["WQ"] = tokens.total(kernel * both.sum(-3)) * shrink
            elif not tied:
                energies["WQ"] = tokens.total(kernel * to_queries.sum(-3)) * shrink
                energies["WK"] = tokens.total(kernel * to_keys.sum(-3)) * shrink
            if not linear and not tied:
                below = below + s_sq**2 * (to_queries + to_keys).sum(-3)
            return below, energies

        # Tied queries and keys at 1/√d_k leave an entropy that is exponentially small in √d_k: not of leading order.
        return out * projection_gain, pullback, {} if tied and not linear else _statistics(pattern)

    return branch


def _t(matrix: Array) -> Array:
    return np.swapaxes(matrix, -1, -2)


def _patterns(stack: Stack, kernel: Array, allowed: Array | None, generator: np.random.Generator) -> Array:
    """One pattern per entry of the batch and head, (batch, heads, N, N), of softmaxed logits.

    With 1/√d_k the logits are s² L Z Lᵀ, L the Cholesky factor of Q. Tied queries and keys add the mean s² √d_k Q, and
    symmetrize. With 1/d_k nothing fluctuates: the logits are 0, or s² Q if tied.
    """
    s_sq, n = stack.query_key_scale**2, kernel.shape[-1]
    shape = (*kernel.shape[:-2], stack.heads, n, n)
    if stack.attention_scale == "linear":
        logits = np.broadcast_to((s_sq * kernel if stack.query_key == "tied" else 0.0 * kernel)[..., None, :, :], shape)
    else:
        size = np.trace(kernel, axis1=-2, axis2=-1)[..., None, None] / n
        root = np.linalg.cholesky(kernel + _JITTER * size * np.eye(n))[..., None, :, :]
        normals = generator.standard_normal(shape)
        if stack.query_key == "tied":
            normals = (normals + _t(normals)) / np.sqrt(2.0)
        logits = s_sq * (root @ normals @ _t(root))
        if stack.query_key == "tied":
            logits = logits + s_sq * np.sqrt(stack.width / stack.heads) * kernel[..., None, :, :]
    if allowed is not None:
        logits = np.where(allowed > 0, logits, -np.inf)
    return softmax(logits, axis=-1)


def _query_key(a: Array, q: Array, values: Array, head: Array, overlaps: Overlaps) -> tuple[Array, Array]:
    """Gradient kernels at queries and keys over s², per head: E⟨∂L/∂q_i, ∂L/∂q_k⟩/s² and that of the keys.

    From ∂a_ij = A_ij (r_ij − Σ_m A_im r_im), r_ij = g_i·v_j Gaussian with Cov(r_ij, r_kl) = G_ik V_jl. Where a norm
    above removed the gradient's component along the stream, which holds Σ_m A_im v_m, r varies less: the overlaps.
    """
    u, aq = a @ values, a @ q
    w = u @ _t(a)
    ap = u * aq
    to_queries = head * (a @ (q * values) @ _t(a) - a @ _t(ap) - ap @ _t(a) + w * (aq @ _t(a)))
    p = head * q
    y = ((_t(a) @ p) * _t(u)) @ a
    to_keys = values * (_t(a) @ p @ a) - y - _t(y) + _t(a) @ (p * w) @ a
    if overlaps is not None:
        first, second = overlaps
        a1 = a * (u - np.diagonal(w, axis1=-2, axis2=-1)[..., None])
        b = a1 @ q
        t = first * ((u * b) @ _t(a) - w * (b @ _t(a)))
        to_queries = to_queries + second * (b @ _t(a1)) - t - _t(t)
        p1 = first * q
        t = _t(a1) @ ((p1 @ a) * u - (p1 * w) @ a)
        to_keys = to_keys + _t(a1) @ (second * q) @ a1 - t - _t(t)
    return to_queries, to_keys


def _crossed(a: Array, q: Array, values: Array, head: Array) -> Array:
    """What a shared matrix adds: the products of query and key gradients, X + Xᵀ."""
    u = a @ values
    w = u @ _t(a)
    weighted = head * 1.0
    x = (
        np.einsum("...jl,...il,...ij,...lk,...jk->...ik", q, weighted, a, a, values, optimize=True)
        - np.einsum("...jl,...il,...ij,...lk,...lj->...ik", q, weighted, a, a, u, optimize=True)
        - np.einsum("...jl,...il,...ij,...lk,...ik->...ik", q, weighted, a, a, u, optimize=True)
        + np.einsum("...jl,...il,...ij,...lk,...il->...ik", q, weighted, a, a, w, optimize=True)
    )
    return x + _t(x)


def _statistics(pattern: Array) -> Energies:
    """Entropy in nats and sum of squared weights of a row, averaged over rows and heads, per entry of the batch."""
    return {
        "attention_entropy": entr(pattern).sum(-1).mean((-2, -1)),
        "attention_squares": np.square(pattern).sum(-1).mean((-2, -1)),
    }
