"""The effect of random attention on products of two tokens and of their gradients, given sampled weights.

Neither logits of random W^Q and W^K nor dropped weights average out at finite n and number of heads. So the recursion
is averaged over sampled attention weights, with their law at the width of a head. Given the weights, the map of the
gradient kernel is linear.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
from scipy.special import entr

from theory.mean_field.attention.cross import Memory
from theory.mean_field.attention.patterns import Patterns, dropped, logit_shrink, sampled_patterns
from theory.mean_field.kernels import Array, KernelLayout
from theory.mean_field.sublayers import (
    Branch,
    BranchPullback,
    NormOverlaps,
    Overlaps,
    Recorded,
    SquaredNorms,
    bias_gradients,
)
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio

# Tied queries and keys over √d_k: in wider heads a token looks at others in rare patterns, at first one pair in some
# e^(d_k/6). All of W^Q's gradient and of the entropy is theirs, so that no mean of samples is to be trusted.
_WIDEST_TIED_HEAD = 32


def looks_at_itself(stack: Stack) -> bool:
    """Return whether a token's attention logit for itself systematically exceeds its logits for other tokens.

    This is the case if queries are the keys and logits are divided by √d_k. The difference is then s² √d_k,
    with s² the variance of a query's coordinates for a token of unit variance.
    """
    return stack.query_key_scale > 0.0 and (stack.query_key, stack.attention_scale) == ("tied", "sqrt")


def random_attention(stack: Stack, allowed: Array | None, generator: np.random.Generator) -> Branch[Array]:
    """Return the forward and backward pass of attention, with one sample of its weights per head and batch entry.

    The branch is softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O.

    Args:
        stack: the network.
        allowed: positive where a token may attend, (N, N); None if all attend to all.
        generator: random generator of the attention samples.
    """
    tied, queries = stack.query_key == "tied", stack.query_key_scale > 0.0
    alone = looks_at_itself(stack) and stack.key_width > _WIDEST_TIED_HEAD

    def branch(tokens: KernelLayout[Array], kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        mirrored = tokens.mirrored
        patterns = sampled_patterns(stack, kernel, kernel, allowed, generator, tied=tied, mirrored=mirrored)
        out, kept, attended = _attend(stack, "W", tokens, tokens, kernel, patterns.weights, generator)

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            head, below, energies = attended(gradient)
            if queries:
                kernels = kernel, kernel
                query_energies, *of_queries = query_path(
                    stack, "W", (tokens, tokens), kernels, patterns, kept, head, overlaps
                )
                if mirrored:
                    query_energies = _controlled(stack, tokens, query_energies, kernel, patterns, head, overlaps)
                energies, below = energies | ({} if alone else query_energies), below + sum(of_queries)
            return below, energies

        recorded: Recorded = {"attended": (patterns, kept)}
        if queries and not alone:
            # Means over rows and heads, one for each entry of the batch; the entropy is in nats.
            recorded["attention_entropy"] = entr(patterns.weights).sum(-1).mean((-2, -1))
            recorded["attention_squares"] = np.square(patterns.weights).sum(-1).mean((-2, -1))
        return out, pullback, recorded

    return branch


def random_cross_attention(
    stack: Stack, memory: Memory[Array], generator: np.random.Generator, *, mirrored: bool = False
) -> Branch[Array]:
    """Return the forward and backward pass of cross-attention with random queries and keys.

    The encoder's output has no overlap with the tokens that attend in all networks with shared matrices that have a
    rule.

    Args:
        stack: the network.
        memory: the encoder's output.
        generator: random generator of the attention samples.
        mirrored: whether entries of the batch come in pairs with opposite logits, as in `sampled_patterns`.
    """

    def branch(tokens: KernelLayout[Array], kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        patterns = sampled_patterns(stack, kernel, memory.kernel, memory.attention, generator, mirrored=mirrored)
        layouts = tokens, memory.tokens
        out, kept, attended = _attend(stack, "X", *layouts, memory.kernel, patterns.weights, generator)

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            head, to_memory, energies = attended(gradient)
            below = 0.0 * kernel
            if stack.query_key_scale:
                kernels = kernel, memory.kernel
                query_energies, below, of_keys = query_path(
                    stack, "X", layouts, kernels, patterns, kept, head, overlaps
                )
                energies, to_memory = energies | query_energies, to_memory + of_keys
            memory.receive(to_memory)
            return below, energies

        return out, pullback, {}

    return branch


def _attend(
    stack: Stack,
    kind: str,
    asking: KernelLayout[Array],
    tokens: KernelLayout[Array],
    keys: Array,
    softmaxed: Array,
    generator: np.random.Generator,
) -> tuple[Array, Array, Callable[[Array], tuple[Array, Array, SquaredNorms]]]:
    """Return the attention outputs, the attention weights after dropout, and the backward pass through the values.

    Args:
        stack: the network.
        kind: first letter of the matrices' roles.
        asking: layout of the tokens that attend.
        tokens: layout of the tokens that are attended to.
        keys: kernel of the tokens that are attended to.
        softmaxed: attention weights before dropout.
        generator: random generator of the dropped weights.

    Returns:
        The kernel of the output; the attention weights after dropout; and a function of the gradient kernel at the
        output. The function returns the gradient kernel of one head's attended values, that of the attended tokens,
        and the squared gradient norms of W^V and W^O, divided by d.
    """
    value_gain = gain(stack, kind + "V")
    projection_gain = head_gain(stack, kind)
    pattern = dropped(stack, softmaxed, generator)
    # Without a matrix after them what heads make is what the branch adds, whose products are drawn there.
    projected = stack.output_projection == "random"
    values = tokens.images(keys, stack.key_width, stack.key_heads) if projected else keys[..., None, :, :]
    if 1 < values.shape[-3] < stack.heads:  # shared by groups of heads
        values = np.repeat(values, stack.heads // stack.key_heads, axis=-3)
    out = value_gain * (pattern @ values @ pattern.mT).mean(-3)

    def back(gradient: Array) -> tuple[Array, Array, SquaredNorms]:
        head = projection_gain * gradient[..., None, :, :] / stack.heads
        to_values = (pattern.mT @ head @ pattern).sum(-3)
        energies = {kind + "V": tokens.total(keys * to_values)}
        if projected:
            energies[kind + "O"] = asking.total(out * gradient) * inner_ratio(stack)
            energies |= bias_gradients(stack, asking, **{kind + "O": gradient})
        energies |= bias_gradients(stack, tokens, **{kind + "V": to_values})
        return head, value_gain * to_values, energies

    return out * projection_gain, pattern, back


def query_path(
    stack: Stack, kind: str, layouts: tuple[KernelLayout[Array], KernelLayout[Array]], kernels: tuple[Array, Array],
    patterns: Patterns, kept: Array, head: Array, removed: Overlaps[Array],
) -> tuple[SquaredNorms, Array, Array]:  # fmt: skip
    """Return E‖∂L/∂W‖²/d for W^Q and W^K, and the kernels of the gradients that queries and keys pass to tokens.

    A gradient at the queries is a sum of keys. Their products are those sampled for the head, not their mean, the
    kernel.

    Args:
        stack: the network.
        kind: first letter of the matrices' roles.
        layouts: layouts of the query tokens and the key tokens.
        kernels: kernels of the query tokens and the key tokens.
        patterns: the attention samples.
        kept: attention weights after dropout.
        head: gradient kernel at one head's attended values.
        removed: overlaps that the norms above removed.
    """
    weights, products = patterns.weights, (patterns.queries, patterns.keys)
    values, removed = gain(stack, kind + "V") * kernels[1][..., None, :, :], _of_a_head(stack, kind, removed)
    factors = [factor for factor in (patterns.slopes, patterns.turns) if factor is not None]
    inner = Inner.of(weights, kept, values, head, removed, reduce(mul, factors) if factors else None)
    to_queries, to_keys = inner.at_queries(products[1]), inner.at_keys(products[0])
    tied = stack.query_key == "tied"
    if tied and kind == "W":
        to_queries = to_queries + _crossed(weights, kept, patterns.queries, values, head, removed)
    shrink = logit_shrink(stack)
    gains = {"Q": gain(stack, "WQ"), "K": gain(stack, "WK")}
    others = {"Q": gains["K"], "K": gains["Q"]} if patterns.sizes is None else {"Q": 1.0, "K": 1.0}
    if patterns.sizes is not None:
        to_queries, to_keys = (
            part / (size[..., :, None] * size[..., None, :])
            for part, size in zip((to_queries, to_keys), patterns.sizes, strict=True)
        )
    parts = {"Q": (to_queries, kernels[0], layouts[0]), "K": (to_keys, kernels[1], layouts[1])}
    # Of identical tokens these are zero, which rounding must not make negative, and exactly where each sees one token.
    moved = bool((weights.max(-1) < 1.0).any())
    energies = {
        kind + role: shrink * others[role] * moved * tokens.positive_total(kernel * part.sum(-3))
        for role, (part, kernel, tokens) in parts.items()
    }
    if tied:
        energies = {kind + "Q": sum(energies.values())}
    else:
        for role, (part, _, tokens) in parts.items():
            energies |= bias_gradients(stack, tokens, **{kind + role: shrink * others[role] * part.sum(-3)})
    below = (gains[role] * others[role] * shrink * part.sum(-3) for role, (part, *_) in parts.items())
    return energies, *below


def _of_a_head(stack: Stack, kind: str, removed: Overlaps[Array]) -> Overlaps[Array]:
    """Return one head's part of the gradient components that the norms above removed."""
    if removed is None:
        return None
    scale = (head_gain(stack, kind) / stack.heads) ** 2
    return NormOverlaps(*(scale * overlap[..., None, :, :] for overlap in (removed.first, removed.second)))


