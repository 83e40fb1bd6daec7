"""Predict one optimizer step for the gradient of a batch of text: the loss decrease and the critical learning rate.

A batch has more positions than `first_step` can treat. Its gradient is a mean over positions plus noise. N positions
represent both: each of them has as its label the mean of P/N labels of the text's law, for a batch of P positions. The
mean over a text's labels is the part that sequences share, and the deviation of P/N labels from it is the noise. Half
of the N positions have labels; the others are positions outside the batch. The curvature at positions with labels has
the weight N/P, because a position of the batch is one of P. A batch of at most N positions is taken as it is.

Equal words at two positions are neglected. The noise has rank N in this model and up to d in a batch, which is
neglected except in Muon's gain. This gain is a sum of singular values, which depends on the rank: the singular values
of its noise are spread like those of Σ_i a_i b_i', with random vectors a_i of a token and b_i of its label
(`noise_rank`). Muon's curvature keeps the rank N. The errors are within `ERRORS`, which `make evidence PART=batch-steps
TEXT=FILE` measures with networks on a text; the error of Muon's curvature is sometimes larger.

Source: this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Self

import numpy as np
from scipy.special import softmax

from theory.coverage import holds_words
from theory.first_step.outputs import Outputs, step_statistics
from theory.first_step.prediction import moves_of_outputs
from theory.first_step.rules import spread_muon_rule
from theory.first_step.setting import check
from theory.first_step.tangent import TwoPassSolution
from theory.mean_field.kernels import Array
from theory.mean_field.text_law import TextLaw
from theory.stack import Stack
from theory.stack.optimizers import Optimizer

POSITIONS = 64
"""The number of positions that represent a batch, half of them with labels."""

ERRORS = {"gain": 0.25, "curvature": 0.75, "critical_rate": 0.75}
"""The largest relative error of each number for 90% of the networks of that measurement; 80% for the curvature.

