"""Attention with random queries and keys over thousands of tokens, computed for a few representative tokens.

The module has the rule of the attention branch. Its attention weights are sampled by `grouped_patterns`, for every
sequence separately.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from theory.mean_field.attention.grouped_patterns import (
    SAMPLES,
    GroupedPatterns,
    columns,
    grouped_patterns,
    turned,
)
from theory.mean_field.attention.patterns import bare_logit_scale, frequencies, logit_scale, logit_shrink
from theory.mean_field.attention.sampled import head_gain
from theory.mean_field.attention.words import rows_of_words
from theory.mean_field.group_members import MemberLayout, attending_members
from theory.mean_field.kernels import Array
from theory.mean_field.sequence_blocks import after, before, joined, mean_sandwich, numbers, rows, whole, within
from theory.mean_field.sublayers import BranchPullback, NormOverlaps, Overlaps, Recorded, SquaredNorms, bias_gradients
from theory.mean_field.text_groups import TextLayout
from theory.mean_field.token_groups import GroupLayout, with_diagonal
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio

# Of two keys far apart positions may leave nothing in the mean.
_LEAST_TURNING = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """The inner products of two tokens' attention outputs before W^O, and the terms that they consist of.

    Arrays have the shape (batch, R, R) for R tokens, unless another one is given.

    Attributes:
        out: kernel of attended values.
        leaning_term: part of the products that comes from tokens leaning towards queries, divided by W^V's gain.
        varying: variance of the products of different tokens, (batch, heads, 1, R, R).
        of_words: sums over tokens with equal ids, for text; otherwise 0.
    """

    out: Array
    leaning_term: Array
    varying: Array
    of_words: Array

    def at_rows(self, chosen: NDArray[np.intp]) -> Attended:
        """Select the inner products of attention outputs for some of the tokens."""
        pairs = (..., chosen[:, None], chosen)
        return Attended(self.out[pairs], self.leaning_term[pairs], self.varying[pairs], np.zeros(()))


@dataclass(frozen=True, slots=True, eq=False)
class GroupedAttention:
    """The attention branch softmax(x W^Q (x W^K)ᵀ / √d_k) x W^V W^O, for tokens that represent groups of tokens.

    Attributes:
        stack: the network.
        variance: ρ of `overlap_variance`, (batch,) or (1,).
        generator: random generator of the attention samples.
        layer: number l of the layer.
        unlike: standard deviation of the products x_j·x_l/d of different tokens of a group, (batch, r), or None.
    """

    stack: Stack
    variance: Array
    generator: np.random.Generator
    layer: int = 1
    unlike: Array | None = None

    def __call__(self, tokens: GroupLayout, kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        """Propagate the inner products of representative tokens through the attention branch.

        They have the shape (batch, r, r).

        Args:
            tokens: layout of the representatives.
            kernel: kernel of the branch's input.

        Returns:
            The kernel of the output, the backward rule, and recorded statistics.
        """
        heads = min(self.stack.heads, tokens.most_heads(self.layer, self.stack.depth))
        patterns = grouped_patterns(self.stack, tokens, kernel, heads, self.generator)
        forward = self._attended(tokens, patterns, kernel)
        pullback = self._pullback(tokens, patterns, kernel, forward)
        recorded = {} if tokens.apart else self._recorded(tokens, patterns)  # a batch's gradient needs none
        recorded |= {"attended": (patterns, pullback)}
        return forward.out * head_gain(self.stack, "W"), pullback, recorded

    def of_members(self, tokens: MemberLayout, kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        """Propagate the inner products of several tokens of every group through the attention branch.

        Each of these tokens has its own query. Keys and values are the part common to all tokens of a group. If one
        pair's product were used for all pairs of its groups, the deviation of that pair would count as often as there
        are pairs, and the products would not be a kernel.

        Args:
            tokens: layout of the computed tokens.
            kernel: kernel of the branch's input, (batch, members, members).

        Returns:
            The kernel of the output, the backward rule, and recorded statistics.
        """
        stack, pooled = self.stack, tokens.pooled(kernel)
        groups = replace(tokens.groups, apart=True) if tokens.apart else tokens.groups
        rule, rows = replace(self, unlike=tokens.unlike(kernel)), attending_members(tokens)
        heads = min(stack.heads, rows.most_heads(self.layer, self.stack.depth))
        every = grouped_patterns(stack, rows, pooled, heads, self.generator, attending=kernel)
        forward = rule._attended(rows, every, pooled)
        patterns = every.at_rows(tokens.first)
        back = rule._pullback(groups, patterns, pooled, forward.at_rows(tokens.first))

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            if overlaps is not None:
                overlaps = NormOverlaps(tokens.pooled(overlaps.first), tokens.pooled(overlaps.second))
            below, energies = back(tokens.pooled(gradient), overlaps)
            if stack.output_projection == "random":
                energies |= {"WO": tokens.total(forward.out * gradient) * inner_ratio(stack)}
            return tokens.spread(below), energies

        return forward.out * head_gain(stack, "W"), pullback, rule._recorded(groups, patterns)

    def _attended(self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array) -> Attended:
        """Return the inner products of attention outputs before W^O, from the kernel of the attended tokens."""
        (smooth, extra), of_words = tokens.smooth_and_own(kernel), np.zeros(())
        attended = mean_sandwich(patterns.mean, smooth[:, None, None], patterns.mean)
        if (words := patterns.words) is not None:
            # Keys of one word lean to a query together.
            added = (words.tokens.repeats * words.tokens.of_words(kernel)[0])[:, None, None]
            of_words = patterns.of_pairs(words, added)
            attended = attended + of_words * words.tokens.coincidences
            extra = tokens.mixed(kernel)[1]
        varying = self._varying(tokens, patterns, kernel)
        leaning_term = self._leaning_term(tokens, patterns, varying)
        kernels = kernel[:, None, None], smooth[:, None, None]
        attended = attended + tokens.coincident_terms(
            *kernels, extra[:, None, None], patterns.own, patterns.own, mean=(1, 2)
        )
        return Attended(gain(self.stack, "WV") * (attended + leaning_term), leaning_term, varying, of_words)

    def _recorded(self, tokens: GroupLayout, patterns: GroupedPatterns) -> Recorded:
        """Return the entropy of attention rows and the sum of their squared weights, averaged over all tokens."""
        statistics = {"attention_entropy": entr(patterns.own), "attention_squares": np.square(patterns.own)}
        share, of_one, entries = tokens.sizes / tokens.count, tokens.one.seen, len(patterns.own)
        return {
            name: (of_one * each).sum(-1).mean((1, 2)).reshape(entries, -1) @ share for name, each in statistics.items()
        }

    def _pullback(
        self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array, forward: Attended
    ) -> BranchPullback[Array]:
        """Return the backward pass of attention for representative tokens."""
        stack, value_gain = self.stack, gain(self.stack, "WV")

        def pullback(
            gradient: Array, overlaps: Overlaps[Array], more_of_heads: Array | None = None
        ) -> tuple[Array, SquaredNorms]:
            head = head_gain(stack, "W") / stack.heads * gradient
            of_heads = head[:, None, None]
            if more_of_heads is not None:
                head, of_heads = head + more_of_heads.mean((1, 2)), of_heads + more_of_heads
            above, each = of_heads * tokens.pairs, patterns.mean.mT / tokens.one.sizes[:, None]
            to_each = mean_sandwich(each, above, each)
            for shift, (place, other) in enumerate([(np.arange(len(tokens.sizes)),) * 2, *tokens.same_places()]):
                blocks = within(above, tokens.sequences, shift)
                of_one = tokens.pulled_back_weights(blocks, patterns.own, patterns.own, shift)
                to_each[..., place, other] = of_one.mean((1, 2))
            if (words := patterns.words) is not None:
                likelier = above * words.tokens.likelier(len(above))[:, None, None]
                to_each = words.tokens.with_likelier(to_each, patterns.of_pairs(words, likelier, back=True))
            to_values = stack.heads * to_each
            energies: SquaredNorms = {
                "WV": tokens.total(kernel * to_values) + stack.heads * tokens.total(head * forward.leaning_term)
            }
            energies |= bias_gradients(stack, tokens, WV=to_values)
            if stack.output_projection == "random":
                at_ends = forward.out
                if words is not None:
                    ends = words.tokens.repeat_extremes(len(at_ends)) * words.tokens.count_deviations
                    at_ends = at_ends + value_gain * forward.of_words * ends
                energies["WO"] = tokens.total(at_ends * gradient) * inner_ratio(stack)
                energies |= bias_gradients(stack, tokens, WO=gradient)
            below = value_gain * to_values
            at_queries, at_keys = self._query_path(tokens, patterns, kernel, of_heads, overlaps)
            of_pairs, energy = self._of_pairs(tokens, patterns, kernel, head, forward.varying)
            of_energies: dict[str, Array | float] = {"Q": 0.0, "K": energy}
            gains = {"Q": gain(stack, "WQ"), "K": gain(stack, "WK")}
            others = {"Q": gains["K"], "K": gains["Q"]} if patterns.sizes is None else {"Q": 1.0, "K": 1.0}
            for role, part in {"Q": at_queries + of_pairs, "K": at_keys}.items():
                size = stack.heads * logit_shrink(stack) * others[role]
                scaled = size * part
                energies["W" + role] = tokens.total(kernel * scaled) + size * of_energies[role]
                energies |= bias_gradients(stack, tokens, **{"W" + role: scaled})
                below = below + gains[role] * scaled
            return below, energies

        return pullback

    def _query_path(
        self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array, head: Array, overlaps: Overlaps[Array]
    ) -> tuple[Array, Array]:
        """Return the inner products of the gradients at queries and at keys, averaged over heads, (batch, r, r).

        They are divided by the gains of queries and keys.

        The gradient of a logit is ∂a_ij = A_ij (r_ij − Σ_m A_im r_im), where r_ij = g_i·v_j has the covariance G_ik
        V_jl. The kernels are linear in G, which may differ by head. Only some coordinates of the values are sampled.
        For one coordinate, ∂a_ij is a number times the coordinate of g_i.
        """
        stack, words = self.stack, patterns.words
        values, layout, sequences = kernel * gain(stack, "WV"), tokens.one, tokens.sequences
        (common, alone), extra, others = self._drawn_values(tokens, patterns, values)
        # What differs within a group adds up as one token's times the root of their number.
        many = layout.seen / np.sqrt(layout.sizes) * patterns.own * alone
        of_one = layout.seen / layout.sizes**1.5 * patterns.own_changed * alone
        if words is not None:
            word = self._repeated(words.tokens, patterns, values, many, of_one)
        mean_value, deviation = (part.sum(-1, keepdims=True) for part in (patterns.mean * common, many))
        changed, again = patterns.changed * (common - mean_value), np.zeros(())
        if words is not None:
            # What is subtracted holds a token's word again.
            itself = words.tokens.one.itself
            again = others * patterns.own * (alone + itself * common)
            changed -= itself * patterns.changed * again
        to_queries = self._at_queries(tokens, patterns, head, extra, (changed, many, deviation), others)
        above = head * tokens.pairs
        if words is not None:
            likelier = rows_of_words(words.tokens, kernel, _turned_coincidences(stack, words.tokens))
            above, to_queries = above * likelier[..., None, None, :, :], to_queries * likelier
        each = patterns.changed / layout.sizes
        subtracted = each * deviation
        of_group = changed / layout.sizes - subtracted
        if words is not None:
            # A row's sum holds a probe's own word, and beside it others.
            probes = words.tokens.one.probes
            beside = common[..., probes] + word - mean_value - np.roll(deviation, 1, 2)
            of_group[..., probes] = each[..., probes] * beside * (1.0 - words.held)
        # Of a token with itself: the sum that it is taken from holds it once.
        mine = patterns.own_changed * (common + alone - mean_value - deviation + many - patterns.own * alone - again)
        if patterns.sizes is not None:
            of_mean, of_own = (numbers(size, sequences)[..., None, :] for size in patterns.sizes[1:])
            of_group, subtracted, of_one, mine = (
                of_group / of_mean,
                subtracted / of_mean,
                of_one / of_own,
                mine / of_own,
            )

        to_keys = self._at_centred_keys(tokens, patterns, above, (of_one, subtracted, of_group, mine))
        if overlaps is not None:
            mixed, _ = tokens.mixed(values)
            removed = self._removed(tokens, patterns, mixed, overlaps)
            to_queries, to_keys = to_queries + removed[0], to_keys + removed[1]
        return to_queries, to_keys

    def _at_centred_keys(
        self, tokens: GroupLayout, patterns: GroupedPatterns, above: Array, parts: tuple[Array, Array, Array, Array]
    ) -> Array:
        """Return the gradient kernel at keys, from whose logits the mean of a row is subtracted.

        The weights of a row have the sum 1, so that only differences between its logits change them.
        """
        # Of two tokens at one position, or of a key with itself: Σ_ik P_ik ∂a_ij ∂a_kj' q_i·q_k/d_k.
        products, mine = above * patterns.products / self.stack.key_width, parts[3]
        same = [
            tokens.pulled_back_weights(within(products, tokens.sequences, shift), mine, mine, shift).mean((1, 2))
            for shift in range(tokens.sequences)
        ]
        to_keys = self._at_every_key(tokens, patterns, above, parts[:3], same)
        if not self.stack.logit_softcap and not self.stack.rotary:
            return tokens.centred(to_keys)
        if not self.stack.logit_softcap and patterns.words is not None:
            unturned = self._at_every_key(tokens, patterns, above, parts[:3], same, rotates=False)
            return to_keys - _turning(self.stack, tokens) * (unturned - tokens.centred(unturned))
        return to_keys

    def _drawn_values(
        self, tokens: GroupLayout, patterns: GroupedPatterns, values: Array
    ) -> tuple[tuple[Array, Array], Array, Array]:
        """Return sampled values of groups and of single tokens, the variance of the latter, and `WordShares.others`.

        The third result is the others of `WordShares`, scaled for values instead of keys.
        """
        sequences = tokens.sequences
        smooth, extra = tokens.smooth_and_own(values)
        others, words = np.zeros(()), patterns.words
        if words is not None:
            smooth = words.tokens.without_words(smooth, values)
            others = words.others * columns(words.tokens.of_word_share(values), sequences)
        shape = (*patterns.mean.shape[:2], values.shape[-1], SAMPLES)
        spread = np.sqrt(extra)[:, None, :, None]
        common = tokens.drawn(smooth, shape, self.generator)
        alone = self.generator.standard_normal(shape)
        alone = spread * tokens.shared_by_place(alone, tokens.of_places(values)[:, None, :, None], self.generator)
        common, alone = (numbers(drawn.mT, sequences)[..., None, :] for drawn in (common, alone))
        return (common, alone), extra, others

    def _at_every_key(
        self, tokens: GroupLayout, patterns: GroupedPatterns, above: Array, parts: tuple[Array, Array, Array],
        same_places: list[Array], *, rotates: bool = True,
    ) -> Array:  # fmt: skip
        """Return the gradient kernel at keys: between two groups, for one token, and between tokens of one position.

        Args:
            tokens: layout of the representatives.
            patterns: the attention samples.
            above: gradient kernel of every head, times the number of pairs.
            parts: gradients of logits at keys for one token of a group, the subtracted mean, and both for a group.
            same_places: results between tokens of one position, by the number of sequences from one to the other.
            rotates: whether rotary positions are applied.
        """
        (of_one, subtracted, of_group), words = parts, patterns.words
        met = self._at_keys(tokens, patterns, above, of_one, subtracted, rotates=rotates)
        between = self._at_keys(
            tokens, patterns, above, of_group, of_group, rotates=rotates,
            shifts=None if words is None else range(1, tokens.sequences),
        )  # fmt: skip
        if words is not None:
            # Of two keys in one sequence, which holds both.
            of_both = of_group.copy()
            of_both[..., words.tokens.one.probes] *= words.changes
            between = between + self._at_keys(
                tokens, patterns, above, of_both, of_both, shifts=range(1), rotates=rotates
            )
        kernel = with_diagonal(between - met - met.mT, same_places[0])
        for (place, same), product in zip(tokens.same_places(), same_places[1:], strict=True):
            kernel[..., place, same] = product
        return kernel

    def _repeated(
        self, tokens: TextLayout, patterns: GroupedPatterns, values: Array, many: Array, of_one: Array
    ) -> Array:
        """Return the word's part of the probes' values, (..., S, 1, r), and add the words' parts to the sums in place.

        The sums are a group's sum of individual parts, in which tokens with equal ids add up over all groups with the
        probability κ of a pair, and one token's share of it.
        """
        layout, sequences = tokens.one, tokens.sequences
        probes, beside = layout.probes, layout.beside
        added, (_, alone), (_, unlike) = tokens.of_words(values)[0], tokens.smooth_and_own(values), tokens.mixed(values)
        ratio = np.divide(np.maximum(unlike, 0.0), alone, out=np.ones_like(alone), where=alone > 0)
        ratio = columns(np.sqrt(ratio), sequences)
        many *= ratio
        of_one *= ratio
        shape = (*patterns.mean.shape[:2], len(tokens.probes), SAMPLES)
        word, words = (
            numbers(tokens.drawn(kernel, shape, self.generator).mT, sequences)[..., None, :]
            for kernel in (added, tokens.repeats * added)
        )
        many[..., probes] = layout.seen[:, beside] * patterns.own[..., probes] * words
        of_one[..., beside] += (layout.seen / layout.sizes)[:, beside] * patterns.own_changed[..., probes] * words
        of_one[..., probes] = 0.0
        return np.asarray(word)

    def _varying(self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array) -> Array:
        """Return Σ_jl A_ij A_kl ρ δ_j δ_l/d, the attended variance of the products x_j·x_l/d of different tokens.

        The result is a mean over samples, (batch, heads, 1, S r, S r). With rotary positions the sum includes the
        mean of cos((j − l) − (i − k)) θ over a head's coordinates.
        """
        varying = self._of_varying(tokens, patterns, tokens.differing(kernel), self.variance / self.stack.width)
        if self.unlike is not None:
            varying = varying + self._of_varying(tokens, patterns, self.unlike, np.ones(1))
        left = self._differing_share(tokens, patterns)
        return np.asarray(varying * left[..., :, None] * left[..., None, :])

    def _differing_share(self, tokens: GroupLayout, patterns: GroupedPatterns) -> Array:
        """Return 1 − Σ_w A_iw², the share of variance left in an attention row's sum after its mean is subtracted.

        The sum is of independent numbers for each word w. Only differences of logits change the weights. The shape is
        (batch, heads, 1, S r).
        """
        others = np.zeros(()) if patterns.words is None else patterns.words.others
        squares = (tokens.one.seen * np.square(patterns.own) * (1.0 + others)).sum(-1).mean(2, keepdims=True)
        return np.maximum(1.0 - squares.reshape(*squares.shape[:3], -1), 0.0)

    def _of_varying(self, tokens: GroupLayout, patterns: GroupedPatterns, deviations: Array, scale: Array) -> Array:
        """Return scale Σ_jl A_ij A_kl δ_j δ_l over different tokens j and l, averaged over samples.

        Args:
            tokens: layout of the representatives.
            patterns: the attention samples.
            deviations: δ, (batch, S r).
            scale: the scale, (batch,) or (1,).
        """
        stack, sequences, scale = self.stack, tokens.sequences, scale[:, None, None, None, None]
        weights = patterns.changed * columns(deviations, sequences)
        sums, alone = joined(weights.sum(-1, keepdims=True)), weights / tokens.one.sizes**0.5
        both, between = (alone @ alone.mT).mean(2, keepdims=True), _mean_products(sums)
        if stack.rotary:
            turning = within(_turning(stack, tokens), sequences)
            of_keys, of_rows = (at[:, None] * frequencies(stack) for at in (tokens.places, tokens.row_places))
            cos, sin = np.cos(of_rows), np.sin(of_rows)
            share = stack.rotary_width / stack.key_width
            along, across = (joined(weights @ rows(part, sequences)) for part in (np.cos(of_keys), np.sin(of_keys)))
            turned_sums = np.concatenate([along * cos + across * sin, across * cos - along * sin], -1)
            of_turned = _mean_products(turned_sums) / of_keys.shape[1]
            both, between = turning * both, share * of_turned + (1.0 - share) * between
        return np.asarray(scale * (between - whole(both)))

    def _leaning_term(self, tokens: GroupLayout, patterns: GroupedPatterns, varying: Array) -> Array:
        """Return the part of products of attention outputs that comes from tokens leaning towards the queries.

        The shape is (batch, r, r).

        Under a row's weights, x_j leans towards the image of the query under W^K, and so does its value.
        """
        scale, of_keys = logit_scale(self.stack), np.ones(())
        if patterns.sizes is not None:
            scale = bare_logit_scale(self.stack)
            of_keys = gain(self.stack, "WK") / np.square(patterns.sizes[1]).mean(-1)[..., None, None]
        return np.asarray((scale**2 * of_keys * patterns.unturned * varying).mean((1, 2)))

    def _of_pairs(
        self, tokens: GroupLayout, patterns: GroupedPatterns, kernel: Array, head: Array, varying: Array
    ) -> tuple[Array, Array]:
        """Return the terms from the variance of products of different tokens, at the queries and in W^K's squared norm.

        Both gradients contain (x_j·x_l)² under a row's weights: the product of values times that of keys at the
        queries, and the product of values times that of the keys' inputs in W^K.
        """
        at_queries = head * varying.mean((1, 2))
        at_keys = head * (patterns.unturned / self.stack.key_width * varying).mean((1, 2))
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
        """Return E⟨∂L/∂q_i, ∂L/∂q_k⟩ for ∂L/∂q_i = Σ_j ∂a_ij k_j, from the values of groups and of single tokens.

        Args:
            tokens: layout of the representatives.
            patterns: the attention samples.
            head: gradient kernel of every head.
            extra: variance of a token's own value, (batch, S r).
            parts: gradients of the logits from a group's common value, single tokens' values, and the sum of the
                latter.
            others: `WordShares.others` of values, for text.
        """
        changed, many, deviation = parts
        layout, sequences = tokens.one, tokens.sequences
        own_keys, attended = rows(patterns.own_keys, sequences), rows(patterns.attended, sequences)
        if self.stack.logit_softcap:
            many = many * np.divide(patterns.own_changed, patterns.own, where=patterns.own > 0, out=np.zeros_like(many))
        gradients = changed @ rows(patterns.mean_keys, sequences) - deviation * attended
        # The mean key that is subtracted holds one's own.
        share = patterns.own_changed
        if (words := patterns.words) is not None:
            share = share * (1.0 + others)
            share[..., words.tokens.one.probes] = words.held
        gradients = gradients + (many * (1.0 - share)) @ own_keys
        of_queries = np.ones(()) if patterns.sizes is None else patterns.sizes[0][..., None]
        gradients = turned(self.stack, tokens.places, joined(gradients), -1) / of_queries
        # A gradient that is the same in all samples is multiplied with their mean.
        of_samples = _mean_products(gradients) if head.shape[2] == 1 else gradients @ gradients.mT
        products = (head * of_samples).mean((1, 2))
        # Of its own group a row sees what it sees, and two rows what the other one sees as well.
        apart = np.square(own_keys).sum(-1)[..., None, :] + np.square(attended).sum(-1)[..., None]
        of_queries = of_queries if patterns.sizes is None else rows(of_queries, sequences)
        apart = np.square(patterns.own_changed / of_queries) * (apart - 2.0 * attended @ own_keys.mT)
        apart = (numbers(np.linalg.diagonal(head), sequences)[..., None] * apart).mean((1, 2))
        of_itself = numbers(extra, sequences)[..., None, :]
        surely = (
            (apart * (layout.seen * (1.0 - layout.seen / layout.sizes)) * of_itself).sum(-1).reshape(len(extra), -1)
        )
        return with_diagonal(products, np.linalg.diagonal(products) + surely) / self.stack.key_width

    def _at_keys(
        self, tokens: GroupLayout, patterns: GroupedPatterns, above: Array, first: Array, second: Array, *,
        shifts: range | None = None, rotates: bool = True,
    ) -> Array:  # fmt: skip
        """Return Σ_ik P_ik A_ij B_kl q_i·q_k/d_k, averaged over heads and samples, with q_i rotated as seen from key j.

        Args:
            tokens: layout of the representatives.
            patterns: the attention samples.
            above: P, gradient kernel of every head, times the number of pairs.
            first: A.
            second: B.
            shifts: numbers of sequences from one key to the other that are computed; None for all.
            rotates: whether rotary positions are applied.
        """
        stack, queries = self.stack, patterns.queries
        if not (stack.rotary and rotates):
            return mean_sandwich(first.mT, above * patterns.products, second.mT, shifts=shifts) / stack.key_width
        theta, half = frequencies(stack), stack.rotary_width // 2
        # Each head and sample has one, and all together are spread evenly.
        batch, heads = queries.shape[:2]
        steps = (np.arange(heads * SAMPLES) + self.generator.random((batch, 1))) * (half / (heads * SAMPLES))
        index = self.generator.permuted(steps.astype(int), axis=1).reshape(batch, heads, SAMPLES, 1)
        real, imaginary = (np.take_along_axis(queries[:, :, 0].mT, index + shift, 2) for shift in (0, half))
        pair, phase = (numbers(part, tokens.sequences) for part in
                       (real + 1j * imaginary, np.exp(-1j * theta[index] * tokens.places)))  # fmt: skip
        # As each key sees the queries, whose products are those of the real and of the imaginary parts.
        seen = pair[..., None] * phase[..., None, :]
        side = other = np.concatenate([first * seen.real, first * seen.imag], 2).mT
        if second is not first:
            other = np.concatenate([second * seen.real, second * seen.imag], 2).mT
        every = np.concatenate([above] * 2, 2) if above.shape[2] > 1 else above
        kernel = 2 * half * mean_sandwich(side, every, other, shifts=shifts)
        rest = queries[..., 2 * half :]
        if rest.shape[-1]:
            kernel = kernel + mean_sandwich(first.mT, above * (rest @ rest.mT), second.mT, shifts=shifts)
        return np.asarray(kernel / stack.key_width)

    def _removed(
        self, tokens: GroupLayout, patterns: GroupedPatterns, smooth: Array, overlaps: NormOverlaps[Array]
    ) -> tuple[Array, Array]:
        """Return the part of the gradient that the norms above removed, from the common products of token groups.

        One token's own part is small among many tokens. The terms are those of `Inner` with G = 0.
        """
        stack, values, sequences = self.stack, smooth[:, None, None], tokens.sequences
        scale = (head_gain(stack, "W") / stack.heads) ** 2 / stack.key_width
        first, second = (scale * part[:, None, None] for part in (overlaps.first, overlaps.second))
        mean, changed, sizes = patterns.mean[:, :, :1], patterns.changed[:, :, :1], tokens.one.sizes
        u = before(mean, values)
        w = after(u, mean.mT)
        slopes = changed * (within(u, sequences) - numbers(np.linalg.diagonal(w), sequences)[..., None])
        turning = _turning(stack, tokens)
        of_queries, of_keys = (
            (np.ones(1),) * 2
            if patterns.sizes is None
            else (numbers(size[:, :, :1], sequences) for size in patterns.sizes[:2])
        )
        a1, a = slopes / of_queries[..., None], changed / of_queries[..., None]
        a1q = before(a1, patterns.mean_keys @ patterns.mean_keys.mT)
        part = first * (after(u * a1q, a.mT) - w * after(a1q, a.mT))
        at_queries = (second * after(a1q, a1.mT) - part - part.mT).mean((1, 2))
        # At keys, of one of a group's tokens.
        a1, a = (part / (of_keys * sizes)[..., None, :] for part in (slopes, changed))
        products = tokens.pairs * patterns.products
        of_first = first * products
        part = before(a1.mT, after(of_first, a) * u - after(of_first * w, a)).mean((1, 2))
        return at_queries * turning, (mean_sandwich(a1.mT, second * products, a1.mT) - part - part.mT) * turning


def _mean_products(vectors: Array) -> Array:
    """Return the products of rows averaged over samples, (batch, heads, 1, r, r).

    Args:
        vectors: the rows, (batch, heads, samples, r, columns).
    """
    samples = vectors.shape[2]
    beside = vectors.swapaxes(2, 3).reshape(*vectors.shape[:2], 1, vectors.shape[3], -1)
    return np.asarray(beside @ beside.mT / samples)


@lru_cache(maxsize=8)
def _turning(stack: Stack, tokens: GroupLayout) -> Array:
    """Return the mean of cos((i − k) θ) over a head's coordinates, (r, r); () without rotary positions."""
    if not stack.rotary:
        return np.ones(())
    share = stack.rotary_width / stack.key_width
    apart = tokens.row_places[:, None] - tokens.row_places
    return np.asarray(1.0 - share + share * np.cos(apart[..., None] * frequencies(stack)).mean(-1))


@lru_cache(maxsize=8)
def _turned_coincidences(stack: Stack, tokens: TextLayout) -> Array:
    """Return how much likelier two queries attend to equal token ids than by chance, under rotary positions.

    The probability by chance is κ. The shape is (2 R, 2 R).

    Positions turn the keys j and l of rows i and k, so that their product has the mean of cos((i − j) − (k − l)) θ
    over a head's coordinates. A row's own token is not turned.
    """
    if not stack.rotary:
        return tokens.coincidences
    share, rows = stack.rotary_width / stack.key_width, tokens.beside
    apart = (tokens.places[rows, None] - tokens.places)[..., None] * frequencies(stack)
    seen = (tokens.seen / tokens.seen_all)[rows, :, None]
    cos, sin = ((seen * part).sum(1) for part in (np.cos(apart), np.sin(apart)))
    turning = 1.0 - share + share * (cos @ cos.T + sin @ sin.T) / cos.shape[-1]
    return tokens.turned_coincidences(np.maximum(turning, _LEAST_TURNING), 1.0 - share + share * cos.mean(-1))