def _controlled(
    stack: Stack,
    tokens: KernelLayout[Array],
    energies: SquaredNorms,
    kernel: Array,
    patterns: Patterns,
    head: Array,
    overlaps: Overlaps[Array],
) -> SquaredNorms:
    """Return the squared gradient norms of W^Q and W^K less a control variate of mean 0, which reduces their variance.

    The control variate is linear in the deviation of the sampled products of keys and queries from their mean. Given
    attention weights, the squared norms are linear in these products, whose mean is the kernel given all layers
    below. For one half of the batch the coefficients come from the mean attention weights and gradient of the other
    half, which are independent, so there is no bias. Nothing is changed with norms of queries and keys, for which the
    mean differs, and for one token, whose weights are always 1.
    """
    half = len(kernel) // 4 * 2
    if patterns.sizes is not None or not half or stack.tokens == 1:
        return energies
    controlled: dict[str, Any] = {name: np.array(value) for name, value in energies.items()}
    removed = _of_a_head(stack, "W", overlaps)
    for these, others in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):

        def mean(array: Array, others: slice = others) -> Array:
            return np.asarray(array[others].mean(0))

        pattern, reference = mean(patterns.weights).mean(0), mean(kernel)
        of_norms = None if removed is None else NormOverlaps(mean(removed.first), mean(removed.second))
        turns = None if patterns.turns is None else patterns.turns[others][0]
        inner = Inner.of(pattern, pattern, gain(stack, "WV") * reference, mean(head), of_norms, turns)
        for role, other, slope, products in (
            ("WQ", "WK", inner.at_keys(reference), patterns.keys),
            ("WK", "WQ", inner.at_queries(reference), patterns.queries),
        ):
            known = tokens.total(slope.mean(0) * (products[these].sum(-3) - stack.heads * kernel[these]))
            controlled[role][..., these] -= logit_shrink(stack) * gain(stack, other) * known
    return controlled


