"""Attention with random queries and keys over thousands of tokens, for which a few of every group of neighbours stand.

Given the queries, the keys of a group differ by independent Gaussians alone. Where different tokens meet, a group's
weights are a sum of sampled ones that has the mean and the variance of all of them. Where a token meets itself, it is a
sampled one, in a sum that holds it once. First tokens stand for themselves, so that a short sequence has its exact law.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import entr

from theory.mean_field.attention.patterns import (
    bare_logit_scale,
    frequencies,
    logit_scale,
    normed_sizes,
    rotated_by,
)
from theory.mean_field.attention.sampled import Inner, head_gain
from theory.mean_field.attention.words import WordShares, probe_weights
from theory.mean_field.kernels import Array, cholesky
from theory.mean_field.sublayers import BranchPullback, NormOverlaps, Overlaps, Recorded, SquaredNorms, of_biases
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.token_groups import GroupLayout, with_diagonal
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio

SAMPLES = 4
"""Tokens of every group that are sampled."""
MOST_HEADS = 16
"""Heads that are sampled at most; what more of them average out does not matter among many tokens."""

# Nodes of the mean over a capped logit; and an exponent whose exponential is a number.
_CAPPED = 16
_LARGEST = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class GroupedPatterns:
    """Patterns of r representatives, per entry of the batch, head, and sample of every group's tokens.

    Attributes:
        mean: weights of all of a group's tokens that a row sees, (batch, heads, samples, r, r), of sum 1.
        changed: the same, times the slopes of a cap on logits.
        own: weights of one token of each group, in a sum that holds it, likewise.
        own_changed: the same, times the slopes.
        queries: rotated, of the kernel's covariance or as a norm leaves them, (batch, heads, 1, r, d_k).
        mean_keys: what the keys of a group have in common, likewise.
        own_keys: of the one token, (batch, heads, samples, r, d_k).
        attended: the mean key under a row's weights, likewise.
        sizes: what a norm divides queries by, groups' means and the one token, as these without d_k; None without one.
        words: of text, what shares its words have; else None.
    """

    mean: Array
    changed: Array
    own: Array
    own_changed: Array
    queries: Array
    mean_keys: Array
    own_keys: Array
    attended: Array
    sizes: tuple[Array, Array, Array] | None
    words: WordShares | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupedAttention:
    """softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O of representatives: the rule of a branch, as in `sublayers`.

    Attributes:
        stack: the network.
        variance: ρ, as in `overlap_variance`, (batch,) or (1,).
        generator: of the patterns.
        unlike: the standard deviation of products x_j·x_l/d of different tokens of a group, (batch, r), or none.
    """

    stack: Stack
    variance: Array
    generator: np.random.Generator
    unlike: Array | None = None

    def __call__(self, tokens: GroupLayout, kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        """Apply the rule to a kernel, (batch, r, r)."""
        stack = self.stack
        value_gain, projected = gain(stack, "WV"), stack.output_projection == "random"
        heads = min(stack.heads, MOST_HEADS)
        patterns = grouped_patterns(stack, tokens, kernel, heads, self.generator)
        smooth, extra = (_of_each(part, kernel) for part in tokens.split(kernel))
        attended = patterns.mean @ smooth @ patterns.mean.mT
        if isinstance(tokens, TextLayout):
            # Keys of one word lean to a query together.
            of_words = patterns.own[..., tokens.probes] * tokens.seen[:, tokens.beside]
            repeated = _of_each(tokens.repeats * tokens.of_words(kernel)[0], kernel)
            attended = attended + of_words @ repeated @ of_words.mT * tokens.coincidences
            extra = _of_each(tokens.mixed(kernel)[1], kernel)
        varying = self._varying(tokens, patterns, kernel)
        led = self._led(tokens, patterns, varying)
        attended = attended + tokens.shared(patterns.own, patterns.own, extra)
        of_places = tokens.shared_places(_of_each(kernel, kernel), smooth, patterns.own, patterns.own)
        attended = attended + of_places
        out = value_gain * (attended.mean((1, 2)) + led)

        def pullback(
            gradient: Array, overlaps: Overlaps[Array], more_of_heads: Array | None = None
        ) -> tuple[Array, SquaredNorms]:
            head = head_gain(stack, "W") / stack.heads * gradient
            of_heads = head[:, None, None]
            if more_of_heads is not None:
                head, of_heads = head + more_of_heads.mean((1, 2)), of_heads + more_of_heads
            above, each = of_heads * tokens.pairs, patterns.mean / tokens.sizes
            of_one = tokens.gathered(above, patterns.own, patterns.own)
            to_each = with_diagonal(each.mT @ above @ each, of_one)
            for place, other in tokens.same_places():
                to_each[..., place, other] = tokens.gathered(above, patterns.own, patterns.own, other)
            to_values = stack.heads * to_each.mean((1, 2))
            energies: SquaredNorms = {"WV": tokens.total(kernel * to_values) + stack.heads * tokens.total(head * led)}
            energies |= of_biases(stack, tokens, WV=to_values)
            if projected:
                energies["WO"] = tokens.total(out * gradient) * inner_ratio(stack)
                energies |= of_biases(stack, tokens, WO=gradient)
            below = value_gain * to_values
            parts = self._query_path(tokens, patterns, kernel, of_heads, overlaps)
            of_pairs, energy = self._of_pairs(tokens, patterns, kernel, head, varying)
            parts = parts[0] + of_pairs, parts[1]
            of_energies: dict[str, Array | float] = {"Q": 0.0, "K": energy}
            gains = {"Q": gain(stack, "WQ"), "K": gain(stack, "WK")}
            others = {"Q": gains["K"], "K": gains["Q"]} if patterns.sizes is None else {"Q": 1.0, "K": 1.0}
            # Over d_k a gradient is smaller by √d_k.
            shrink = 1.0 / stack.key_width if stack.attention_scale == "linear" else 1.0
            for role, part in zip("QK", parts, strict=True):
                scaled = stack.heads * shrink * others[role] * part
                of_inputs = stack.heads * shrink * others[role] * of_energies[role]
                energies["W" + role] = tokens.total(kernel * scaled) + of_inputs
                energies |= of_biases(stack, tokens, **{"W" + role: scaled})
                below = below + gains[role] * scaled
            return below, energies

        statistics = {"attention_entropy": entr(patterns.own), "attention_squares": np.square(patterns.own)}
        share = tokens.sizes / tokens.count
        seen = {name: (tokens.seen * each).sum(-1).mean((1, 2)) @ share for name, each in statistics.items()}
        return out * head_gain(stack, "W"), pullback, seen | {"attended": (patterns, pullback)}

    def _query_path(
        self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array, head: Array, overlaps: Overlaps[Array]
    ) -> tuple[Array, Array]:
        """Gradient kernels at queries and keys over their gains, means over heads, (batch, r, r).

        ∂a_ij = A_ij (r_ij − Σ_m A_im r_im), with r_ij = g_i·v_j of covariance G_ik V_jl. It is linear in G; and of the
        values some coordinates are sampled, of which ∂a_ij over that of g_i is a number. G may differ by head.
        """
        stack = self.stack
        values = kernel * gain(stack, "WV")
        smooth, extra = tokens.split(values)
        others, words = np.zeros(()), patterns.words
        if isinstance(tokens, TextLayout) and words is not None:
            smooth = tokens.without_words(smooth, values)
            others = words.others * tokens.of_word_share(values)[:, None, None, None, :]
        shape = (*patterns.mean.shape[:2], kernel.shape[-1], SAMPLES)
        spread = np.sqrt(extra)[:, None, :, None]
        common = (root(smooth)[:, None] @ self.generator.standard_normal(shape)).mT[..., None, :]
        alone = (spread * self.generator.standard_normal(shape)).mT[..., None, :]
        # What differs within a group adds up as one token's times the root of their number.
        many = tokens.seen / np.sqrt(tokens.sizes) * patterns.own * alone
        of_one = tokens.seen / tokens.sizes**1.5 * patterns.own_changed * alone
        if isinstance(tokens, TextLayout):
            word = self._repeated(tokens, patterns, values, many, of_one)
        mean_value = (patterns.mean * common).sum(-1, keepdims=True)
        deviation = many.sum(-1, keepdims=True)
        changed = patterns.changed * (common - mean_value)
        again = np.zeros(())
        if isinstance(tokens, TextLayout):
            # What is subtracted holds a token's word again.
            again = others * patterns.own * (alone + tokens.itself * common)
            changed -= tokens.itself * patterns.changed * again
        to_queries = self._at_queries(tokens, patterns, head, extra, (changed, many, deviation), others)
        above = head * tokens.pairs
        each = patterns.changed / tokens.sizes
        subtracted = each * deviation
        of_group = changed / tokens.sizes - subtracted
        if isinstance(tokens, TextLayout) and words is not None:
            # A row's sum holds a probe's own word, and beside it others.
            probes = tokens.probes
            beside = common[..., probes] + word - mean_value - np.roll(deviation, 1, 2)
            of_group[..., probes] = each[..., probes] * beside * (1.0 - words.held)
        of_mean, of_own = (
            (np.ones(()),) * 2 if patterns.sizes is None else (s[..., None, :] for s in patterns.sizes[1:])
        )
        of_group, subtracted, of_one = of_group / of_mean, subtracted / of_mean, of_one / of_own
        met = self._at_keys(tokens, patterns, above, of_one, subtracted)
        between = self._at_keys(tokens, patterns, above, of_group, of_group) - met - met.mT
        if isinstance(tokens, TextLayout) and words is not None:
            # Of two keys in one sequence, which holds both.
            of_both = of_group.copy()
            of_both[..., tokens.probes] *= words.changes
            both = self._at_keys(tokens, patterns, above, of_both, of_both) - met - met.mT
            between = np.where(tokens.one_sequence, both, between)
        # Of a token with itself: the sum that it is taken from holds it once.
        without = mean_value + deviation - many + patterns.own * alone + again
        mine = patterns.own_changed * (common + alone - without) / of_own
        products = patterns.queries @ patterns.queries.mT / stack.key_width
        to_keys = with_diagonal(between, tokens.gathered(above * products, mine, mine).mean((1, 2)))
        if not stack.rotary and not stack.logit_softcap:
            # Logits of a row change its weights, whose sum is 1, by their differences alone.
            to_keys = tokens.centred(to_keys)
        if overlaps is not None:
            mixed, _ = tokens.mixed(values)
            removed = self._removed(tokens, patterns, mixed, overlaps)
            to_queries, to_keys = to_queries + removed[0], to_keys + removed[1]
        return to_queries, to_keys

    def _repeated(
        self, tokens: TextLayout, patterns: GroupedPatterns, values: Array, many: Array, of_one: Array
    ) -> Array:
        """What a word adds to values of probes, likewise (..., 1, R); and put into sums what words add there.

        Those are the group's sum of what differs, in which tokens of one word add up over all groups, with the chance κ
        of a pair, and one token's share of it.
        """
        probes, beside = tokens.probes, tokens.beside
        added, (_, alone), (_, unlike) = tokens.of_words(values)[0], tokens.split(values), tokens.mixed(values)
        ratio = np.divide(np.maximum(unlike, 0.0), alone, out=np.ones_like(alone), where=alone > 0)
        ratio = np.sqrt(ratio)[:, None, None, None, :]
        many *= ratio
        of_one *= ratio
        shape = (*patterns.mean.shape[:2], len(probes), SAMPLES)
        word, words = (
            (root(kernel)[:, None] @ self.generator.standard_normal(shape)).mT[..., None, :]
            for kernel in (added, tokens.repeats * added)
        )
        many[..., probes] = tokens.seen[:, beside] * patterns.own[..., probes] * words
        of_one[..., beside] += (tokens.seen / tokens.sizes)[:, beside] * patterns.own_changed[..., probes] * words
        of_one[..., probes] = 0.0
        return np.asarray(word)

    def _varying(self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array) -> Array:
        """Σ_jl A_ij A_kl of what x_j·x_l/d of different tokens varies by, ρ δ_j δ_l/d, (batch, heads, samples, r, r).

        Where positions rotate, with the mean of cos((j − l) − (i − k)) θ over a head's coordinates.
        """
        stack = self.stack
        varying = self._of_varying(tokens, patterns, tokens.differing(kernel), self.variance / stack.width)
        if self.unlike is None:
            return varying
        return varying + self._of_varying(tokens, patterns, self.unlike, np.ones(1))

    def _of_varying(self, tokens: GroupLayout, patterns: GroupedPatterns, deviations: Array, scale: Array) -> Array:
        """The same of products that vary by their scale times δ_j δ_l."""
        stack = self.stack
        weights = patterns.changed * deviations[:, None, None, None, :]
        scale = scale[:, None, None, None, None]
        sums, alone = weights.sum(-1, keepdims=True), weights / tokens.sizes**0.5
        alone = _turning(stack, tokens) * (alone @ alone.mT)
        if not stack.rotary:
            return np.asarray(scale * (sums * sums.mT - alone))
        angles = tokens.places[:, None] * frequencies(stack)
        cos, sin = np.cos(angles), np.sin(angles)
        share = stack.rotary_width / stack.key_width
        along, across = weights @ cos, weights @ sin
        turned_sums = np.concatenate([along * cos + across * sin, across * cos - along * sin], -1)
        of_turned = turned_sums @ turned_sums.mT / angles.shape[1]
        return np.asarray(scale * (share * of_turned + (1.0 - share) * sums * sums.mT - alone))

    def _led(self, tokens: GroupLayout, patterns: GroupedPatterns, varying: Array) -> Array:
        """What tokens' leaning to queries adds to products of attended tokens, (batch, r, r).

        Under a row's weights x_j leans to what W^K makes of the query, and with it its value.
        """
        scale, of_keys = logit_scale(self.stack), np.ones(())
        if patterns.sizes is not None:
            scale = bare_logit_scale(self.stack)
            of_keys = gain(self.stack, "WK") / np.square(patterns.sizes[1]).mean(-1)[..., None, None]
        rows = turned(self.stack, tokens.places, patterns.queries, -1)
        return np.asarray((scale**2 * of_keys * (rows @ rows.mT) * varying).mean((1, 2)))

    def _of_pairs(
        self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array, head: Array, varying: Array
    ) -> tuple[Array, Array]:
        """What products of different tokens add by varying, for sums over n² of them: at queries, and to W^K's energy.

        Both gradients hold (x_j·x_l)² under a row's weights: of values and keys, and of values and what keys are of.
        """
        rows = turned(self.stack, tokens.places, patterns.queries, -1)
        at_queries = head * varying.mean((1, 2))
        at_keys = head * (rows @ rows.mT / self.stack.key_width * varying).mean((1, 2))
        if patterns.sizes is not None:
            of_queries, of_keys = (size.mean((1, 2)) for size in patterns.sizes[:2])
            mean = (np.square(of_keys) @ tokens.sizes / tokens.count)[..., None, None]
            both = of_queries[..., :, None] * of_queries[..., None, :]
            at_queries, at_keys = at_queries * gain(self.stack, "WK") / mean / both, at_keys / mean
        values = gain(self.stack, "WV")
        return values * at_queries, values * tokens.total(at_keys)

    def _at_queries(
        self, tokens: GroupLayout, patterns: GroupedPatterns, head: Array, extra: Array,
        parts: tuple[Array, Array, Array], others: Array,
    ) -> Array:  # fmt: skip
        """E⟨∂L/∂q_i, ∂L/∂q_k⟩, of Σ_j ∂a_ij k_j: what a group's values have in common, one's own, its sum."""
        changed, many, deviation = parts
        slopes = np.divide(patterns.own_changed, patterns.own, where=patterns.own > 0, out=np.zeros_like(many))
        gradients = changed @ patterns.mean_keys - deviation * patterns.attended
        # The mean key that is subtracted holds one's own.
        share = patterns.own_changed
        if isinstance(tokens, TextLayout) and patterns.words is not None:
            share = share * (1.0 + others)
            share[..., tokens.probes] = patterns.words.held
        gradients = gradients + (many * slopes * (1.0 - share)) @ patterns.own_keys
        of_queries = np.ones(()) if patterns.sizes is None else patterns.sizes[0][..., None]
        gradients = turned(self.stack, tokens.places, gradients, -1) / of_queries
        products = (head * (gradients @ gradients.mT)).mean((1, 2))
        # Of its own group a row sees what it sees, and two rows what the other one sees as well.
        apart = np.square(patterns.own_keys).sum(-1)[..., None, :] + np.square(patterns.attended).sum(-1)[..., None]
        apart = np.square(patterns.own_changed / of_queries) * (apart - 2.0 * patterns.attended @ patterns.own_keys.mT)
        apart = (np.linalg.diagonal(head)[..., None] * apart).mean((1, 2))
        surely = (apart * (tokens.seen * (1.0 - tokens.seen / tokens.sizes)) * extra[:, None, :]).sum(-1)
        return with_diagonal(products, np.linalg.diagonal(products) + surely) / self.stack.key_width

    def _at_keys(
        self, tokens: GroupLayout, patterns: GroupedPatterns, above: Array, first: Array, second: Array
    ) -> Array:
        """Σ_ik P_ik A_ij B_kl q_i·q_k/d_k, means over heads and samples, with q_i turned as key j sees it."""
        stack, queries = self.stack, patterns.queries
        if not stack.rotary:
            return np.asarray((first.mT @ (above * (queries @ queries.mT)) @ second).mean((1, 2)) / stack.key_width)
        theta, half, kernel = frequencies(stack), stack.rotary_width // 2, np.zeros(())
        # Each head and sample has one, and all together are spread evenly.
        batch, heads = queries.shape[:2]
        steps = (np.arange(heads * SAMPLES) + self.generator.random((batch, 1))) * (half / (heads * SAMPLES))
        indices = self.generator.permuted(steps.astype(int), axis=1).reshape(batch, heads, 1, 1, SAMPLES)
        for sample in range(SAMPLES):
            index = indices[..., sample]
            real, imaginary = (np.take_along_axis(queries[:, :, 0], index + shift, -1) for shift in (0, half))
            pair = (real + 1j * imaginary)[..., 0]
            product = above[:, :, sample % above.shape[2]] * (pair[..., :, None] * pair[..., None, :].conj())
            phase = np.exp(-1j * theta[index[..., 0]] * tokens.places)
            part = first[:, :, sample].mT @ product @ second[:, :, sample]
            kernel = kernel + (phase[..., :, None] * phase[..., None, :].conj() * part).real.mean(1) * (half / SAMPLES)
        rest = queries[..., 2 * half :]
        if rest.shape[-1]:
            kernel = kernel + (first.mT @ (above * (rest @ rest.mT)) @ second).mean((1, 2))
        return np.asarray(kernel / stack.key_width)

    def _removed(
        self, tokens: GroupLayout, patterns: GroupedPatterns, smooth: Array, overlaps: NormOverlaps[Array]
    ) -> tuple[Array, Array]:
        """What norms above removed, by what groups have in common: for one token of many it is small."""
        stack = self.stack
        scale, values, none = (head_gain(stack, "W") / stack.heads) ** 2, smooth[:, None], np.zeros(())
        mean, changed = patterns.mean[:, :, 0], patterns.changed[:, :, 0]
        u = mean @ values
        w = u @ mean.mT
        turning = _turning(stack, tokens)
        sides = (
            (np.ones(()), np.ones(()), patterns.mean_keys, Inner.at_queries),
            (tokens.pairs, tokens.sizes, patterns.queries, Inner.at_keys),
        )
        parts: list[Array] = []
        for pairs, sizes, rows, products_of in sides:
            weights, products = changed / sizes, (rows @ rows.mT)[:, :, 0] / stack.key_width
            a1 = weights * (u - np.linalg.diagonal(w)[..., None])
            both = NormOverlaps(*(scale * pairs * part[:, None] for part in (overlaps.first, overlaps.second)))
            part = products_of(Inner(weights, weights, values, none, both, u, w, a1), products) * turning
            if patterns.sizes is not None:
                size = patterns.sizes[len(parts)][:, :, 0]
                part = part / (size[..., :, None] * size[..., None, :])
            parts.append(part.mean(1))
        return parts[0], parts[1]


def _of_each(array: Array, kernel: Array) -> Array:
    """An array per entry of the batch, for every head and sample."""
    return array[:, None, None] if array.ndim == kernel.ndim else array[:, None, None, :]


def grouped_patterns(
    stack: Stack, tokens: GroupLayout, kernel: Array, heads: int, generator: np.random.Generator
) -> GroupedPatterns:
    """Patterns of so many heads, in their law at the width of a head, (batch, r, r) of the kernel."""
    smooth, extra = tokens.split(kernel)
    shape = (len(kernel), heads, 1, kernel.shape[-1], stack.key_width)
    # Of text the mixture has made it slightly indefinite.
    factor = root(kernel) if isinstance(tokens, TextLayout) else cholesky(kernel)
    queries = factor[:, None, None] @ generator.standard_normal(shape)
    mean_keys = root(smooth)[:, None, None] @ generator.standard_normal(shape)
    deviations = generator.standard_normal((*shape[:2], SAMPLES, *shape[3:]))
    keys = mean_keys + np.sqrt(extra)[:, None, None, :, None] * deviations
    alone = np.zeros(())
    if isinstance(tokens, TextLayout):
        # Probes have the key of their word; what a token has beside it is left to its mean weight.
        (added, beside_word), probes = tokens.of_words(kernel), tokens.probes
        keys[..., probes, :] = mean_keys[..., probes, :] + root(added)[:, None, None] @ deviations[..., probes, :]
        alone = tokens.to_probes(beside_word)[:, None, None]
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
    queries, mean_keys, keys = (turned(stack, tokens.places, rows) for rows in (queries, mean_keys, keys))
    leaning = scale * queries
    variance = scale**2 * np.square(queries).sum(-1)[..., None] * extra[..., None, :]
    level, slopes = _mean_weight(stack, leaning @ mean_keys.mT, variance)
    logits, own_slopes = _capped(stack, leaning @ keys.mT)
    if isinstance(tokens, TextLayout):
        of_alone = scale**2 * np.square(queries).sum(-1)[..., None] * alone[..., None, :]
        logits, own_slopes = _mean_weight(stack, leaning @ keys.mT, of_alone)
    seen, words = tokens.seen > 0, None
    highest = np.where(seen, level, -np.inf).max(-1, keepdims=True)
    expected, weights = (np.where(seen, np.exp(np.minimum(part - highest, _LARGEST)), 0.0) for part in (level, logits))
    share = tokens.seen / tokens.sizes
    sums, without = (share * _sum_of(number, weights, expected) for number in (tokens.sizes, tokens.sizes - 1.0))
    total = sums.sum(-1, keepdims=True)
    holding = total - sums + without + weights
    if isinstance(tokens, TextLayout):
        # Given a token's logit, the mean weight of another one of its word.
        lean, spread = (part[..., tokens.of_probe] for part in (level, variance))
        of_word = tokens.of_word_share(kernel)[:, None, None, None, :]
        again = lean + of_word * (logits - lean) + of_word * (1.0 - of_word) / 2 * spread
        again = np.where(seen, np.exp(np.minimum(again - highest, _LARGEST)), 0.0)
        holding, of_probes, words = probe_weights(tokens, weights, holding, again, generator)
    single = weights / np.maximum(holding, np.finfo(float).tiny)
    mean = changed = sums / total
    if stack.logit_softcap:
        changed = share * _sum_of(tokens.sizes, weights * own_slopes, expected * slopes) / total
    if isinstance(tokens, TextLayout):
        probes, changed = tokens.probes, changed.copy()
        single[..., probes], mean[..., probes] = of_probes, tokens.seen[:, probes] * of_probes
        changed[..., probes] = mean[..., probes] * (own_slopes[..., probes] if stack.logit_softcap else 1.0)
    # Under its weights a key leans to the query by its variance, and it varies as one does that the sum holds.
    drawn = np.sqrt(tokens.sizes) * share * np.roll(weights, -1, 2) / total
    leans = (changed - drawn) @ extra[..., :, None]
    attended = (changed - drawn) @ mean_keys
    attended += drawn @ np.roll(keys, -1, 2)
    attended += leans * leaning
    single_changed = single * own_slopes if stack.logit_softcap else single
    return GroupedPatterns(mean, changed, single, single_changed, queries, mean_keys, keys, attended, sizes, words)


def _sum_of(number: Array, weights: Array, expected: Array) -> Array:
    """For each sample a sum of so many tokens of each group, (r,), from the other samples, (..., samples, r, r).

    Of more tokens than samples the sum has their mean and variance.
    """
    others = SAMPLES - 1
    turn = ((np.arange(SAMPLES) - np.arange(SAMPLES)[:, None]) % SAMPLES - 1.0)[..., None]
    few = np.clip(number - turn, 0.0, 1.0)
    factors = np.where(turn < 0, 0.0, np.where(number > others, np.sqrt(np.maximum(number, 0.0) / others), few))
    left = number - factors.sum(1)[0]
    return np.asarray(np.einsum("stj,...tij->...sij", factors, weights) + left * expected)


def root(kernel: Array) -> Array:
    """A square root of a kernel, which having one entry for a group may have made slightly indefinite."""
    values, vectors = np.linalg.eigh(kernel)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])


def turned(stack: Stack, places: Array, rows: Array, sense: int = 1) -> Array:
    """Queries or keys as positions rotate them, where they do, (..., r, d_k); −1 rotates back."""
    return rotated_by(stack, places, rows, sense) if stack.rotary else rows


@lru_cache(maxsize=8)
def _turning(stack: Stack, tokens: GroupLayout) -> Array:
    """The mean of cos((i − k) θ) over a head's coordinates, (r, r) or ()."""
    if not stack.rotary:
        return np.ones(())
    share = stack.rotary_width / stack.key_width
    apart = tokens.places[:, None] - tokens.places
    return np.asarray(1.0 - share + share * np.cos(apart[..., None] * frequencies(stack)).mean(-1))


def _capped(stack: Stack, logits: Array) -> tuple[Array, Array]:
    """C tanh(a/c) and its slope."""
    if not stack.logit_softcap:
        return logits, np.ones(())
    part = np.tanh(logits / stack.logit_softcap)
    return stack.logit_softcap * part, 1.0 - part**2


def _mean_weight(stack: Stack, logits: Array, variance: Array) -> tuple[Array, Array]:
    """Ln E e^a of Gaussian logits a, and under e^a the mean of the cap's slope."""
    if not stack.logit_softcap:
        return logits + variance / 2, np.ones(())
    nodes, weights = np.polynomial.hermite_e.hermegauss(_CAPPED)
    spread, parts = np.sqrt(variance), []
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        part, slope = _capped(stack, logits + spread * node)
        each = weight * np.exp(part)
        parts.append((each, each * slope))
    total, slopes = (sum(column) for column in zip(*parts, strict=True))
    return np.log(total), slopes / total