An error of 0.25 means a ratio of at most 1.25 in either direction.
"""

LEAST_MEASURED = 0.2
"""The smallest factor of `BatchStep.rescaled` at which the error of a critical rate was measured."""

_NUMBERS, _LEAST, _MOST = 2**23, 2, 8
"""The number of logits to sample in all networks together, and the smallest and largest number of networks."""
_SAMPLES = 256
_SIDE, _DRAWN = 256, 2**14
"""The largest smaller side of the matrix, and the most positions, from which `noise_rank` is sampled."""


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
        noise_gain: the part of Muon's gain from noise; 0 for other optimizers.
        few_gain: Muon's gain with the noise of few positions, of which its curvature is; None for other optimizers.
    """

    optimizer: Optimizer
    gain: float
    curvature: float
    logit_change_sq: float
    relative_updates: dict[str, Array]
    noise_gain: float = 0.0
    few_gain: float | None = None

    @property
    def critical_rate(self) -> float:
        """The critical learning rate: above it, the step increases the loss according to the quadratic approximation.

        It is 2 E g·u/E u'Gu, with the gradient g, the step u and the Gauss-Newton matrix G.

        Muon's has the noise of few positions in both, whose errors partly cancel.
        """
        return 2.0 * (self.gain if self.few_gain is None else self.few_gain) / self.curvature

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
        The noise of Muon's step is not shared, and its gain keeps its size.

        Args:
            scale: factor of the tangent kernel.
        """
        is_sgd = self.optimizer == "sgd"
        times = scale if is_sgd else scale**0.5
        updates = {role: update * scale**0.5 if is_sgd else update for role, update in self.relative_updates.items()}
        return replace(
            self, gain=self.noise_gain + (self.gain - self.noise_gain) * times, curvature=self.curvature * times**2,
            logit_change_sq=self.logit_change_sq * times**2, relative_updates=updates,
            few_gain=None if self.few_gain is None else self.few_gain * times,
        )  # fmt: skip


def batch_steps(
    stack: Stack, optimizers: Sequence[Optimizer], sequences: int, law: TextLaw, *, seed: int = 0,
    positions: int = POSITIONS, networks: int | None = None,
) -> dict[Optimizer, BatchStep]:  # fmt: skip
    """Predict one step of all matrices by each optimizer, for the gradient of a batch of text.

    Args:
        stack: the network, with the tokens of one sequence.
        optimizers: names of optimizers, as in `first_step`.
        sequences: number of sequences in the batch.
        law: law of the text, with the frequency of every token id as a label.
        seed: random seed of logits, labels and attention samples.
        positions: number of positions that represent the batch. ERRORS were measured with the default.
        networks: number of sampled networks, None for 2 to 8.

    Raises:
        ValueError: an optimizer is not known.
        NoRuleError: `first_step` has no rule for the network with at most 64 tokens.

    Assumes d → ∞ at fixed L and V/d.
    """
    of_batch = sequences * stack.tokens
    count = min(positions, of_batch)
    few = replace(stack, tokens=count, sequences=1)
    chosen = {name: check(few, name, None) for name in optimizers}
    solution, generator = TwoPassSolution.of(few, seed, _SAMPLES), np.random.default_rng(seed)
    seen = (np.arange(count) % 2 == 0) | (count == of_batch)
    networks = networks or int(np.clip(_NUMBERS // (few.rows * few.vocab), _LEAST, _MOST))
    frequencies = _frequencies(law, few, generator)
    p, r = _outputs(solution, generator, frequencies, seen, of_batch, networks)
    every, steps = Outputs(p, r, np.ones(count, dtype=bool)), dict[Optimizer, BatchStep]()
    labelled = min(1.0, int(seen.sum()) / of_batch)
    for name in optimizers:
        w, speeds, (squares, sizes) = moves_of_outputs(solution, name, chosen[name], every)
        has_seen, has_not = (
            step_statistics(Outputs(p[:, mask], r, mask), w, speeds[..., mask], normalized=name == "normalized")
            for mask in (seen, seen if seen.all() else ~seen)
        )
        curvature, change = (
            float(labelled * has_seen[key].mean() + (1.0 - labelled) * has_not[key].mean())
            for key in ("curvature", "change")
        )
        updates = {role: np.sqrt(square / sizes[role]) for role, square in squares.items()}
        gains, of_few = [float((r * w).sum((-2, -1)).mean()), 0.0], None
        if name == "muon":
            ordered, of_few = np.sort(frequencies)[::-1], gains[0]
            ranks = lru_cache(partial(noise_rank, ordered, of_batch, seed=seed))
            for k, alone in enumerate((False, True)):
                rule = spread_muon_rule(ranks, alone=alone)
                w = moves_of_outputs(solution, name, chosen[name], every, {name: rule})[0]
                gains[k] = float((r * w).sum((-2, -1)).mean())
        steps[name] = BatchStep(name, gains[0], curvature, change, updates, gains[1], of_few)
    return steps


def noise_rank(frequencies: Array, positions: int, shape: tuple[int, int], seed: int = 0) -> float:
    """Return the effective rank of the noise in a batch gradient, from the frequencies of token ids in a text.

    It is the participation ratio (Σ s)²/Σ s² of the singular values s of Σ_i a_i b_i' over positions i.

    The vectors a of tokens and b of labels are Gaussian and centred; for the output matrix, b is the one-hot label. If
    the matrix is too large to sample, its sides, the positions and the words are divided by one number, and the result
    is multiplied by this number.

    Args:
        frequencies: frequencies of token ids and labels in descending order, (V,).
        positions: number of positions.
        shape: sides of the matrix.
        seed: random seed.
    """
    times = max(1, min(shape) // _SIDE)
    law = np.add.reduceat(frequencies, np.arange(0, len(frequencies), times))
    d_in, d_out, words = shape[0] // times, -(-shape[1] // times), len(law)
    generator = np.random.default_rng(seed)
    drawn = generator.choice(words, (2, min(max(1, positions // times), _DRAWN)), p=law / law.sum())
    counts = np.zeros((words, d_in))
    a = generator.standard_normal((words, d_in))
    np.add.at(counts, drawn[1], (a - law @ a)[drawn[0]])
    if shape[1] != len(frequencies):
        b = generator.standard_normal((words, d_out))
        product = (b - law @ b).T @ counts
    else:
        product = counts - np.outer(law, counts.sum(0))
    square = product.T @ product if d_in < len(product) else product @ product.T
    squares = np.maximum(np.linalg.eigvalsh(square), 0.0)
    return float(times * np.sqrt(squares).sum() ** 2 / squares.sum())


def seconds_of(stack: Stack) -> float:
    """Return the estimated computing time of one optimizer's step on one core, in seconds.

    It is the sum of the two leading terms.
    """
    numbers = POSITIONS * stack.vocab
    networks = np.clip(_NUMBERS // numbers, _LEAST, _MOST)
    return float(networks * (4e-7 * numbers + 1e-3 * stack.depth * stack.heads))


def _frequencies(law: TextLaw, few: Stack, generator: np.random.Generator) -> Array:
    """Return the frequencies of labels, (V,).

    With tied embeddings, the first classes are the words of the positions, drawn as often as the law says.
    """
    frequencies = np.zeros(few.vocab)
    known = np.sort(law.frequencies)[::-1][: few.vocab]
    frequencies[: len(known)] = known / known.sum()
    if not holds_words(few):
        return frequencies
    words = generator.choice(few.vocab, few.rows, replace=False, p=(frequencies + 1e-12) / (frequencies + 1e-12).sum())
    return np.concatenate([frequencies[words], np.delete(frequencies, words)])


def _outputs(
    solution: TwoPassSolution, generator: np.random.Generator, frequencies: Array, seen: Array, positions: int,
    count: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the softmax at all positions of sampled networks, and a batch's gradients at the logits, (networks, N, V).

    Args:
        solution: the network's forward and backward pass.
        generator: random generator of logits and labels.
        frequencies: frequencies of labels, (V,).
        seen: mask of the positions with labels, (N,).
        positions: number of positions of the batch.
        count: number of networks.
    """
    stack = solution.stack
    n, vocab, tied, carriers = stack.rows, stack.vocab, holds_words(stack), int(seen.sum())
    values, vectors = np.linalg.eigh(solution.forward.output[0] if tied else solution.output)
    root = stack.output_scale * vectors * np.sqrt(np.maximum(values, 0.0))
    logits = root @ generator.standard_normal((count, n, vocab))
    if tied:
        every = np.arange(n)
        logits[:, every, every] += stack.output_scale * stack.width**0.5 * solution.held[-1][0]
    p = softmax(logits, axis=-1)
    each = max(1, round(positions / carriers))
    r = np.zeros_like(p)
    r[:, seen] = (p[:, seen] - generator.multinomial(each, frequencies, (count, carriers)) / each) / carriers
    return p, r
