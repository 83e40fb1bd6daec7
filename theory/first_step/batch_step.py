"""Predict one optimizer step for the gradient of a batch of text: the loss decrease and the critical learning rate.

A batch has more positions than `first_step` can treat, so that N positions represent it (`_Positions.of`). A frequent
token id has up to `_COPIES` positions, which share the mass of its repetitions and have one context each; with tied
embeddings it has one position. Other ids are sampled: half of these positions have labels, and the others are positions
whose id is not in the batch. Every position attends to itself and to positions of its own group drawn by frequency, as
many as a position of a sequence sees. Its label is the mean of as many labels of the text's law as it represents. A
batch of at most N positions is sampled as it is, with repeated ids, and numbers are means over eight such batches. With
tied embeddings, its positions with equal ids are merged.

The positions a token attends to have contexts in the same sequence. In one group of all positions, deeper layers
average all contexts, and positions are too much alike. So there are W groups, each for a sequence. With T ids drawn by
frequency p, the mean of t tokens that a position sees has the square Σ p² + (1 − Σ p²)/t. In a group of N/W positions
the second term is about W/N + (1 − W/N)/t, because t draws repeat. The number of groups is W = Σ_i 1/t_i over the
positions i: under a causal mask, W = N H_T/T with the harmonic number H_T. Then W/N alone is the mean of 1/t, so that
the second term is up to twice too large. For T = 32 it is 0.24 instead of 0.13. A batch of fewer sequences has as many
groups.

With one context for all repetitions of an id, curvatures are too large. Kernels exceed the batch's because few
positions share more (`rescaled`). Muon's step depends on the gradient's rank, which is up to d in a batch. So its gain
and curvature are from `muon_rule_of_batch`, in which a position represents many (`_Positions.single`). A polar step
does not depend on the gradient's size, so that a larger kernel does not change its curvature.
Three errors cancel in part. Few positions have too large a kernel with themselves, and `rescaled` then reduces the
curvature. Two groups share too few ids, so that the kernel between them is 4 to 8 times too small with gated units.
Labels do not depend on ids. More positions do not help (tested by hand: independent ids, 16 sequences, d = 256, L = 2).
SGD's rates by 64, 128 and 256 positions are 1.28, 1.32 and 1.37 times the sampled ones. With gated units, they are
0.68, 0.88 and 1.33 times the sampled ones.

A mend by five means of the kernel K was tried by hand, and is not used. They are for a position itself, and for equal
or different ids in one sequence or in two. With them, Q = Σ_i (K G K)_ii fell by 1 to 7% in eight batches of four or
eight sequences. Here, G has the products of gradients at the logits. `noise_scale` is linear in the probabilities that
labels agree, so that its differences by each are these means. They give Q for any batch of a text. The curvature is
R Q, with R from 64 positions. Errors of rates (root mean squares of logarithms) were 0.16 for SGD and 0.20 for AdamW.
Without the mend, they were 0.21 and 0.35. These 14 untied networks had been seen before the rule for R was chosen. R
depends on the relation, too. With gated units, it is 13 between exact sequences and 17 for a position's own label
(d = 256, L = 2), but 64 positions have 16 to 20.

The errors are within `ERRORS`, which `make evidence PART=batch-steps TEXT=FILE` measures with networks on a text.
The errors of critical rates with gated units are sometimes larger.

Muon's curvature is 0.74 to 1.39 times the sampled one in 41 networks with plain units
(tests/evidence/batch-steps.json). Token embeddings much larger than 1 make positions nearly orthogonal. Few positions
then have too large a critical rate, and fewer positions have a larger one.

Source: this project.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh_tridiagonal
from scipy.special import softmax

from theory.coverage import NoRuleError, holds_words
from theory.first_step.outputs import Outputs
from theory.first_step.prediction import moves_of_outputs
from theory.first_step.rules import RULES, Rules, muon_rule_of_batch
from theory.first_step.samples import gaussian_sample_count
from theory.first_step.setting import check
from theory.first_step.tangent import TwoPassSolution
from theory.mean_field.cost import Cost
from theory.mean_field.inputs import equal_weights, word_inputs
from theory.mean_field.kernels import Array, eigen_root
from theory.mean_field.text_law import REPLACED, TextLaw
from theory.stack import Stack
from theory.stack.optimizers import Optimizer

POSITIONS = 64
"""The number of positions that represent a batch, half of them with labels."""

ERRORS = {"gain": 0.3, "curvature": 0.75, "critical_rate": 0.75}
"""The largest relative error of each number for 90% of the networks of that measurement; 80% for the curvature.

