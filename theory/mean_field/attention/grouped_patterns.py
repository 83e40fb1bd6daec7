"""Random attention weights over thousands of tokens, sampled for a few tokens of each group of neighbours.

Given the queries, the keys of a group differ by independent Gaussians. For sums over different tokens, a group's
weight is a sum of sampled weights with the mean and the variance of all of them. For a token with itself, it is one
sampled weight, in a sum that contains it once. The first tokens are not grouped, so that a short sequence has its
exact law.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from theory.mean_field.attention.patterns import bare_logit_scale, frequencies, logit_scale, normed_sizes, rotated_by
from theory.mean_field.attention.words import WordShares, probe_weights
from theory.mean_field.kernels import Array, eigen_root
from theory.mean_field.sequence_blocks import joined, mean_sandwich, numbers, rows
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.token_groups import GroupLayout
from theory.stack import Stack
from theory.stack.weights import gain

SAMPLES = 4
"""The number of tokens of every group that are sampled."""
# Nodes of the mean over a capped logit: 8 have errors below 3e-7 for variances of at most 1 and caps of at least 5.
# And an exponent whose exponential is a number.
_CAPPED, _FEW_CAPPED = 16, 8
_LARGEST = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class GroupedPatterns:
    """The sampled attention weights of S sequences with r representative tokens each, with their queries and keys.

    Attributes:
        mean: weights of all of a group's tokens that a row sees, (batch, heads, samples, S, r, r), with sum 1.
        changed: `mean` times the slopes of a cap on logits.
        own: weights of one token of each group, in a sum that contains it, (batch, heads, samples, S, r, r).
        own_changed: `own` times the slopes of a cap on logits.
        queries: rotated queries, with the kernel's covariance or after their norm, (batch, heads, 1, S r, d_k).
        products: inner products of these queries, (batch, heads, 1, S r, S r).
        unturned: these products before rotary positions turn the queries.
        mean_keys: common part of the keys of a group, (batch, heads, 1, S r, d_k).
        own_keys: keys of the one token, (batch, heads, samples, S r, d_k).
        attended: mean key under a row's weights, (batch, heads, samples, S r, d_k).
        sizes: divisors of the norms of queries, groups' mean keys and the one token's keys, with the shapes of these
            without d_k; None without norms.
        words: shares of repeated token ids in a row's sums, for text; otherwise None.
    """

    mean: Array
    changed: Array
    own: Array
    own_changed: Array
    queries: Array
    products: Array
    unturned: Array
    mean_keys: Array
    own_keys: Array
    attended: Array
    sizes: tuple[Array, Array, Array] | None
    words: WordShares | None = None

    def at_rows(self, chosen: NDArray[np.intp]) -> GroupedPatterns:
        """Select the sampled attention weights of some of the attending tokens.

        Args:
            chosen: indices of the rows, (S r,), with equally many of each sequence in its order.
        """
        of_one, pairs = chosen[: len(chosen) // self.mean.shape[3]], (..., chosen[:, None], chosen)
        return replace(
            self, mean=self.mean[..., of_one, :], changed=self.changed[..., of_one, :], own=self.own[..., of_one, :],
            own_changed=self.own_changed[..., of_one, :], queries=self.queries[..., chosen, :],
            products=self.products[pairs], unturned=self.unturned[pairs], attended=self.attended[..., chosen, :],
            sizes=None if self.sizes is None else (self.sizes[0][..., chosen], *self.sizes[1:]),
        )  # fmt: skip

    def of_pairs(self, words: WordShares, kernel: Array, *, back: bool = False) -> Array:
        """Return sums of a matrix over pairs of tokens with equal ids, weighted by attention and averaged over samples.

        The average is over heads and samples.

        The shape is (..., R, R). If both tokens are in one sequence, a row's sum is known to contain both.

        Args:
            words: shares of repeated token ids.
            kernel: kernel between positions, or between rows if `back` is true.
            back: whether to sum over rows, with a result by positions, instead of over positions, with a result by
                rows.
        """
        tokens, layout, alike = words.tokens, words.tokens.one, words.tokens.one_sequence
        once, twice = (each * layout.seen[:, layout.beside] for each in (self.own[..., layout.probes], words.of_two))
        if back:
            once, twice, alike = once.mT, twice.mT, alike[np.ix_(tokens.probes, tokens.probes)]
        return np.where(alike, mean_sandwich(twice, kernel, twice, shifts=range(1)), mean_sandwich(once, kernel, once))


def grouped_patterns(
    stack: Stack, tokens: GroupLayout, kernel: Array, heads: int, generator: np.random.Generator, *,
    attending: Array | None = None,
) -> GroupedPatterns:  # fmt: skip
    """Sample the attention weights of some heads for tokens that represent groups of tokens.

    Queries and keys have the d_k coordinates of a head.

    Args:
        stack: the network.
        tokens: layout of the representatives.
        kernel: kernel of the representatives, (batch, r, r).
        heads: number of sampled heads.
        generator: random generator of queries and keys.
        attending: kernel of other tokens that attend, (batch, R, R); None if the representatives attend.
    """
    (unturned, mean_keys, keys), (scale, extra, alone), sizes = _queries_and_keys(
        stack, tokens, kernel, heads, generator, kernel if attending is None else attending
    )
    # From here on, of each sequence by itself.
    sequences, layout, queries = tokens.sequences, tokens.one, turned(stack, tokens.row_places, unturned)
    leaning, of_means, of_own = scale * rows(queries, sequences), rows(mean_keys, sequences), rows(keys, sequences)
    extra, energies = numbers(extra, sequences), np.square(leaning).sum(-1)[..., None]
    variance = energies * extra[..., None, :]
    level, slopes = _mean_weight(stack, leaning @ of_means.mT, variance)
    logits = leaning @ of_own.mT
    logits, own_slopes = (
        _mean_weight(stack, logits, energies * numbers(alone, sequences)[..., None, :])
        if alone.ndim  # of a text
        else _capped(stack, logits)
    )
    seen, share, words, of_probes = layout.seen > 0, layout.seen / layout.sizes, None, np.zeros(())
    highest = np.where(seen, level, -np.inf).max(-1, keepdims=True)
    expected, weights = (np.where(seen, np.exp(np.minimum(part - highest, _LARGEST)), 0.0) for part in (level, logits))
    sums, without = (share * _sum_of(number, weights, expected) for number in (layout.sizes, layout.sizes - 1.0))
    total = sums.sum(-1, keepdims=True)
    holding = total - sums + without + weights
    if isinstance(tokens, TextLayout):
        # Given a token's logit, the mean weight of another one of its word.
        lean, spread = (part[..., tokens.one.of_probe] for part in (level, variance))
        of_word = columns(tokens.of_word_share(kernel), sequences) * _turned_words(stack, tokens.one)
        again = lean + of_word * (logits - lean) + of_word * (1.0 - of_word) / 2 * spread
        again = np.where(seen, np.exp(np.minimum(again - highest, _LARGEST)), 0.0)
        holding, of_probes, words = probe_weights(tokens, weights, holding, again, generator)
    single = weights / np.maximum(holding, np.finfo(float).tiny)
    mean = changed = sums / total
    if stack.logit_softcap:
        changed = share * _sum_of(layout.sizes, weights * own_slopes, expected * slopes) / total
    if words is not None:
        probes = words.tokens.one.probes
        single[..., probes], mean[..., probes] = of_probes, layout.seen[:, probes] * of_probes
        changed[..., probes] = mean[..., probes] * (own_slopes[..., probes] if stack.logit_softcap else 1.0)
    # Under its weights a key leans to the query by its variance, and it varies as one does that the sum holds.
    drawn = np.sqrt(layout.sizes) * share * np.roll(weights, -1, 2) / total
    leans = (changed - drawn) @ extra[..., :, None]
    attended = joined((changed - drawn) @ of_means + drawn @ np.roll(of_own, -1, 2) + leans * leaning)
    return GroupedPatterns(
        mean, changed, single, single * own_slopes if stack.logit_softcap else single, queries, queries @ queries.mT,
        unturned @ unturned.mT, mean_keys, keys, attended, sizes, words,
    )  # fmt: skip


def _queries_and_keys(
    stack: Stack, tokens: GroupLayout, kernel: Array, heads: int, generator: np.random.Generator, of_rows: Array
) -> tuple[tuple[Array, Array, Array], tuple[float, Array, Array], tuple[Array, Array, Array] | None]:
    """Return random queries and keys, the scale and variances of logits, and the divisors of norms of queries and keys.

    Args:
        stack: the network.
        tokens: layout of the representatives.
        kernel: kernel of the representatives, (batch, r, r).
        heads: number of sampled heads.
        generator: random generator of queries and keys.
        of_rows: kernel of the tokens that attend.

    Returns:
        Queries that no rotary positions turn yet, groups' mean keys, and keys of one token; then the scale of logits,
        and the variances, divided by those of queries, of a group's keys around the mean key and of the part that the
        key of one token lacks; then the divisors of norms, or None.
    """
    smooth, extra = tokens.smooth_and_own(kernel)
    shape = (len(kernel), heads, 1, kernel.shape[-1], stack.key_width)
    queries = tokens.root(of_rows)[:, None, None] @ generator.standard_normal(
        (*shape[:3], of_rows.shape[-1], shape[-1])
    )
    mean_keys = eigen_root(smooth)[:, None, None] @ generator.standard_normal(shape)
    deviations = generator.standard_normal((*shape[:2], SAMPLES, *shape[3:]))
    keys, alone = tokens.keys(kernel, (mean_keys, extra), deviations, generator)
    scale, extra, sizes = logit_scale(stack), extra[:, None, None], None
    if stack.query_key_norm != "none":
        scale, to_keys = bare_logit_scale(stack), gain(stack, "WK") ** 0.5
        of_queries = normed_sizes(stack, "WQ", np.square(queries).mean(-1), 1)
        of_keys = normed_sizes(stack, "WK", np.square(mean_keys).mean(-1) + extra, 1)
        extra = extra * (to_keys / of_keys) ** 2
        queries = queries * (gain(stack, "WQ") ** 0.5 / of_queries)[..., None]
        of_own = normed_sizes(stack, "WK", np.square(keys).mean(-1) + alone, 1)
        alone = alone * (to_keys / of_own) ** 2
        keys = keys * (to_keys / of_own)[..., None]
        mean_keys = mean_keys * (to_keys / of_keys)[..., None]
        sizes = of_queries, of_keys, of_own
    mean_keys, keys = (turned(stack, tokens.places, vectors) for vectors in (mean_keys, keys))
    return (queries, mean_keys, keys), (scale, extra, alone), sizes


@lru_cache(maxsize=8)
def _turned_words(stack: Stack, layout: GroupLayout) -> Array:
    """Return the correlation of a row's logits with two keys of one word, averaged over its other tokens, (r, r) or ().

    Rotary positions turn the two keys by different angles.
    """
    if not stack.rotary:
        return np.ones(())
    share = stack.rotary_width / stack.key_width
    apart = layout.places[:, None] - layout.places
    turning = 1.0 - share + share * np.cos(apart[..., None] * frequencies(stack)).mean(-1)
    return np.asarray(layout.seen @ turning / np.maximum(layout.seen.sum(-1, keepdims=True), 1.0))


def columns(array: Array, sequences: int) -> Array:
    """Add axes to numbers per token, (batch, S r), so that they broadcast against sampled attention weights."""
    return numbers(array, sequences)[:, None, None, :, None, :]


def _sum_of(number: Array, weights: Array, expected: Array) -> Array:
    """Return, for each sample, the sum of the weights of some tokens of each group, from the other samples.

    Other samples replace the tokens. With more tokens than samples, mean and variance of the sum are still right.

    Args:
        number: number of tokens of each group, (r,).
        weights: sampled weights, (batch, heads, samples, S, r, r).
        expected: mean weight of a token, broadcast against `weights`.
    """
    others = SAMPLES - 1
    turn = ((np.arange(SAMPLES) - np.arange(SAMPLES)[:, None]) % SAMPLES - 1.0)[..., None]
    few = np.clip(number - turn, 0.0, 1.0)
    factors = np.where(turn < 0, 0.0, np.where(number > others, np.sqrt(np.maximum(number, 0.0) / others), few))
    return np.asarray(np.einsum("stj,bhtqij->bhsqij", factors, weights) + (number - factors.sum(1)[0]) * expected)


def turned(stack: Stack, places: Array, rows: Array, sense: int = 1) -> Array:
    """Apply rotary position embeddings to queries or keys, (..., r, d_k), if the network has them.

    Args:
        stack: the network.
        places: positions of the rows, (r,).
        rows: queries or keys.
        sense: 1 to rotate, −1 to rotate back.
    """
    return rotated_by(stack, places, rows, sense) if stack.rotary else rows


def _capped(stack: Stack, logits: Array) -> tuple[Array, Array]:
    """Return capped logits c tanh(a/c) and the slope of the cap; without a cap, the logits and 1."""
    if not stack.logit_softcap:
        return logits, np.ones(())
    part = np.tanh(logits / stack.logit_softcap)
    return stack.logit_softcap * part, 1.0 - part**2


def _mean_weight(stack: Stack, logits: Array, variance: Array) -> tuple[Array, Array]:
    """Return ln E e^a for Gaussian logits a after their cap, and the mean slope of the cap weighted by e^a."""
    if not stack.logit_softcap:
        return logits + variance / 2, np.ones(())
    is_smooth = variance.max() <= 1.0 and stack.logit_softcap >= 5.0
    nodes, weights = np.polynomial.hermite_e.hermegauss(_FEW_CAPPED if is_smooth else _CAPPED)
    spread, parts = np.sqrt(variance), []
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        part, slope = _capped(stack, logits + spread * node)
        each = weight * np.exp(part)
        parts.append((each, each * slope))
    total, slopes = (sum(column) for column in zip(*parts, strict=True))
    return np.log(total), slopes / total