def head_gain(stack: Stack, kind: str) -> float:
    """Return the factor of W^O on the mean squared activation, or 1 for a network without W^O."""
    return 1.0 if stack.output_projection == "identity" else gain(stack, kind + "O")


def _held(a: Array, b: Array, values: Array) -> tuple[Array, Array, Array]:
    """Return B V, B V Bᵀ, and half the derivative of attended values' self-overlap by a logit, ½ ∂(B V Bᵀ)_ii/∂a_ij."""
    u = b @ values
    w = u @ b.mT
    return u, w, b * u - a * np.linalg.diagonal(w)[..., None]


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """The gradients with respect to the queries and keys of one head, for given products of keys and of queries.

    The gradient of a logit is ∂a_ij = B_ij r_ij − A_ij Σ_m B_im r_im. A are the weights, B those that were not
    dropped, and r_ij = g_i·v_j has Cov(r_ij, r_kl) = G_ik V_jl. Where a norm above removed the gradient's component
    along the residual stream, which contains Σ_m B_im v_m, r varies less; the overlaps describe this.

    Attributes:
        a: the weights A.
        b: the weights B.
        values: V.
        head: G.
        overlaps: overlaps of one head with the removed component, as in `theory.mean_field.sublayers`.
        u: B V.
        w: B V Bᵀ.
        a1: half the derivative of the attended values' self-overlap (B V Bᵀ)_ii by a logit.
    """

    a: Array
    b: Array
    values: Array
    head: Array
    overlaps: Overlaps[Array]
    u: Array
    w: Array
    a1: Array

    @classmethod
    def of(
        cls, a: Array, b: Array, values: Array, head: Array, overlaps: Overlaps[Array], slopes: Array | None
    ) -> Inner:
        """Prepare the gradients with respect to the queries and keys of one head from its attention weights.

        Args:
            a: attention weights A.
            b: attention weights after dropout, B.
            values: kernel of the values, V.
            head: gradient kernel at one head's attended values, G.
            overlaps: overlaps of one head.
            slopes: slopes of a cap on logits, which multiply derivatives by logits but not the weights themselves; or
                None.
        """
        u, w, a1 = _held(a, b, values)
        if slopes is not None:
            a, b, a1 = a * slopes, b * slopes, a1 * slopes
        return cls(a, b, values, head, overlaps, u, w, a1)

    def at_queries(self, keys: Array) -> Array:
        """Return the inner products of the gradients with respect to two queries, for all pairs of queries.

        They are E⟨∂L/∂q_i, ∂L/∂q_k⟩/s² = Σ_jl P_jl E ∂a_ij ∂a_kl.

        Args:
            keys: P, the products of keys divided by s² d_k.
        """
        a, b, u, w = self.a, self.b, self.u, self.w
        aq = a @ keys
        crossed = b @ (u * (a @ keys.mT)).mT
        kernel = self.head * (b @ (keys * self.values) @ b.mT - crossed - (u * aq) @ b.mT + w * (aq @ a.mT))
        if self.overlaps is None:
            return kernel
        first, second = self.overlaps.first, self.overlaps.second

        def part(a1q: Array) -> Array:
            return np.asarray(first * ((u * a1q) @ b.mT - w * (a1q @ a.mT)))

        a1q = self.a1 @ keys
        return np.asarray(kernel + second * (a1q @ self.a1.mT) - part(a1q) - part(self.a1 @ keys.mT).mT)

    def at_keys(self, queries: Array) -> Array:
        """Return the inner products of the gradients with respect to two keys, for all pairs of keys.

        They are E⟨∂L/∂k_j, ∂L/∂k_l⟩/s² = Σ_ik P_ik E ∂a_ij ∂a_kl.

        Args:
            queries: P, the products of queries divided by s² d_k.
        """
        a, b, u, w, a1 = self.a, self.b, self.u, self.w, self.a1
        p = self.head * queries
        crossed = ((b.mT @ p) * u.mT) @ a + a.mT @ ((p @ b) * u)
        kernel = self.values * (b.mT @ p @ b) - crossed + a.mT @ (p * w) @ a
        if self.overlaps is None:
            return kernel
        first, second = self.overlaps.first, self.overlaps.second

        def part(p1: Array) -> Array:
            return np.asarray(a1.mT @ ((p1 @ b) * u - (p1 * w) @ a))

        below = a1.mT @ (second * queries) @ a1
        return np.asarray(kernel + below - part(first * queries) - part(first * queries.mT).mT)


def _crossed(a: Array, b: Array, q: Array, values: Array, head: Array, overlaps: Overlaps[Array]) -> Array:
    """Return the products of query and key gradients, X + Xᵀ, which a matrix shared by both adds."""
    u, w, a1 = _held(a, b, values)
    x = (
        np.einsum("...jl,...il,...ij,...lk,...jk->...ik", q, head, b, b, values, optimize=True)
        - np.einsum("...jl,...il,...ij,...lk,...lj->...ik", q, head, b, a, u, optimize=True)
        - np.einsum("...jl,...il,...ij,...lk,...ik->...ik", q, head, a, b, u, optimize=True)
        + np.einsum("...jl,...il,...ij,...lk,...il->...ik", q, head, a, a, w, optimize=True)
    )
    if overlaps is not None:
        first, second = overlaps.first, overlaps.second
        a1q = a1 @ q
        x = x - (u * ((a1q * first) @ b) - (a1q * first * w) @ a)
        x = x - (first * ((q * u) @ b.mT - w * (q @ a.mT))).mT @ a1 + (a1q * second) @ a1
    return x + x.mT