An error of 0.3 means a ratio of at most 1.3 in either direction. With it, changes of the loss are within the error of
`BatchStep.change` for 9 of 10 networks in each list of 20 or more (316 of all 327). No smaller multiple of 0.05 does
so: with 0.25, three lists fail. There, 14 of the 15 networks outside have tied embeddings.
"""

Ranges = dict[Optimizer, tuple[float, float]]

RATE_RANGES: dict[str, tuple[str, Ranges]] = {
    "causal pre plain": (
        "124 causal Pre-LN networks with plain units", {"sgd": (0.71, 1.7), "adam": (0.86, 1.6), "muon": (0.62, 1.35)}
    ),
    "causal pre gated": (
        "30 causal Pre-LN networks with gated units", {"sgd": (0.66, 2.8), "adam": (0.66, 2.8), "muon": (0.4, 1.49)}
    ),
    "causal pre experts": ("28 causal Pre-LN networks with experts", {"sgd": (0.57, 2.5), "adam": (0.79, 2.7)}),
    "causal post plain": ("46 Post-LN networks with plain units", {"sgd": (0.58, 1.26), "adam": (0.79, 1.25)}),
    "none post plain": (
        "46 Post-LN networks and 11 BERTs with 15% masked words", {"sgd": (0.58, 1.43), "adam": (0.76, 1.25)}
    ),
    "none pre plain": (
        "21 Pre-LN encoders with 15% masked words and plain units", {"sgd": (0.75, 1.26), "adam": (0.74, 1.21)}
    ),
    **dict.fromkeys(
        ("causal peri plain", "causal peri gated"),
        ("44 causal Peri-LN networks", {"sgd": (0.6, 1.4), "adam": (0.77, 1.6)}),
    ),
}  # fmt: skip
"""The smallest and largest measured critical rate divided by the predicted one, where the batch's gradient is known.

The keys are mask, placement and units of a network. A value has the measured networks, and the range by optimizer.

Encoders with masked words had batches of 1 to 64 sequences of 32 tokens (tests/evidence/masked-steps.json). Ten had
gated units, too few for a range: SGD's rates were 0.79 to 1.44 times the predicted ones, and AdamW's 0.76 to 1.95
times. Muon's were 0.42 to 1.10 times in the BERTs, 0.66 to 1.49 times in the Pre-LN encoders, and 0.68 to 1.63 times
with gated units.

With plain units in causal Pre-LN networks, there are 40 or more for each optimizer. SGD's and AdamW's largest numbers
of Pre-LN with plain or gated units are from predictions with one group of positions, which long causal sequences still
have. With groups, they are 1.24 (SGD), 1.34 (AdamW) and 2.14 (gated units). With gated units and small embeddings,
Muon's gain is up to 1.3 times too large. Muon's smallest numbers with plain units are 0.62 and 0.63 (128 tokens in 4
sequences), and 0.74. The weights of experts add up to 1.
The range of n networks contains the next one with probability (n − 1)/(n + 1), if the next one is drawn alike.

SGD's rates are smallest where a position has much of its own token: with tied embeddings in Post-LN, and as BERT.
For 64 sequences, the squared gradient is up to 2.3 times the predicted one there, and the curvature up to 3.7 times.
The prediction has independent token ids, but in a text the labels of one token agree more often, and seldom are this
token. The step's prediction ignores this, also with the counts of `TextLaw.of_text`. Gains with one
agreement of labels for all ids are a mean 4% off, with independent labels 9% (tests/evidence/word-orders.json).

Muon's rates were 0.69 to 1.17 times the predicted ones in 18 Post-LN networks. In 9 Peri-LN networks, they were 0.65
to 1.28 times the predicted ones. These are too few for a range. Its smallest number with gated units is from another
list, with 16 such networks (0.40 to 0.80 times, tests/evidence/mixed-steps.json).

