"""One step from the gradient of a batch of text: what it gains, how the loss curves along it, and the critical rate.

A batch has more positions than a first step is computed for. Its gradient is a mean over positions and noise. Both are
kept by few positions, each of which has the mean label of many: with N positions for a batch of P, the label at each
is the mean of P/N labels of the text's law. The mean over a text's labels is what sequences share, and what P/N labels
differ from it by is the noise. Half of the positions carry labels, and the other half are as positions that the step
has not seen. A position of the batch is one of P, so that the curvature at positions with labels counts by N/P.

Left out are equal words at two positions, and the rank of the noise, which is N here and up to d in a batch. Both are
within the errors that tests/evidence/batch-steps.json has of networks on text.

Source: this project.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import softmax

from theory.coverage import holds_words
from theory.first_step.outputs import Outputs, step_statistics
from theory.first_step.prediction import moves_of_outputs
from theory.first_step.setting import check
from theory.first_step.tangent import TwoPassSolution
from theory.mean_field.kernels import Array
from theory.mean_field.text_law import TextLaw
from theory.stack import Stack
from theory.stack.optimizers import Optimizer

POSITIONS = 64
"""Positions that stand for a batch, half of them with labels."""

ERRORS = {"gain": 0.25, "curvature": 0.75, "critical_rate": 0.75}
"""How many times more or less than one networks have, less 1; of 90% of the networks of tests/evidence."""

_NUMBERS, _LEAST, _MOST = 2**23, 2, 8
"""Networks that are sampled: so many numbers of logits, and no fewer and no more networks than these."""
_SAMPLES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class BatchStep:
    """Theory of the step θ − η u from the gradient of a batch of text, means over networks at η = 1.

    Attributes:
        gain: E g·u.
        curvature: E u'Gu with the Gauss-Newton matrix of the text.
        logit_change_sq: E of a logit's squared change.
        relative_updates: |u_W|/|W| by role: (L,), and of "Wemb" ().
    """

    gain: float
    curvature: float
    logit_change_sq: float
    relative_updates: dict[str, Array]

    @property
    def critical_rate(self) -> float:
        """2 E g·u/E u'Gu."""
        return 2.0 * self.gain / self.curvature

    @property
    def logit_move(self) -> float:
        """The larger of what logits move by, root mean square, and what labels' logits gain on the mean, g·u."""
        return max(self.logit_change_sq**0.5, self.gain)

    def change(self, rate: float) -> tuple[float, float]:
        """The quadratic change of the loss at a rate, and its error by those of the gain and of the curvature."""
        gain, curvature = rate * self.gain, rate**2 * self.curvature / 2.0
        return curvature - gain, float(np.hypot(ERRORS["gain"] * gain, ERRORS["curvature"] * curvature))


def batch_step(
    stack: Stack, optimizer: Optimizer, sequences: int, law: TextLaw, *, seed: int = 0, positions: int = POSITIONS,
    networks: int | None = None,
) -> BatchStep:  # fmt: skip
    """The step of all matrices from a batch of so many sequences of a text.

    Args:
        stack: the network, with the tokens of one sequence.
        optimizer: as in `first_step`.
        sequences: of the batch.
        law: how often every word is a label.
        seed: of logits, labels and attention patterns.
        positions: number of positions that represent the batch. ERRORS were measured with the default.
        networks: number of sampled networks, None for 2 to 8.

    Raises:
        ValueError: an unknown optimizer.
        NoRuleError: as `first_step`, for 64 tokens at most.

    Assumes d → ∞ at fixed L and V/d.
    """
    of_batch = sequences * stack.tokens
    count = min(positions, 2 * of_batch)
    few = replace(stack, tokens=count, sequences=1)
    chosen = check(few, optimizer, None)
    solution, generator = TwoPassSolution.of(few, seed, _SAMPLES), np.random.default_rng(seed)
    seen = np.arange(count) % 2 == 0
    networks = networks or int(np.clip(_NUMBERS // (few.rows * few.vocab), _LEAST, _MOST))
    p, r = _outputs(solution, generator, _frequencies(law, few, generator), seen, of_batch, networks)
    every = Outputs(p, r, np.ones(count, dtype=bool))
    w, speeds, (squares, sizes) = moves_of_outputs(solution, optimizer, chosen, every)
    has_seen, has_not = (
        step_statistics(Outputs(p[:, mask], r, mask), w, speeds[..., mask], normalized=optimizer == "normalized")
        for mask in (seen, ~seen)
    )
    labelled = min(1.0, int(seen.sum()) / of_batch)
    curvature, change = (
        float(labelled * has_seen[name].mean() + (1.0 - labelled) * has_not[name].mean())
        for name in ("curvature", "change")
    )
    updates = {role: np.sqrt(square / sizes[role]) for role, square in squares.items()}
    return BatchStep(float(has_seen["gain"].mean()), curvature, change, updates)


def seconds_of(stack: Stack) -> float:
    """An estimate of what `batch_step` takes of one core, by its two leading terms."""
    numbers = POSITIONS * stack.vocab
    networks = np.clip(_NUMBERS // numbers, _LEAST, _MOST)
    return float(networks * (4e-7 * numbers + 1e-3 * stack.depth * stack.heads))


def _frequencies(law: TextLaw, few: Stack, generator: np.random.Generator) -> Array:
    """Of labels, (V,); the first classes of tied embeddings are words that positions hold, as often as the law says."""
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
    """Softmax at all positions of so many networks, and a batch's gradients at the logits, (networks, N, V)."""
    stack = solution.stack
    n, vocab, tied, carriers = stack.rows, stack.vocab, holds_words(stack), int(seen.sum())
    output = solution.forward.output[0] if tied else solution.output
    values, vectors = np.linalg.eigh(output)
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
