"""Random text for groups of tokens: representatives with different token ids, and probes that share one id.

Pairs of positions belong to two classes: with equal token ids (one word), with the probability κ, and with different
ids. Given its class a pair passes entrywise, and sums over many tokens depend on the mixture of both. So there are
twice as many representatives: pairs of generic ones have different ids, and those of probes, which all share one id,
have equal ids. Squared norms are sums over both kinds of pairs, which is the mixture of products and not the product
of mixtures.

A token x_i has parts of three levels: K_ij of different ids, which all tokens have in common; the excess of its word;
and its own part, where positions are distinguished. Sums over keys contain the first in full, the second with the
probability κ of a pair as weight, and the third once.

Rows with equal ids attend to this id themselves: pairs of equal ids that two rows see are counted given whether the
rows' ids agree (`TextLayout.coincidences`); with 64 tokens this is 0.6% of the common part of tokens with equal ids.

Assumes many tokens: the count of a word in one text is taken at its mean, to relative O(κ) in the part of logits that
leans to it. Squared gradients of W^K above the first layer are up to 4 κ below those of networks.

A gradient varies with how often two texts share words, which makes their tokens more alike in every layer. In the
backward pass two texts, one standard deviation above and below the mean (`repeat_extremes`), represent all texts, in
MLPs and in sums over keys. Where rows have equal ids, whose size grows with their own repeats, sampled texts have
almost none of this (-2 to 1% of W^Q and W^K, while others have up to 9%), and it is left out. With small embeddings,
gated MLPs, 4 layers and 64 tokens, the part that two sequences share is then within 3% of sampled texts in W^V and
W^O, and 3 to 7% too large in MLPs; after 8 layers of 12 tokens it is up to a third too small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from theory.mean_field.kernels import Array, eigen_root
from theory.mean_field.sequence_blocks import whole
from theory.mean_field.token_groups import COARSE_HEADS, Coarse, GroupLayout, with_diagonal

if TYPE_CHECKING:
    from theory.mean_field.text_law import TextLaw

# Tokens that a probe stands for, of those of its representative: as a key it weighs nothing.
_NOTHING = 1e-9
# Sampled heads at most: in the first layer, and above it.
_FIRST_HEADS, _HEADS = 32, 8


def text_heads(layer: int, depth: int, *, coarse: Coarse = False) -> int:
    """Return the largest number of attention heads that are sampled in a layer for random text.

    With small embeddings, the stream consists almost only of the first layer's attention. The number of its heads
    decides how correlated the tokens of all layers are, and gradients are not linear in the correlation: 8 of the 32
    heads of Llama 3 8B make the norm a quarter too large.
    """
    return _FIRST_HEADS if layer == 1 else COARSE_HEADS if coarse and layer < depth else _HEADS


@dataclass(frozen=True, slots=True, eq=False)
class LabelChances:
    """The probabilities that the labels of two positions equal one of the positions' own token ids, (2 R, 2 R).

    They are given for pairs of positions with equal and with different ids: the row's and the column's.

    Attributes:
        own: probability that the row's label is its own id. If the column is the next position, it is 1 for equal ids
            and 0 for different ones.
        both: probability that both labels are the tokens' own ids.
        hits: for different ids, probability that the column's label is the row's id; 1 if the row is the position after
            the column.
        hits_twice: for different ids, probability that both labels, the column's and the row's, are the row's id.
        crossed: for different ids, probability that the column's label is the row's id and the row's label is the
            column's id.
    """

    own: Array
    both: Array
    hits: Array
    hits_twice: Array
    crossed: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class TextLayout(GroupLayout):
    """The representatives of random text: in every sequence r generic tokens, then r probes at the same positions.

    Generic tokens have different ids, and all probes share one id.

    Attributes:
        neighbours: the other representative of the group, or the nearest one of the same kind, (2 r sequences,).
        generic: the generic representative at the position of each, (2 r sequences,).
        probes: indices of the probes, (r sequences,).
        repeats: κ for the positions of two probes, (r sequences, r sequences).
        law: law of the text.
    """

    neighbours: Array
    generic: Any
    probes: Any
    repeats: Array
    law: TextLaw
    is_text: ClassVar[bool] = True

    @classmethod
    def of(cls, tokens: GroupLayout, law: TextLaw, *, apart: bool = False, coarse: Coarse = False) -> TextLayout:
        """Add probes, which share one token id, to representatives whose token ids all differ.

        Args:
            tokens: the layout of the tokens.
            law: law of the text.
            apart: whether sums over pairs of tokens are split into pairs within a sequence and pairs of two
                sequences.
            coarse: whether layers above the first one sample few heads.
        """
        sequences, rows = tokens.sequences, np.arange(len(tokens.sizes))
        each = len(rows) // sequences
        # Generic ones and probes of every sequence, in places of the new layout.
        generic, probes = (rows + (rows // each + kind) * each for kind in (0, 1))
        blocks = np.kron(np.eye(sequences), np.ones((each, each)))
        repeats = np.asarray(law.across + (law.within - law.across) * blocks, dtype=np.float64)
        double = 2 * len(rows)
        places, sizes = np.zeros(double), np.zeros(double)
        twins, nearest, of_generic = (np.zeros(double, int) for _ in range(3))
        # A token that stands for itself has its neighbour for what two tokens have in common.
        beside = np.where(rows % each > 0, rows - 1, rows + min(1, each - 1))
        neighbours = np.where(tokens.twins != rows, tokens.twins, beside)
        pairs, seen = np.zeros((double, double)), np.zeros((double, double))
        alike = np.eye(len(rows))
        shares = (1.0 - repeats) * (1.0 - alike) + alike, repeats * (1.0 - alike)
        for kind, (at, share) in enumerate(zip((generic, probes), shares, strict=True)):
            weight = _NOTHING if kind else 1.0
            places[at], sizes[at], of_generic[at] = tokens.places, tokens.sizes * weight, generic
            twins[at], nearest[at] = at[tokens.twins], at[neighbours]
            pairs[np.ix_(at, at)] = tokens.pairs * share
            for other in (generic, probes):
                seen[np.ix_(other, at)] = tokens.seen * weight
        return cls(
            tokens.count, sequences=sequences, apart=apart, places=places, sizes=sizes, pairs=pairs, twins=twins,
            seen=seen, neighbours=nearest, generic=of_generic, probes=probes, repeats=repeats, law=law, coarse=coarse,
        )  # fmt: skip

    def most_heads(self, layer: int, depth: int) -> int:
        """Return the largest number of attention heads that are sampled in a layer.

        Text needs more of them in the first layer.
        """
        return text_heads(layer, depth, coarse=self.coarse)

    @cached_property
    def one(self) -> TextLayout:
        """The representative tokens of a single sequence; all sequences are alike."""
        each, layout = len(self.sizes) // self.sequences, cast(TextLayout, super().one)
        half = each // 2
        return replace(
            layout, neighbours=self.neighbours[:each], generic=self.generic[:each], probes=self.probes[:half],
            repeats=self.repeats[:half, :half],
        )  # fmt: skip

    @cached_property
    def beside(self) -> Any:
        """The index of the generic representative at the position of every probe, (R,)."""
        return self.generic[self.probes]

    @cached_property
    def of_probe(self) -> Any:
        """The index of the probe at the position of every representative, (2 R,)."""
        index = np.zeros(len(self.sizes), dtype=int)
        index[self.beside] = index[self.probes] = self.probes
        return index

    def of_word_share(self, kernel: Array) -> Array:
        """Return the share of a token's individual variance that comes from its token id, (..., 2 R).

        The individual variance is the excess of K_ii; the rest of it comes from the single token.
        """
        added, alone = self.of_words(kernel)
        word = np.maximum(np.linalg.diagonal(added), 0.0)
        share = np.divide(word, word + alone, out=np.ones_like(word), where=word + alone > 0)
        return self.to_probes(share)[..., self.of_probe]

    @property
    def entries_together(self) -> int:
        """The number of batch entries that represent one text: 1 for two sequences, else 2.

        Two entries have more and fewer repeated ids than the mean.
        """
        return 1 + (self.sequences != 2)

    def same_word(self, words: None) -> Array:
        """Return a matrix that is 1 where two representatives have equal token ids, and 0 elsewhere.

        A text law has no token ids, so `words` is None.
        """
        return self.one_word

    @cached_property
    def one_word(self) -> Array:
        """The matrix that is 1 where two representatives have equal token ids, and 0 elsewhere, (2 R, 2 R).

        Each representative has the id of itself only, except that all probes share one id.
        """
        probes = self.to_probes(np.ones(len(self.probes)))
        return np.maximum(np.eye(len(probes)), np.outer(probes, probes))

    def of_counted(self, kernel: Array) -> Array:
        """Multiply a kernel by the probability that both positions count, divided by its square for one position.

        Let s be the share of counted positions. Two positions have equal ids with the probability κ, and two counted
        ones with κ_c. The factor is κ_c/κ for equal ids, (1 − κ_c)/(1 − κ) for different ids, and 1/s for a position
        itself. Kernels differ only by whether ids are equal, and squared norms are linear in the gradient kernel.
        Therefore the mean over the choice of positions suffices.

        Args:
            kernel: gradient kernel of the positions' own losses, (..., 2 R, 2 R).
        """
        if self.law.counted is None:
            return kernel
        share, within, across = self.law.counted
        counted = np.where(self.one_sequence, within, across)
        kappa = self.repeats[self._places[:, None], self._places]
        factors = np.where(self.one_word > 0, counted / kappa, (1.0 - counted) / (1.0 - kappa))
        return kernel * with_diagonal(factors, np.full(len(factors), 1.0 / share))

    @cached_property
    def labels(self) -> LabelChances:
        """The probabilities that a label, the next token id, equals the token id of its own or another position."""
        law, repeated, itself = self.law.frequencies, cast(Array, self.law.own_labels), np.eye(len(self.sizes))
        square = law**2
        pair = square / square.sum()
        single, twice, both = law @ repeated, pair @ repeated, pair @ repeated**2
        probes = self.one_word - itself
        differ = max(1.0 - square.sum(), 1e-300)
        hit = max(0.0, float(square.sum() * (1.0 - twice))) / differ
        # What is no label of its own word is as frequent as words are.
        others = square * np.divide(1.0 - repeated, 1.0 - law, out=np.zeros_like(law), where=law < 1.0)
        crossed = max(0.0, float(others.sum() ** 2 - (others**2).sum())) / differ
        hit_twice = float((square * repeated * (1.0 - repeated)).sum()) / differ
        following = 0.0 * probes if self.law.independent_labels else self._following()
        adjacent = following + following.T
        alone = max(0.0, float(single - square.sum() * twice)) / differ
        of_two = alone * (1.0 - following) * (1.0 - itself) + single * itself
        return LabelChances(
            own=np.where(probes > 0, twice + (1.0 - twice) * following, of_two),
            both=single * itself + (both + (twice - both) * adjacent) * probes,
            hits=hit + (1.0 - hit) * following.T,
            hits_twice=hit_twice * (1.0 - adjacent) + alone * following.T,
            crossed=crossed + (hit - crossed) * adjacent,
        )

    def _following(self) -> Array:
        """Return the share of an entry's pairs in which the column is the position after the row, (2 R, 2 R)."""
        following = np.zeros((len(self.sizes),) * 2)
        each, sizes = len(self.generic) // (2 * self.sequences), self.sizes[self.generic]
        for rows in (*self.beside.reshape(self.sequences, each), *self.probes.reshape(self.sequences, each)):
            for row, after in zip(rows[:-1], rows[1:], strict=True):
                if self.twins[row] == after:
                    following[row, after] = following[after, row] = 0.5 / sizes[row]
                else:
                    following[row, after] = 1.0 / (sizes[row] * sizes[after])
        return following

    @cached_property
    def itself(self) -> Array:
        """The vector that is 1 for every generic representative of a single token, and 0 elsewhere, (2 R,)."""
        rows = np.arange(len(self.sizes))
        return ((self.twins == rows) & (self.generic == rows)) * 1.0

    @cached_property
    def seen_all(self) -> Array:
        """The number of tokens that each row attends to, (2 R, 1)."""
        return np.asarray(self.seen.sum(-1, keepdims=True))

    @cached_property
    def one_sequence(self) -> Array:
        """The mask of pairs of representatives that are in one sequence, (2 R, 2 R)."""
        each = len(self.sizes) // self.sequences
        return np.asarray(np.kron(np.eye(self.sequences), np.ones((each, each))) > 0)

    def sampled_shares(self, generator: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Sample the share of a sequence's tokens that have the id of one position, or the common id of two positions.

        Both are (*shape, 2 R, 1), and do not count the position itself. The id of a position is drawn by its
        frequency, that of a pair by its squared frequency, and then the count of this id in each sequence.

        Args:
            generator: random generator of ids and counts.
            shape: leading axes of the result.
        """
        length, law = self.count // self.sequences, self.law.frequencies
        if not self.repeats.any():
            return (np.zeros((*shape, len(self.sizes), 1)),) * 2
        rows = np.repeat(np.arange(self.sequences), len(self.sizes) // self.sequences)
        drawn = []
        for reached in self._reached:
            word = reached.searchsorted(generator.random((*shape, 1)), side="right")
            counts = generator.binomial(length - 1, law[word], size=(*shape, self.sequences))
            drawn.append((counts / (length - 1))[..., rows, None])
        return drawn[0], drawn[1]

    @cached_property
    def _reached(self) -> tuple[Array, Array]:
        """The distribution functions of token ids drawn by their frequency, and by its square, (V,) each."""
        sums = np.cumsum(self.law.frequencies), np.cumsum(self.law.frequencies**2)
        return sums[0] / sums[0][-1], sums[1] / sums[1][-1]

    @cached_property
    def coincidences(self) -> Array:
        """The probability that two queries attend to equal token ids, divided by the probability for random tokens.

        The first one depends on whether the two queries have equal ids. The second one is κ. The shape is (2 R, 2 R).
        """
        return self.turned_coincidences(np.ones(()), np.ones(()))

    def turned_coincidences(self, of_all: Array, with_itself: Array) -> Array:
        """Return the relative probability that two queries attend to equal ids, in sums weighted by rotary positions.

        The result is `coincidences`, (2 R, 2 R), with an own factor for each pair that rotary positions turn.

        Rows with the word w see it themselves: of the m tokens that one row sees, a are known to be w, and each other
        one is w with the probability f_w; for the second row the numbers are m' and a'. So two rows have
        a a' + (a (m' - a') + a' (m - a)) f_w + (m - a) (m' - a') κ pairs of one word. Rows with different ids see
        correspondingly fewer pairs of one word. A row with itself knows one token, which is not a pair.

        Args:
            of_all: the mean factor of all pairs, (R, R) or ().
            with_itself: the mean factor of the pairs that contain another row's own token, by this row, (R,) or ().
        """
        law, shape = self.law.frequencies, (len(self.sizes),) * 2
        same = float((law**2).sum())
        word = float((law**3).sum()) / same
        share = (self.seen / self.sizes)[np.ix_(self.beside, self.beside)]
        seen, inside = np.maximum(self.seen_all[self.beside], 1.0), self.one_sequence[np.ix_(self.beside, self.beside)]
        known = (1.0 + inside * share) / seen
        turned = known * with_itself
        either, both = turned + turned.T, known * known.T
        # Keys that both see are counted where a token meets itself.
        met = inside * (share + share.T) / (seen * seen.T) * (1.0 - same)
        excess = (both + (either - 2.0 * both) * word - (either - both) * same - met) / of_all
        with_diagonal(excess, (2.0 * (seen - 1.0) / seen**2)[:, 0] * (word - same))
        kappa, out = self.repeats, np.ones(shape)
        out[np.ix_(self.probes, self.probes)] += excess / np.maximum(kappa, 1e-300) * (kappa > 0)
        fewer = excess / np.maximum(1.0 - kappa, 1e-300) * (kappa > 0) * (kappa < 1) * (1.0 - np.eye(len(kappa)))
        out[np.ix_(self.beside, self.beside)] -= np.minimum(fewer, 1.0)
        return out

    @cached_property
    def count_variance(self) -> tuple[float, float, float, float]:
        """The numbers that determine how much the share of equal token ids varies over texts.

        They are κ, τ and ω, and the variance per pair that they omit; `text_counts` needs them for Var κ̂.
        """
        law = self.law.frequencies
        same, triple = float((law**2).sum()), float((law**3).sum())
        if not self.repeats.any():
            return same, 0.0, 0.0, 0.0
        first, clumps, _ = self.law.clumping or (max(triple - same**2, 0.0), 0.0, 0.0)
        return same, first, clumps, max(same - same**2 - 2.0 * first, 0.0)

    @cached_property
    def count_deviations(self) -> Array:
        """The relative standard deviation over texts of the share of equal token ids to which two queries attend.

        The mean is κ, and the shape (2 R, 2 R). Only tokens whose ids are not known count; `text_counts` explains the
        variance. Two rows of one sequence are treated as rows of two sequences.
        """
        same, first, clumps, left = self.count_variance
        seen = np.maximum(self.seen_all, 1.0)
        unknown = seen - 1.0
        others = np.maximum(unknown - 1.0, 0.0)
        variance = first * (unknown + unknown.T) + left + clumps * others * others.T
        return np.asarray(np.sqrt(unknown * unknown.T * variance) / (seen * seen.T * same))

    def repeat_extremes(self, entries: int) -> Array:
        """Return the sign of a text's excess of shared token ids: 1 for more than the mean text, -1 for fewer.

        The shape is (entries or 1, 2 R, 2 R or 1).

        With two sequences, rows of the first take one sign and rows of the second the other, so that their pairs have
        both. Otherwise the entries of a batch alternate; with an odd number of entries all signs are 0.
        """
        if self.sequences == 2:
            return np.where(np.arange(len(self.sizes)) < len(self.sizes) // 2, 1.0, -1.0)[None, :, None]
        return (np.resize([1.0, -1.0], entries) * (entries % 2 == 0))[:, None, None]

    def over_ends(self, kernels: Array) -> Array:
        """Replace the kernels for texts with more and with fewer shared token ids by their mean.

        The shape is (entries, 2 R, 2 R).
        """
        if self.sequences == 2:
            turned = np.roll(np.arange(len(self.sizes)), len(self.sizes) // 2)
            return np.asarray((kernels + kernels[..., turned[:, None], turned]) / 2.0)
        return kernels if len(kernels) % 2 else np.repeat((kernels[::2] + kernels[1::2]) / 2.0, 2, axis=0)

    def likelier(self, entries: int) -> Array:
        """Return the relative excess of the probability that two queries attend to equal ids, over random tokens.

        The probability for random tokens is κ. The result is for texts with more and with fewer shared ids
        (`repeat_extremes`), (entries or 1, 2 R, 2 R).
        """
        return np.asarray(self.coincidences - 1.0 + self.repeat_extremes(entries) * self.count_deviations)

    @cached_property
    def varying(self) -> Array:
        """The relative standard deviation over texts of the weight sum of an attention row, (2 R, 1).

        It is relative to the sum if all attended tokens had one id.
        """
        return np.sqrt(self.repeats[0, 0] * (1.0 - 1.0 / np.maximum(self.seen_all, 1.0)))

    def to_probes(self, numbers: Array) -> Array:
        """Return an array with given numbers at the probes (tokens with one common id) and 0 elsewhere, (..., 2 R)."""
        out = np.zeros((*numbers.shape[:-1], len(self.sizes)))
        out[..., self.probes] = numbers
        return out

    def root(self, kernel: Array) -> Array:
        """Return a square root of a kernel matrix from its eigenvectors, with negative eigenvalues set to 0.

        The mixture over ids makes the kernel slightly indefinite.
        """
        return eigen_root(kernel)

    def keys(
        self, kernel: Array, parts: tuple[Array, Array], normals: Array, generator: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return a sampled key for each representative, and the variance that the keys of probes omit.

        A probe has the key of its token id. The variance of its own part is omitted.
        """
        shared = self.shared_by_place(normals, self.key_places(kernel)[:, None, None, :, None], generator)
        (mean, extra), (added, beside_word), probes = parts, self.of_words(kernel), self.probes
        keys = mean + np.sqrt(extra)[:, None, None, :, None] * shared
        keys[..., probes, :] = mean[..., probes, :] + eigen_root(added)[:, None, None] @ shared[..., probes, :]
        return keys, self.to_probes(beside_word)[:, None, None]

    def drawn(self, kernel: Array, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        """Sample eigenvectors of a kernel matrix such that the mean of their outer products is the matrix.

        Their probabilities are proportional to the eigenvalues. Quadratic forms of them have the same mean as for
        Gaussian samples, and vary less.
        """
        batch, heads, _, samples = shape
        values, vectors = np.linalg.eigh(kernel)
        shares = np.cumsum(np.maximum(values, 0.0), -1)
        steps = (np.arange(heads * samples) + generator.random((batch, 1))) / (heads * samples) * shares[:, -1:]
        at = generator.permuted((shares[:, None, :] < steps[..., None]).sum(-1), axis=1)
        signs = np.where(generator.random(at.shape) < 0.5, -1.0, 1.0) * np.sqrt(shares[:, -1:])
        drawn = np.take_along_axis(vectors, np.minimum(at, len(vectors[0]) - 1)[:, None], -1) * signs[:, None]
        return np.asarray(np.moveaxis(drawn.reshape(batch, -1, heads, samples), 1, 2))

    def key_places(self, kernel: Array) -> Array:
        """Return the share of a key's individual variance that depends only on its position; 0 for probes."""
        shares = self.of_places(kernel)
        shares[..., self.probes] = 0.0
        return shares

    def smooth_and_own(self, kernel: Array) -> tuple[Array, Array]:
        """Split a kernel matrix into products of tokens with different ids and the excess of each token's square."""
        generic, common = self.beside, self.across_tokens(kernel, self.neighbours)
        smooth = common[..., self.generic[:, None], self.generic]
        smooth[..., generic[:, None], generic] = self.across_tokens(kernel, self.twins)[..., generic[:, None], generic]
        return smooth, np.maximum(np.linalg.diagonal(kernel)[..., self.generic] - np.linalg.diagonal(smooth), 0.0)

    def of_words(self, kernel: Array) -> tuple[Array, Array]:
        """Return how much an equal token id adds to the product of two tokens, and how much being the same token adds.

        The shapes are (..., R, R) and (..., R).
        """
        common = self.across_tokens(kernel, self.neighbours)
        generic, of_word = self.beside, common[..., self.probes[:, None], self.probes]
        alone = np.linalg.diagonal(kernel)[..., self.probes] - np.linalg.diagonal(of_word)
        return of_word - common[..., generic[:, None], generic], np.maximum(alone, 0.0)

    def mixed(self, kernel: Array) -> tuple[Array, Array]:
        """Split a matrix of inner products into its mean over pairs of tokens and each token's excess over it.

        The mean is over pairs with equal and with different ids. The excess, of a token's square, may be negative.
        """
        (smooth, _), places = self.smooth_and_own(kernel), self._places
        smooth = smooth + (self.repeats * self.of_words(kernel)[0])[..., places[:, None], places]
        return smooth, np.linalg.diagonal(kernel)[..., self.generic] - np.linalg.diagonal(smooth)

    def any_words(self, kernel: Array) -> Array:
        """Return the expected product of two tokens, averaged over equal and different token ids, (..., 2 R, 2 R)."""
        generic, probes, places = self.generic, self.of_probe, self._places
        chance = self.repeats[places[:, None], places]
        mixture = kernel[..., generic[:, None], generic] * (1.0 - chance)
        mixture += kernel[..., probes[:, None], probes] * chance
        return mixture

    @cached_property
    def _places(self) -> Array:
        """The number of each representative's place among all sequences' places, (2 R,)."""
        places = np.zeros(len(self.sizes), dtype=int)
        places[self.beside] = places[self.probes] = np.arange(len(self.probes))
        return places

    def without_words(self, smooth: Array, kernel: Array) -> Array:
        """Lower the diagonal of the products of different tokens where repeated token ids would make it exceed K_ii.

        The products come from `smooth_and_own`; the excess of K_ii in `mixed` is then negative.
        """
        return with_diagonal(smooth, np.linalg.diagonal(smooth) + np.minimum(self.mixed(kernel)[1], 0.0))

    def attend(self, kernel: Array) -> Array:
        """Return the kernel after attention with equal weights A, A K Aᵀ, with the effect of repeated token ids.

        The excess of repeated ids is added for rows with equal ids.
        """
        words, repeated = self._even_words, self.repeats * self.of_words(kernel)[0]
        return super().attend(kernel) + words @ repeated @ words.T * (self.coincidences - 1.0)

    def attended_at_ends(self, kernel: Array, attended: Array) -> Array:
        """Return the kernel after attention for two texts, which share more and fewer token ids than the mean text."""
        words, repeated = self._even_words, self.repeats * self.of_words(kernel)[0]
        return attended + words @ repeated @ words.T * self.repeat_extremes(len(kernel)) * self.count_deviations

    def attend_back(self, kernel: Array) -> Array:
        """Return Aᵀ K A, the kernel of gradients before attention with equal weights A, from the kernel K after it.

        It includes the excess of equal ids, for texts with more and with fewer shared ids.
        """
        words, likelier = self._even_words, kernel * self.pairs * self.likelier(len(kernel))
        return self.with_likelier(super().attend_back(kernel), words.T @ likelier @ words)

    @cached_property
    def _even_words(self) -> Array:
        """The even weights of all tokens of a position that a row sees, as if of one word, (2 R, R)."""
        return np.asarray((whole(self._even()) * self.seen)[:, self.beside])

    def with_likelier(self, gradient: Array, passed: Array) -> Array:
        """Add the effect of repeated token ids to the products of two keys' gradients, in place.

        The effect comes from rows that see equal ids more often than by chance.

        Args:
            gradient: the kernel, which is changed.
            passed: sums of that part over rows and over keys of two positions, (..., R, R).
        """
        sizes, kappa = self.sizes[self.beside], self.repeats
        each = passed / sizes[:, None] / sizes * (1.0 - np.eye(len(sizes)))
        of_others = each * np.divide(kappa, 1.0 - kappa, out=np.zeros_like(kappa), where=kappa < 1.0)
        gradient[..., self.probes[:, None], self.probes] += each
        gradient[..., self.beside[:, None], self.beside] -= of_others
        return gradient

    def centred(self, kernel: Array) -> Array:
        """Subtract the means over the tokens of each sequence from a kernel matrix.

        The means run over pairs with equal and with different ids.
        """
        generic = self.beside
        each, count = len(generic) // self.sequences, self.count / self.sequences
        members = np.kron(np.eye(self.sequences), np.ones((each, 1)))
        products, sizes = self.pairs * kernel, self.sizes[generic]
        both = sum(products[..., at[:, None], at] for at in (generic, self.probes))
        rows = both @ members / sizes[:, None] / count
        means = members.T @ (rows * sizes[:, None]) / count
        with_sequence = rows @ members.T
        removed = with_sequence + with_sequence.mT - members @ means @ members.T
        out = kernel.copy()
        for at in (generic, self.probes):
            out[..., at[:, None], at] -= removed
        return out