In a mix, AdamW moves the output matrix, and Muon the layers. The logits' changes by both are summed before they are
squared, so that the curvature has both cross terms. `BatchStep.rescaled` keeps this curvature, as Muon's own.
"""


RISES: dict[str, Ranges] = {
    "pre": {"sgd": (0.0, math.inf), "adam": (4.0, math.inf), "muon": (0.5, 8.0)},
    "post": {"sgd": (0.0, 32.0), "adam": (0.5, math.inf), "muon": (0.0, 8.0)},
    "peri": {"sgd": (0.5, math.inf), "adam": (16.0, math.inf), "muon": (0.7, 16.0)},
}
"""The smallest and largest multiple of the critical rate at which a sampled loss exceeded the loss before the step.

The keys are placement and optimizer; 18 to 27 networks have each. Multiples of a network's own critical rate were
0.25, 0.5, 0.7, 1, 1.4, 2, 4, 8, 16 and 32. A smallest multiple of 0 is less than 0.25, at which some losses had risen.
Infinity is more than 32. The critical rate is to second order, and the loss itself can fall far beyond it. Source:
tests/evidence/batch-losses.json. Parallel branches, and tied embeddings that are multiplied as Gemma's, have no entry:
tests by hand, without stored numbers, had losses that rose earlier.
"""


def measured_rates(stack: Stack, multiplier: float = 1.0, masked: float = 0.0) -> tuple[str, Ranges, Ranges]:
    """Return the entry of `RATE_RANGES` for a network, and that of `RISES` if losses were sampled in its kind.

    Args:
        stack: the network. If none of its kind was measured, the result is empty: with parallel branches, or with tied
            embeddings that are multiplied as Gemma's. Rates that were sampled by hand, and
            not stored, were outside of the ranges.
        multiplier: constant by which the model multiplies its output logits. None with another than 1 was measured.
        masked: share of masked words; 0 if all positions have labels. With masked words, only encoders were measured.
            All Pre-LN encoders had masked words, and no loss was sampled in them.
    """
    units = {"none": "", "sum": "experts"}[stack.router_norm] if stack.experts else stack.ffn
    is_multiplied = stack.embeddings == "tied" and stack.embedding_scale != stack.init_std
    is_pre_encoder = stack.mask == "none" and stack.placement == "pre"
    is_kind = stack.mask == "none" if masked else not is_pre_encoder
    is_other = not is_kind or stack.lower_share or multiplier != 1.0 or stack.layout == "parallel" or is_multiplied
    networks, ranges = RATE_RANGES.get(f"{stack.mask} {stack.placement} {units}" * (not is_other), ("", {}))
    return networks, ranges, RISES[stack.placement] if ranges and not (stack.experts or is_pre_encoder) else {}


MEASURED_SCALES = {"pre": (0.53, 1.35), "post": (0.72, 1.08), "peri": (0.55, 1.61)}
"""The smallest and largest factor of `BatchStep.rescaled` at which critical rates were measured, by placement.

