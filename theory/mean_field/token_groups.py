"""Sums over many tokens from a few representatives: the first tokens, and two of every group of neighbours.

Independent tokens of a long sequence differ only by their position, and slowly: x_i·x_j is a smooth function of both
positions except at i = j. So a sum over all tokens is one over representatives, each with the number of tokens that
it stands for. Under a causal mask groups grow in proportion to the position, since the tokens that a token sees vary
with the logarithm of its position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from theory.mean_field.kernels import Array, MatrixLayout, cholesky, eigen_root
from theory.mean_field.sequence_blocks import numbers, whole, within

# Of Gauss and Legendre's rule of two nodes on [0, 1], each of which stands for its half.
_NODE = 0.5 - 0.5 / 3.0**0.5
# Tokens of the smallest group; groups of a window, and of a sequence without a mask, whose tokens are all alike.
_LEAST = 4
_GROUPS = 8

HEADS, COARSE_HEADS = 16, 2
"""The largest number of sampled heads where tokens differ, and with coarse groups in the layers between the ends."""


Coarse = bool | Literal["heads"]
"""The coarseness of token groups and of sampled heads, as a truth value; "heads" means fine groups with few heads."""


def group_heads(layer: int, depth: int, *, coarse: Coarse = False) -> int:
    """Return the largest number of attention heads that are sampled in a layer.

    With many tokens, more heads would average out little.
    """
    return COARSE_HEADS if coarse and 1 < layer < depth else HEADS


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupLayout(MatrixLayout):
    """The operations on kernels of r representative tokens, each of which counts for several tokens.

    Kernels have the shape (..., r, r): K_ii of one token, K_ij of two tokens.

    Attributes:
        places: position of every representative, from 0, (r,); the two of a group lie between tokens.
        sizes: number of tokens that each stands for, (r,), with sum n.
        pairs: number of ordered pairs of tokens that every entry stands for, (r, r), with sum n². Two tokens that one
            representative stands for count as that one and its twin, in one sequence and in two.
        twins: index of the other representative of the group, (r,), or its own index if a token stands for itself.
        seen: number of the column's tokens that the row's token attends to, (r, r).
        coarse: whether layers above the first one sample few heads.
    """

    places: Array
    sizes: Array
    pairs: Array
    twins: Array
    seen: Array
    coarse: Coarse = False

    def repeated(self, sequences: int, *, apart: bool = False) -> GroupLayout:
        """Repeat the representatives of one sequence for several sequences that do not attend to each other.

        A representative and the same one of another sequence are two tokens of one position.

        Args:
            sequences: number of sequences.
            apart: whether sums over pairs of tokens are split into pairs within a sequence and pairs of two
                sequences.
        """
        alike = np.eye(sequences)
        places, sizes = (np.tile(array, sequences) for array in (self.places, self.sizes))
        pairs = np.tile(self.pairs, (sequences, sequences))
        starts = np.repeat(np.arange(sequences) * len(self.sizes), len(self.sizes))
        return GroupLayout(
            self.count * sequences, sequences=sequences, apart=apart, places=places, sizes=sizes, pairs=pairs,
            twins=np.tile(self.twins, sequences) + starts, seen=np.asarray(np.kron(alike, self.seen), dtype=np.float64),
            coarse=self.coarse,
        )  # fmt: skip

    def most_heads(self, layer: int, depth: int) -> int:
        """Return the largest number of attention heads that are sampled in a layer."""
        return group_heads(layer, depth, coarse=self.coarse)

    def same_word(self, words: None) -> Array:
        return np.eye(len(self.sizes))

    def root(self, kernel: Array) -> Array:
        """Return the Cholesky factor of the kernel matrix of the tokens that attend."""
        return cholesky(kernel)

    def keys(
        self, kernel: Array, parts: tuple[Array, Array], normals: Array, generator: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return the sampled key of one token of each group, and the part of its variance that the sample omits.

        The shape of the keys is (batch, heads, samples, r, d_k).

        Args:
            kernel: kernel of the keys' inputs, (batch, r, r).
            parts: common keys of groups, (batch, heads, 1, r, d_k), and the variance of a token around them.
            normals: independent normals, (batch, heads, samples, r, d_k).
            generator: random generator of the common part of tokens of one position.
        """
        mean, extra = parts
        shared = self.shared_by_place(normals, self.key_places(kernel)[:, None, None, :, None], generator)
        return np.asarray(mean + np.sqrt(extra)[:, None, None, :, None] * shared), np.zeros(())

    def key_places(self, kernel: Array) -> Array:
        """Return the share of a key's individual variance that is common to the same position of all sequences.

        The shape is (..., S r).
        """
        return self.of_places(kernel)

    def drawn(self, kernel: Array, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        """Sample Gaussian vectors whose second moments are a given kernel, (batch, heads, rows, samples)."""
        return np.asarray(eigen_root(kernel)[:, None] @ generator.standard_normal(shape))

    def repeat_extremes(self, entries: int) -> Array:
        """Return the sign of a text's excess of shared token ids, which is 0 here because all token ids differ."""
        return np.zeros(())

    def over_ends(self, kernels: Array) -> Array:
        """Return kernels averaged over texts with more and with fewer shared token ids, (entries, r, r).

        All ids differ here, so that the kernels stay unchanged.
        """
        return kernels

    @property
    def row_places(self) -> Array:
        """The positions of the tokens that attend to others."""
        return self.places

    def smooth_and_own(self, kernel: Array) -> tuple[Array, Array]:
        """Split a kernel matrix into products of two different tokens and the excess of each token's square.

        The shapes are (..., r, r) and (..., r).
        """
        smooth = self.across_tokens(kernel, self.twins)
        # Where all tokens are the same, the difference is rounding error.
        return smooth, np.maximum(np.linalg.diagonal(kernel) - np.linalg.diagonal(smooth), 0.0)

    def across_tokens(self, kernel: Array, others: Array) -> Array:
        """Replace each group's product with itself in a kernel matrix by the product of two different tokens."""
        rows, smooth = np.arange(len(self.sizes)), kernel.copy()
        for _, same in [(rows, rows), *self.same_places()]:
            smooth[..., rows, same] = kernel[..., rows, same[others]]
        return smooth

    def mixed(self, kernel: Array) -> tuple[Array, Array]:
        """Split a kernel matrix into products of tokens that may have equal ids and the excess of each token's square.

        The result is that of `smooth_and_own`, because all token ids differ here.
        """
        return self.smooth_and_own(kernel)

    def differing(self, kernel: Array) -> Array:
        """Return K_ii − K_ij, a token's product with itself minus its product with a neighbour j, (..., r)."""
        rows = np.arange(len(self.sizes))
        each = len(rows) // self.sequences
        before = np.where(rows % each > 0, rows - 1, rows + min(1, each - 1))
        neighbours = np.where(self.twins != rows, self.twins, before)
        return np.asarray(np.linalg.diagonal(kernel) - kernel[..., rows, neighbours])

    def same_places(self) -> list[tuple[Any, Any]]:
        """Return index pairs of representatives that have the same position in two different sequences."""
        rows, each = np.arange(len(self.sizes)), len(self.sizes) // self.sequences
        return [(rows, (rows + start) % len(rows)) for start in range(each, len(rows), each)]

    def of_places(self, kernel: Array) -> Array:
        """Return the share of a token's individual variance that is common to the same position of all sequences.

        The individual variance is the excess of K_ii. All sequences share one table of positions, so that tokens at one
        position are more correlated than others. The shape is (..., S r).
        """
        smooth, added = self.smooth_and_own(kernel)
        common = np.zeros_like(added)
        for place, same in self.same_places()[:1]:
            common = np.clip(kernel[..., place, same] - smooth[..., place, same], 0.0, added)
        return np.divide(common, added, out=np.zeros_like(added), where=added > 0)

    def shared_by_place(self, normals: Array, share: Array, generator: np.random.Generator) -> Array:
        """Return Gaussian numbers of which a share of the variance is common to one position of all sequences.

        Args:
            normals: independent normals of every representative, (..., S r, columns).
            share: the common share of the variance, (..., S r, 1).
            generator: random generator of the common part.
        """
        if self.sequences == 1:
            return normals
        *batch, _, last = normals.shape
        of_place = generator.standard_normal((*batch, len(self.sizes) // self.sequences, last))
        if not share.any():
            return normals
        of_place = np.concatenate([of_place] * self.sequences, axis=-2)
        return np.asarray(np.sqrt(1.0 - share) * normals + np.sqrt(share) * of_place)

    @cached_property
    def one(self) -> GroupLayout:
        """The representative tokens of a single sequence; all sequences are alike."""
        each = len(self.sizes) // self.sequences
        return replace(
            self, count=self.count // self.sequences, sequences=1, places=self.places[:each], sizes=self.sizes[:each],
            pairs=self.pairs[:each, :each], twins=self.twins[:each],
            seen=self.seen[: len(self.seen) // self.sequences, :each],
        )  # fmt: skip

    def shared(self, first: Array, other: Array, own: Array, shift: int = 0) -> Array:
        """Return Σ_j A_ij B_kj δ_j over all tokens j that queries i and k attend to, for attention weights A and B.

        For a shift, k is in the sequence that is so many after that of i, and the sum is over the tokens j' there at
        the position of j: A_ij B_kj' δ_j.

        Args:
            first: A, weights of one token, blocks (..., S, r, r).
            other: B, in the same form.
            own: δ, (..., S r).
            shift: number of sequences.
        """
        layout, of_each = self.one, numbers(own, self.sequences)[..., None, :]
        share, other = layout.seen / layout.sizes, np.roll(other, -shift, -3) if shift else other
        both = (first * (layout.seen * of_each)) @ (other * share).mT
        # A token sees with itself what it sees, and two of different places one what the other sees as well.
        alone = (first * other * (of_each * layout.seen * (1.0 - share))).sum(-1)
        return with_diagonal(both, np.linalg.diagonal(both) + alone)

    def pulled_back_weights(self, gradient: Array, first: Array, other: Array, shift: int = 0) -> Array:
        """Return Σ_ik P_ik A_ij B_kj for every token j, from attention weights A and B and a gradient kernel P.

        The weights are blocks, and the result is (..., S r).

        For a shift, the sum has B_kj' as in `shared`, and P has the blocks between the two sequences.

        Args:
            gradient: P, already times the number of pairs.
            first: A.
            other: B.
            shift: number of sequences.
        """
        share, other = self.one.seen / self.one.sizes, np.roll(other, -shift, -3) if shift else other
        seen = other * share
        passed = gradient @ seen
        passed += np.linalg.diagonal(gradient)[..., None] * (other - seen)
        passed *= first
        passed *= share
        both = passed.sum(-2)
        return np.asarray(both.reshape(*both.shape[:-2], -1))

    def coincident_terms(
        self, kernel: Array, common: Array, own: Array, first: Array, other: Array, *, mean: tuple[int, ...] = ()
    ) -> Array:
        """Return the terms of an attention-weighted kernel A K Bᵀ in which a token meets itself.

        They include the terms in which a token meets its position in another sequence.

        The result is a mean over some axes.

        Args:
            kernel: K, (..., S r, S r).
            common: K of two different positions in all entries.
            own: excess of K_ii of a token over `common`, (..., S r).
            first: blocks A of one token.
            other: blocks B.
            mean: axes of the mean.
        """
        parts = [own, *(kernel[..., *pair] - common[..., *pair] for pair in self.same_places())]
        blocks = (self.shared(first, other, part, shift).mean(mean) for shift, part in enumerate(parts))
        return np.asarray(sum(whole(part, shift) for shift, part in enumerate(blocks)))

    def centred(self, kernel: Array) -> Array:
        """Subtract the means over the tokens of each sequence from a kernel matrix.

        Without this, a part of order 1/n would remain.
        """
        each, count = len(self.sizes) // self.sequences, self.count / self.sequences
        members = np.kron(np.eye(self.sequences), np.ones((each, 1)))
        # Of every token with a sequence, (..., r, sequences), and of two sequences.
        rows = (self.pairs * kernel) @ members / self.sizes[:, None] / count
        rows = (rows + rows[..., self.twins, :]) / 2
        means = members.T @ (rows * self.sizes[:, None]) / count
        with_sequence = rows @ members.T
        return np.asarray(kernel - with_sequence - with_sequence.mT + members @ means @ members.T)

    def attend(self, kernel: Array) -> Array:
        (common, _), (smooth, extra) = self.smooth_and_own(kernel), self.mixed(kernel)
        weights = self._even()
        alpha = whole(weights) * self.seen
        return alpha @ smooth @ alpha.T + self.coincident_terms(kernel, common, extra, weights, weights)

    def attend_back(self, kernel: Array) -> Array:
        weights = self._even()
        alpha = whole(weights) * self.seen / self.sizes
        above = kernel * self.pairs
        below = alpha.T @ above @ alpha
        for shift, (rows, others) in enumerate([(np.arange(len(self.sizes)),) * 2, *self.same_places()]):
            of_one = self.pulled_back_weights(within(above, self.sequences, shift), weights, weights, shift)
            below[..., rows, others] = of_one
        return below

    def _even(self) -> Array:
        """Return equal weights for all tokens that a row sees, blocks (S, r, r)."""
        seen = self.one.seen
        return np.broadcast_to(1.0 / seen.sum(-1, keepdims=True), (self.sequences, *seen.shape))

    def scale_diagonal(self, kernel: Array, factor: float) -> Array:
        return kernel if factor == 1.0 else kernel * (1.0 + (factor - 1.0) * np.eye(len(self.sizes)))

    def total(self, kernel: Array) -> Array:
        return self.of_sequences(kernel) if self.apart else self.of_sequences(kernel).sum(0)

    def of_sequences(self, kernel: Array) -> Array:
        sums = kernel.reshape(*kernel.shape[:-2], -1) @ self._counts
        return np.asarray(sums.transpose(-1, *range(sums.ndim - 1)))

    @cached_property
    def _counts(self) -> Array:
        """The number of pairs that every entry represents, within a sequence and between two sequences, (r², 2)."""
        alike = np.kron(np.eye(self.sequences), np.ones((len(self.sizes) // self.sequences,) * 2))
        return np.stack([self.pairs * alike, self.pairs * (1.0 - alike)], -1).reshape(-1, 2)

    def diagonal(self, kernel: Array) -> Array:
        return np.asarray(np.linalg.diagonal(kernel) @ self.sizes / self.count)

    def diagonal_mean(self, function: Callable[..., Any], kernel: Array) -> Array:
        return np.asarray(function(np.linalg.diagonal(kernel)) @ self.sizes / self.count)

    def off_diagonal(self, kernel: Array) -> Array:
        length = self.count // self.sequences
        if length == 1:
            return np.full(kernel.shape[:-2], np.nan)
        same = np.linalg.diagonal(kernel) @ self.sizes
        return np.asarray((self.of_sequences(kernel)[0] - same) / (self.count * (length - 1)))


def with_diagonal(kernel: Array, diagonal: Array) -> Array:
    """Replace the diagonal of a kernel in place, and return the kernel."""
    rows = np.arange(kernel.shape[-1])
    kernel[..., rows, rows] = diagonal
    return kernel


@lru_cache(maxsize=8)
def token_groups(count: int, *, causal: bool, window: int = 0, alone: int = 12, ratio: float = 1.4) -> GroupLayout:
    """Choose the few tokens that represent all tokens of a sequence, and return the operations on their kernels.

    Args:
        count: number of tokens n.
        causal: whether a token sees only itself and the tokens before it, instead of all.
        window: number of last tokens that are seen under a causal mask; 0 for all.
        alone: number of first tokens of a causal sequence that stand for themselves.
        ratio: largest ratio of the last position of a group to its first; a window has several groups.
    """
    widths, times = np.array(_runs(count, causal, window, alone, ratio)).T
    widths = np.repeat(widths, times)
    group = np.repeat(np.arange(len(widths)), np.where(widths > 1, 2, 1))
    first, total = (np.cumsum(widths) - widths)[group].astype(float), widths[group].astype(float)
    rows, several = np.arange(len(group)), total > 1
    half = np.concatenate([[0], np.equal(group[1:], group[:-1])])
    twins = np.where(several, rows + 1 - 2 * half, rows)
    sizes = np.where(several, total / 2, 1.0)
    low = first + half * sizes
    places = np.where(several, first + total * np.where(half, 1.0 - _NODE, _NODE) - 0.5, first)
    pairs = np.outer(sizes, sizes)
    pairs[rows, rows] = sizes
    pairs[rows[several], twins[several]] = (sizes * (2.0 * sizes - 1.0))[several]
    seen = np.broadcast_to(sizes, pairs.shape)
    if causal:
        last = places[:, None] + 1.0
        begun = np.maximum(0.0, last - window) if window else 0.0 * last
        seen = np.clip(np.minimum(low + sizes, last) - np.maximum(low, begun), 0.0, sizes)
    return GroupLayout(count, places=places, sizes=sizes, pairs=pairs, twins=twins, seen=seen)


def representative_count(
    count: int, *, causal: bool, window: int = 0, alone: int = 12, ratio: float = 1.4, members: int = 1
) -> int:
    """Return how many tokens represent a sequence, without computing their positions and weights.

    Args:
        count: number of tokens n.
        causal: whether a token sees only itself and the tokens before it, instead of all.
        window: number of last tokens that are seen under a causal mask; 0 for all.
        alone: number of first tokens of a causal sequence that stand for themselves.
        ratio: largest ratio of the last position of a group to its first.
        members: largest number of computed tokens for each representative.
    """
    runs = _runs(count, causal, window, alone, ratio)
    return sum(times * min(width, 2 * min(members, max(1, width // 2))) for width, times in runs)


def _runs(count: int, causal: bool, window: int, alone: int, ratio: float) -> list[tuple[int, int]]:
    """Return the widths of the groups in their order, each with the number of consecutive groups that have it."""
    largest = max(_LEAST, window // _GROUPS) if window else count
    start = min(alone, count) if causal else 0
    runs = [(1, start)]
    while start < count:
        left = count - start
        width = min(largest, max(_LEAST, int(start * (ratio - 1.0)) if causal else -(-count // _GROUPS)))
        if left < _LEAST:
            width, times = 1, left
        elif left < width + _LEAST:  # what is too little for a next group is this one's
            width, times = left, 1
        else:  # those of a window do not grow
            times = (left - _LEAST) // width if width == largest else 1
        runs.append((width, times))
        start += width * times
    return runs