Source: tests/evidence/batch-steps.json. Above, the factor may be from noise, which the curvature does not share. Then
predicted rates are too small.
"""

# The most positions of one frequent token id.
_COPIES = 8

# The number of logits to sample in all networks together, and the smallest and largest number of networks.
_NUMBERS, _LEAST, _MOST = 2**23, 2, 8
_SAMPLES = 256

# The most tokens of a sequence whose causal attention weights have exact singular values, and the number beyond it.
_EXACT_MODES = 2048


@dataclass(frozen=True, slots=True, eq=False)
class BatchStep:
    """The predicted optimizer step for a batch of text: loss decrease, curvature and changes of logits and weights.

    The step is θ − η u with learning rate η; all numbers are means over random networks at η = 1.

    Attributes:
        optimizer: name of the optimizer.
        gain: E g·u, the decrease of the loss per learning rate.
        curvature: E u'Gu with the Gauss-Newton matrix of the text.
        logit_change_sq: E of a logit's squared change.
        relative_updates: |u_W|/|W| by role: (L,), and for "Wemb" ().
        noise_gain: the part of Muon's gain from noise and own parts of gradients; 0 for other optimizers.
    """

    optimizer: Optimizer
    gain: float
    curvature: float
    logit_change_sq: float
    relative_updates: dict[str, Array]
    noise_gain: float = 0.0

    @property
    def critical_rate(self) -> float:
        """The critical learning rate: above it, the step increases the loss according to the quadratic approximation.

        It is 2 E g·u/E u'Gu, with the gradient g, the step u and the Gauss-Newton matrix G.
        """
        return 2.0 * self.gain / self.curvature

    @property
    def logit_move(self) -> float:
        """The typical change of a logit in one optimizer step with learning rate 1.

        It is the root mean square change, or the mean increase of the labels' logits, g·u, if that is larger.
        """
        return max(self.logit_change_sq**0.5, self.gain)

    def change(self, rate: float) -> tuple[float, float]:
        """Return the predicted change of the loss at a learning rate, and the error of this prediction.

        The change is quadratic in the learning rate; its error follows from the errors of gain and curvature.

        Args:
            rate: learning rate η.
        """
        gain, curvature = rate * self.gain, rate**2 * self.curvature / 2.0
        return curvature - gain, float(np.hypot(ERRORS["gain"] * gain, ERRORS["curvature"] * curvature))

    def rescaled(self, scale: float) -> Self:
        """Return the predicted step for a neural tangent kernel that is larger by a given factor.

        Few positions share more than the sequences of a batch do. The factor is the squared gradient of the batch
        divided by SGD's gain, which is linear in the kernel. SGD's curvature is quadratic in it. Updates of other
        optimizers have a fixed size, so that their gain is linear in its root.
        The noise and the own parts of Muon's step are not shared, and their gain keeps its size. So does the change of
        every position by a polar step, and with it Muon's curvature. In a mix, Adam's part of the change is linear in
        the root, but the mix's curvature is kept. Its measured error includes this, for rates of Adam up to 0.3 times
        Muon's; at larger ones the curvature is too large or too small by up to the factor.

        Args:
            scale: factor of the tangent kernel.
        """
        is_sgd = self.optimizer == "sgd"
        times, squared = (scale, scale**2) if is_sgd else (scale**0.5, 1.0 if self.optimizer == "muon" else scale)
        updates = {role: update * scale**0.5 if is_sgd else update for role, update in self.relative_updates.items()}
        return replace(
            self, gain=self.noise_gain + (self.gain - self.noise_gain) * times, curvature=self.curvature * squared,
            logit_change_sq=self.logit_change_sq * squared, relative_updates=updates,
        )  # fmt: skip


def batch_steps(
    stack: Stack, optimizers: Sequence[Optimizer], sequences: int, law: TextLaw, *, seed: int = 0,
    positions: int = POSITIONS, networks: int | None = None, multiplier: float = 1.0, masked: float = 0.0,
    adam_ratio: float | None = None,
) -> dict[Optimizer, BatchStep]:  # fmt: skip
    """Predict one step of all matrices by each optimizer, for the gradient of a batch of text.

    Args:
        stack: the network, with the tokens of one sequence.
        optimizers: names of optimizers, as in `first_step`.
        sequences: number of sequences in the batch.
        law: law of the text, with the frequency of every token id as a label.
        seed: random seed of logits, labels and attention samples.
        positions: number of positions that represent the batch. ERRORS were measured with the default.
        networks: number of sampled networks. None is 2 to 8, or eight small batches with one network each.
        multiplier: constant by which the model multiplies its output logits, as in `moves_of_outputs`.
        masked: share of masked words, as in `TextLaw.masked`; 0 if all positions have labels.
        adam_ratio: if given, Adam's step of the output matrix replaces Muon's, at this number times Muon's rate.

    Raises:
        ValueError: as `first_step` for at most 64 tokens, `_Positions.masked` and `moves_of_outputs`.

    Assumes d → ∞ at fixed L and V/d.
    """
    of_batch, frequencies = sequences * stack.tokens, _frequencies(law, stack.vocab)
    if of_batch <= positions and networks is None:
        same: dict[str, Any] = {
            "positions": positions, "networks": 1, "multiplier": multiplier, "masked": masked, "adam_ratio": adam_ratio,
        }  # fmt: skip
        batches = [batch_steps(stack, optimizers, sequences, law, seed=seed + k, **same) for k in range(_MOST)]
        return {name: _mean([batch[name] for batch in batches]) for name in optimizers}
    few = replace(stack, tokens=min(positions, of_batch), sequences=1)
    roles = {name: check(few, name, None) for name in optimizers}
    generator, steps = np.random.default_rng(seed), dict[Optimizer, BatchStep]()
    chosen = (
        _Positions.masked(stack, of_batch, frequencies, few.tokens, generator, masked)
        if masked
        else _Positions.exact(stack, sequences, frequencies, generator, repeat=law.within > 0 or of_batch > stack.vocab)
        if of_batch <= positions
        else _Positions.of(stack, of_batch, frequencies, min(positions, stack.vocab), generator)
    )
    represented = _Represented.of(stack, chosen, frequencies, seed, generator, networks, multiplier)
    for name in optimizers:
        if name != "muon":
            steps[name] = represented.step(name, roles[name])
            continue
        generator, fewest = np.random.default_rng(seed), 1 if holds_words(stack) or stack.vocab <= positions else 2
        if of_batch > positions and not masked:
            chosen = _Positions.of(stack, of_batch, frequencies, min(positions, stack.vocab), generator, fewest)
        single = chosen if masked else chosen.single(of_batch)
        repeated = generator.multinomial(round(of_batch * (masked or 1.0)), frequencies)
        many = _Represented.of(stack, single, frequencies, seed, generator, networks, multiplier)
        varied, modes = many.varied(single, frequencies), _attention_modes(stack, of_batch)
        given = single.labels, single.alike, varied, repeated[repeated > 0], *modes, single.groups
        step, noisy = (
            many.step(name, roles[name], {name: muon_rule_of_batch(*given, noise=noise)}, ratio)
            for noise, ratio in ((False, adam_ratio), (True, None if adam_ratio is None else 0.0))
        )
        steps[name] = replace(step, gain=step.gain + noisy.gain, noise_gain=noisy.gain)
    return steps


def _mean(steps: Sequence[BatchStep]) -> BatchStep:
    """Return the mean of one optimizer's predicted steps over batches."""
    means: dict[str, Any] = {
        name: float(np.mean([getattr(step, name) for step in steps]))
        for name in ("gain", "curvature", "logit_change_sq", "noise_gain")
    }
    updates = {role: np.mean([x.relative_updates[role] for x in steps], axis=0) for role in steps[0].relative_updates}
    return replace(steps[0], relative_updates=updates, **means)


@dataclass(frozen=True, slots=True, eq=False)
class _Positions:
    """The few positions that represent a batch.

    Attributes:
        words: rank of each position's token id among the frequencies, (N,).
        masses: share of the batch's gradient that each position represents, (N,).
        shares: share of all positions that each one represents in the curvature, (N,).
        labels: number of labels whose mean each position has, (N,).
        attention: attention weights with zero queries and keys, (N, N).
        sampled: mask of the positions whose id represents other ids of the text, (N,).
        groups: number of groups in which positions attend.
    """

    words: NDArray[np.integer]
    masses: Array
    shares: Array
    labels: NDArray[np.integer]
    attention: Array
    sampled: NDArray[np.bool_]
    groups: int

    @classmethod
    def exact(
        cls, stack: Stack, sequences: int, frequencies: Array, generator: np.random.Generator, *, repeat: bool
    ) -> Self:
        """Sample the token ids of a small batch; with tied embeddings, positions with the same id are merged."""
        words = generator.choice(stack.vocab, sequences * stack.tokens, p=frequencies, replace=repeat)
        pattern, counts = np.kron(np.eye(sequences), equal_weights(stack, stack.tokens)), np.ones(len(words), dtype=int)
        if holds_words(stack):
            words, of_word, counts = np.unique(words, return_inverse=True, return_counts=True)
            members = np.eye(len(words))[of_word]
            pattern = members.T @ pattern @ members / counts[:, None]
        return cls(
            words, shares := counts / counts.sum(), shares, counts, np.asarray(pattern, dtype=np.float64), shares < 0.0,
            sequences,
        )  # fmt: skip

    @classmethod
    def of(
        cls, stack: Stack, of_batch: int, frequencies: Array, count: int, generator: np.random.Generator,
        fewest: int = 1,
    ) -> Self:  # fmt: skip
        """Represent a large batch: frequent token ids by positions of their own, the other ids by samples.

        Without tied embeddings, a frequent id has `fewest` to `_COPIES` positions with one context each. If a
        vocabulary has no more ids than there are positions, each id has one.

        A sampled position with labels represents the gradient of many ids; one without labels represents the positions
        of the text whose own id is not in the batch. Each position attends to itself and to ids drawn by frequency.
        """
        ranked, has_all = frequencies, len(frequencies) <= count
        most = 1 if has_all or holds_words(stack) else _COPIES
        copies = np.clip((ranked * count).astype(int), fewest, most)
        most = count if has_all else min(3 * count // 8, int((ranked > 0.5 / count).sum()))
        top = min(most, int((np.cumsum(copies) <= (count if has_all else 5 * count // 8)).sum()))
        frequent = np.repeat(np.arange(top), copies[:top])
        others = np.arange(count - len(frequent))
        tail, labelled = max(float(ranked[top:].sum()), np.finfo(float).tiny), others % 2 == 0
        words = top + np.searchsorted(np.cumsum(ranked[top:]) / tail, (others + 0.5) / len(others))
        words = np.minimum(np.maximum.accumulate(words - others) + others, len(ranked) - len(others) + others)
        in_batch, have = min(tail, labelled.sum() / of_batch), max(1, labelled.sum())
        parts = (
            np.where(labelled, tail / have, 0.0),
            np.where(labelled, in_batch / have, (tail - in_batch) / max(1, len(others) - have)),
            np.full(len(others), tail / max(1, len(others))),
        )
        order, words = generator.permutation(count), np.concatenate([frequent, words])
        each = ranked[frequent] / copies[frequent]
        masses, shares, keys = (np.concatenate([each, part])[order] for part in parts)
        (attention, sequences), words = _attention(stack, of_batch, keys, generator), words[order]
        labels = np.maximum(1, np.rint(of_batch * masses)).astype(int)
        return cls(words, masses, shares, labels, attention, words >= top, sequences)

    @classmethod
    def masked(
        cls, stack: Stack, of_batch: int, frequencies: Array, count: int, generator: np.random.Generator, share: float
    ) -> Self:  # fmt: skip
        """Represent a batch with a share of masked words, of which each position represents as many.

        The other positions only serve as keys and values. They are at least half of all, except in a small batch.
        [MASK] is the rarest token id. Labels are independent of ids: a kept word is its own label with 10% only.

        Raises:
            NoRuleError: less than one word is masked on average, or tied embeddings give positions own logits.
        """
        if holds_words(stack) or share * of_batch < 1.0:
            raise NoRuleError(
                "theory has no rule for a first step of "
                + "tied embeddings without output transform if words are masked; use such a transform."
                * holds_words(stack)
                + f"{share * of_batch:.2g} masked words in a batch, less than one; use a larger batch."
                * (not holds_words(stack))
            )
        vocab, most = stack.vocab, count // 2 if of_batch > count else count
        have = max(1, min(most, round(share * of_batch)))
        mask, noise, kept = REPLACED
        chances = np.concatenate([[mask], np.full(vocab, noise / vocab), kept * frequencies]), frequencies
        ids = np.append(vocab - 1, np.tile(np.arange(vocab), 2)), np.arange(vocab)
        words, order = np.concatenate([
            of[np.searchsorted(np.cumsum(law), (np.arange(each) + 0.5) / each * law.sum())]
            for of, law, each in zip(ids, chances, (have, count - have), strict=True)
        ]), generator.permutation(count)  # fmt: skip
        words, masses = words[order], (order < have) / have
        keys = np.where(masses > 0.0, share / have, (1.0 - share) / max(1, count - have))
        labels = np.maximum(1, np.rint(of_batch * share * masses)).astype(int)
        attention, sequences = (
            _attention(stack, of_batch, keys, generator) if of_batch > count
            else (np.kron(np.eye(each := of_batch // stack.tokens), equal_weights(stack, stack.tokens)), each)
        )  # fmt: skip
        return cls(
            words, masses, masses, labels, np.asarray(attention), (masses > 0.0) & (words < vocab - 1), sequences
        )

    @property
    def alike(self) -> NDArray[np.bool_]:
        """The positions that differ from a position as those do that it represents, (N, N); itself if there are none.

        They are other positions of the same id or, for a sampled id, other sampled positions.
        """
        itself = np.eye(len(self.words), dtype=bool)
        others = (np.outer(self.sampled, self.sampled) | (self.words[:, None] == self.words)) & ~itself
        return np.where(others.any(-1, keepdims=True), others, itself)

    def single(self, of_batch: int) -> Self:
        """Return the positions with one label for each that had none, which other sampled positions then lack.

        Args:
            of_batch: number of positions of the batch.
        """
        alone, given = self.masses == 0.0, max(float(self.masses[self.sampled].sum()), np.finfo(float).tiny)
        share = min(0.5, alone.sum() / of_batch / given)
        masses = np.where(alone, share * given / max(1, alone.sum()), self.masses * (1.0 - share * self.sampled))
        return replace(self, masses=masses, labels=np.maximum(1, np.rint(of_batch * masses)).astype(int))


def _attention(stack: Stack, of_batch: int, keys: Array, generator: np.random.Generator) -> tuple[Array, int]:
    """Sample attention weights with zero queries and keys, (N, N), and return them with the number of groups.

    A position attends to itself and to keys of its group.

    Args:
        stack: the network.
        of_batch: number of positions of the batch.
        keys: share of the batch's positions that each position represents as a key, (N,).
        generator: random generator of the keys.
    """
    every = np.arange(count := len(keys))
    places = (every + 0.5) / count if stack.mask == "causal" else np.ones(count)
    seen = np.minimum(np.ceil(places * stack.tokens).astype(int), stack.window or stack.tokens)
    sequences = max(1, min(of_batch // stack.tokens, round(float((1.0 / seen).sum()))))
    chances = keys * (every[:, None] % sequences == every % sequences)
    attention = np.eye(count) + generator.multinomial(seen - 1, chances / chances.sum(-1, keepdims=True))
    return np.asarray(attention / attention.sum(-1, keepdims=True)), sequences


@dataclass(frozen=True, slots=True, eq=False)
class _Represented:
    """A network with few positions, and samples of their logits and gradients.

    Attributes:
        solution: the network's forward and backward pass.
        shares: share of all positions that each one represents in the curvature, (N,).
        outputs: softmax and gradients at the logits.
        multiplier: constant by which the model multiplies its output logits.
    """

    solution: TwoPassSolution
    shares: Array
    outputs: Outputs
    multiplier: float

    @classmethod
    def of(
        cls, stack: Stack, chosen: _Positions, frequencies: Array, seed: int, generator: np.random.Generator,
        networks: int | None, multiplier: float = 1.0,
    ) -> Self:  # fmt: skip
        """Solve a network with few positions, and sample logits and labels of random networks."""
        few, law = replace(stack, tokens=(n := len(chosen.words)), sequences=1), frequencies
        are_rows = few.embeddings == "tied" or len(np.unique(chosen.words)) < n
        inputs = word_inputs(few, np.append(chosen.words, 0)[None]) if are_rows else None
        solution = TwoPassSolution.of(few, seed, _SAMPLES, inputs, chosen.attention)
        count, tied = networks or _network_count(n, few.vocab), holds_words(few)
        if tied:  # the first classes are the words of the positions
            law = np.concatenate([law[chosen.words], np.delete(law, chosen.words)])
        root = few.output_scale * eigen_root(solution.forward.output[0] if tied else solution.output)
        logits = root @ generator.standard_normal((count, n, few.vocab))
        if tied:
            every = np.arange(n)
            logits[:, every, every] += few.output_scale * few.width**0.5 * solution.held[-1][0]
        p = softmax(logits, axis=-1)
        r, has = np.zeros_like(p), chosen.masses > 0.0
        labels, masses = chosen.labels[has], chosen.masses[has][:, None]
        r[:, has] = masses * (p[:, has] - generator.multinomial(labels, law, (count, len(labels))) / labels[:, None])
        return cls(solution, chosen.shares, Outputs(p, r, np.ones(n, dtype=bool)), multiplier)

    def varied(self, chosen: _Positions, frequencies: Array) -> Array:
        """Return the share of each position's squared gradient at the logits by which its labels differ, (N,)."""
        noise = chosen.masses**2 / chosen.labels * (1.0 - (frequencies**2).sum())
        squares = (self.outputs.r**2).sum(-1).mean(0)
        return np.minimum(1.0, noise / np.maximum(squares, np.finfo(float).tiny))

    def step(
        self, name: Optimizer, roles: Sequence[str], rules: Rules = RULES, adam_ratio: float | None = None
    ) -> BatchStep:
        """Return the step of an optimizer's rule for these positions."""
        w, speeds, (squares, sizes) = moves_of_outputs(
            self.solution, name, roles, self.outputs, rules, self.multiplier, adam_ratio
        )
        p, gain = self.outputs.p, (self.outputs.r * w).sum((-2, -1))
        bent = (p * w**2).sum(-1) - (p * w).sum(-1) ** 2 + (1.0 - (p**2).sum(-1)) * speeds
        size = gain if name == "normalized" else np.ones(1)
        curvature, change = (
            float((of_positions @ self.shares / size).mean()) for of_positions in (bent, (w**2).mean(-1) + speeds)
        )
        updates = {role: np.sqrt(np.maximum(square, 0.0) / sizes[role]) for role, square in squares.items()}
        return BatchStep(name, float((gain / size**0.5).mean()), curvature, change, updates)


def cost_of_steps(
    stack: Stack, optimizers: Sequence[Optimizer], sequences: int, *, positions: int = POSITIONS,
    networks: int | None = None,
) -> Cost:  # fmt: skip
    """Return the estimated time on one core and memory of `batch_steps` with the same arguments.

    Every layer keeps arrays of every head with n² or n d_k numbers, kernels of every network, and samples of its units.
    In addition, there are the units' samples times n², and a few arrays of logits. Muon has a second network.
    """
    n, batches, tied = min(positions, sequences * stack.tokens), 1, holds_words(stack)
    if sequences * stack.tokens <= positions and networks is None:
        batches, networks = _MOST, 1
    count = networks or _network_count(n, stack.vocab)
    heads = stack.heads * bool(stack.query_key_scale)
    logits, samples = float(count * n * stack.vocab), gaussian_sample_count(n, _SAMPLES) + 2 * n
    layer = 2.5e-3 + 8.5e-6 * n**2 + 1e-6 * heads * n**2 * (count if tied else 1 + count / 8)
    seconds = stack.depth * layer + (2e-8 + 1e-9 * n) * (1 + tied) * logits
    kept = heads * n * (16 * count * n if tied else 12 * (n + stack.key_width)) + 12 * count * n**2 + 8 * samples * n
    numbers, muon = stack.depth * kept + 5 * samples * n**2 + (9 if tied else 5) * logits, "muon" in optimizers
    # Each singular value has 700 numbers in three arrays.
    modes, steps = min(stack.tokens, _EXACT_MODES) * (stack.mask == "causal"), (len(optimizers) + 1.7 * muon) * batches
    return Cost(steps * seconds + 1e-8 * muon * modes**2, 8.0 * ((1 + muon) * numbers + 2100 * muon * modes))


def _network_count(positions: int, vocab: int) -> int:
    """Return the number of networks whose logits are sampled."""
    return int(np.clip(_NUMBERS // (positions * vocab), _LEAST, _MOST))


def _attention_modes(stack: Stack, of_batch: int) -> tuple[Array, Array, float]:
    """Return squared singular values of attention weights A, their numbers in a batch, and its number of sequences.

    Queries and keys are zero, and a window's tokens count as a sequence. Without a mask, one value of a sequence is not
    0. Under a causal mask, A⁻¹ has t on its diagonal and −t below it. For T tokens, more than `_EXACT_MODES`, the k-th
    smallest eigenvalue of A⁻¹A⁻ᵀ is 1/4 + 4 x² by the WKB approximation, with

        k − 1/4 = (2/π) (T asin(x/T) + x arcosh(T/x)).

    Adjacent k have one value. The largest squares are up to 9% too large, and the law of `_noise_laws` is within 2.5%.

    Args:
        stack: the network.
        of_batch: number of positions of the batch.
    """
    sequences = of_batch / (last := min(stack.tokens, stack.window or stack.tokens))
    if stack.mask != "causal":
        return np.ones(1), np.full(1, sequences), sequences
    if last <= _EXACT_MODES:
        squares = np.arange(0.0, 1 + last) ** 2
        exact = 1.0 / eigvalsh_tridiagonal(squares[1:] + squares[:-1], -squares[1:-1])
        return np.asarray(exact), np.full(last, sequences), sequences
    edges = np.unique(np.geomspace(1, last + 1, _EXACT_MODES).astype(int)) - 1
    x = np.geomspace(0.01, last, _EXACT_MODES)
    below = (last * np.arcsin(x / last) + x * np.arccosh(last / x)) * 2.0 / np.pi
    roots = np.interp((edges[1:] + edges[:-1]) / 2.0 + 0.25, below, x)
    return 1.0 / (0.25 + 4.0 * roots**2), np.diff(edges) * sequences, sequences


def _frequencies(law: TextLaw, vocab: int) -> Array:
    """Return the frequencies of labels in descending order, (V,)."""
    known = np.sort(law.frequencies)[::-1][:vocab]
    return np.pad(known / known.sum(), (0, vocab - len(known)))
