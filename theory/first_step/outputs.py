"""Samples of logits and labels at large width, and statistics of one optimizer step for each sample.

Logits and labels are the only random part of the step at large width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from theory.mean_field.inputs import attention_pattern, label_groups, loss_count, loss_positions, sampled_labels
from theory.mean_field.kernels import Array, MatrixLayout, cholesky
from theory.mean_field.outputs import output_gradient
from theory.stack import Stack

# Samples of logits and labels: so many numbers, which are also looked at at once, no fewer samples than these and no
# more; fewer where that would be more than _HELD numbers, but at least _LEAST, since sums over many classes scatter
# little. Of rules that ask for each sample its own C as many as fit.
CHUNK, _FEWEST, _MOST = 2**20, 256, 2**13
_HELD, _LEAST = 2**24, 8
# Logits that are drawn at once: few calls, of what a cache holds.
_DRAWN = 2**14
# Heads of all layers and patterns, which bring the errors of a step to 1%.
_HEADS, _MOST_PATTERNS = 2**9, 16
_KERNELS, _FEWEST_KERNELS, _MOST_KERNELS = 2**16, 16, 512


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """The softmax and the gradients of the loss at the logits, for M sampled networks.

    Attributes:
        p: softmax at the positions that count, (M, P, V).
        r: gradients of the loss at the logits of all positions, (M, N, V); 0 where they do not count.
        counted: mask of the positions that count, (N,).
    """

    p: Array
    r: Array
    counted: NDArray[np.bool_]

    def pieces(self, most: int = CHUNK) -> Iterator[tuple[slice, "Outputs"]]:
        """Yield small groups of the sampled networks, each with its slice, so that later steps need little memory.

        Args:
            most: largest number of networks in a group.
        """
        count = min(most, CHUNK // (self.r.shape[-1] * self.r.shape[-2])) or 1
        for start in range(0, len(self.r), count):
            part = slice(start, start + count)
            yield part, Outputs(self.p[part], self.r[part], self.counted)


def counted_positions(stack: Stack, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the positions that count in the loss; a random share of them if so configured.

    The shape is (N,), and the share is chosen with a random seed.
    """
    counted = loss_positions(stack) > 0
    if stack.loss_share < 1.0:
        counted[np.random.default_rng([4, seed]).permutation(stack.rows)[loss_count(stack) :]] = False
    return counted


def sampled_outputs(
    stack: Stack, output: Array, generator: np.random.Generator, count: int, counted: NDArray[np.bool_],
    of_words: Array | float = 0.0, given: NDArray[np.integer] | None = None,
) -> Outputs:  # fmt: skip
    """Sample random logits and labels, and return the softmax and the loss gradients at the logits.

    Args:
        stack: the network.
        output: kernel of the output matrix's input, (N, N).
        generator: random generator of logits and labels.
        count: number of networks.
        counted: mask of the positions that count, (N,).
        of_words: number added to the logit of position i in class i, (N,).
        given: labels of all positions, (N,), of a text; None for random labels.
    """
    n, vocab = stack.rows, stack.vocab
    root = stack.output_scale * cholesky(output)
    p = np.empty((count, int(counted.sum()), vocab))
    at_once = max(1, _DRAWN // (n * vocab))
    for start in range(0, count, at_once):
        probabilities = p[start : start + at_once]
        logits = root @ generator.standard_normal((len(probabilities), n, vocab))
        if np.any(of_words):
            logits[:, np.arange(n), np.arange(n)] += of_words
        probabilities[:] = softmax(logits[:, counted], axis=-1)
    if given is None:
        labels = sampled_labels(stack, count, generator)
        labels = labels[:, label_groups(stack)] if stack.label_groups else labels
    else:
        labels = np.tile(given, (count, 1))
    labels = labels[:, counted]
    r = np.zeros((count, n, vocab))
    of_counted = p - stack.label_smoothing / vocab if stack.label_smoothing else p.copy()
    networks, positions = np.ogrid[:count, : labels.shape[1]]
    of_counted[networks, positions, labels] -= 1.0 - stack.label_smoothing
    of_counted /= counted.sum()
    r[:, counted] = of_counted
    return Outputs(p, r, counted)


def sample_count(stack: Stack, *, linear: bool, patterns: int = 1) -> int:
    """Return the number of networks for which logits and labels are sampled, for each attention sample."""
    each = stack.rows * stack.vocab
    count = int(np.clip(CHUNK // each, int(np.clip(_HELD // each, _LEAST, _FEWEST)), _MOST))
    if not linear:
        count = min(count, int(np.clip(_KERNELS // stack.rows**2, _FEWEST_KERNELS, _MOST_KERNELS)))
    return max(_LEAST, count // patterns)


def pattern_count(stack: Stack, patterns: int | None = None) -> int:
    """Return the number of attention samples: the requested one, else 4 to 16, or 1 for fixed attention.

    If the loss counts a share of the positions, every attention sample has its own choice of positions, and there are
    16.

    Args:
        stack: the network.
        patterns: the requested number; None for the default.

    Raises:
        ValueError: there are fewer than 2, which have no standard error.
    """
    whole = isinstance(patterns, int | np.integer) and not isinstance(patterns, bool)
    if patterns is not None and not (whole and patterns >= 2):
        raise ValueError(f"patterns must be None or an integer of at least 2, got {patterns!r}.")
    fewest = 4 if stack.loss_share == 1.0 else _MOST_PATTERNS
    if not stack.query_key_scale and stack.loss_share == 1.0:
        return 1
    if patterns is not None:
        return int(patterns)
    return int(np.clip(_HEADS // (stack.heads * stack.depth), fewest, _MOST_PATTERNS))


def gram(stack: Stack, first: Array, second: Array) -> Array:
    """Return symmetrized inner products, between positions, of two sets of gradients at the output tokens.

    The shape is (M, N, N) for M networks.

    Args:
        stack: the network.
        first: gradients at the logits, (M, N, V).
        second: gradients at the logits, (M, N, V).
    """
    product = first @ second.mT * stack.output_scale**2
    return np.asarray((product + product.mT) / 2)


def mean_gram(stack: Stack, output: Array, same_label: Array, counted: NDArray[np.bool_]) -> Array:
    """Return the exact mean, over networks, of the inner products between loss gradients at the output tokens.

    It is the mean of `gram` of r with itself, (1, N, N), given which positions count.

    Args:
        stack: the network.
        output: kernel of the output matrix's input, (N, N).
        same_label: probability that two positions' labels agree, (1, N, N).
        counted: mask of the positions that count, (N,).
    """
    whole = replace(stack, loss_share=1.0)
    tokens = MatrixLayout(whole.rows, attention_pattern(whole), whole.sequences)
    product = output_gradient(whole, tokens, output[None], same_label)
    return np.asarray(product * np.outer(counted, counted) * (loss_count(whole) / counted.sum()) ** 2)


def curved_gradients(drawn: Outputs, w: Array) -> Array:
    """Return the change of the loss gradient at the logits when the logits change, at every position.

    It is H_i w_i/P at position i, and its product with w is u'Gu. H_i is the Hessian of the loss at position i with
    respect to its logits, and P is the number of positions in the loss.

    Args:
        drawn: the sampled outputs.
        w: change of the logits, (M, N, V).
    """
    curved, counted = np.zeros_like(w), w[:, drawn.counted]
    average = (drawn.p * counted).sum(-1, keepdims=True)
    curved[:, drawn.counted] = drawn.p * (counted - average) / drawn.counted.sum()
    return curved


def step_statistics(drawn: Outputs, w: Array, speeds: Array, *, normalized: bool) -> dict[str, Array]:
    """Return four statistics of a step for each network: gain, curvature, its random part, and logit change.

    The gain is g·u and the curvature u'Gu. The part "spread" of the curvature is due to the random change of the
    logits, and "change" is the mean squared change of a logit. Each array has shape (M,).

    Args:
        drawn: the sampled outputs.
        w: change of the logits, (M, N, V).
        speeds: variances of the logits' random change at the positions that count.
        normalized: whether the step is divided by |g|.
    """
    gain, counted = (drawn.r * w).sum((-2, -1)), w[:, drawn.counted]
    seen = ((drawn.p * counted**2).sum(-1) - (drawn.p * counted).sum(-1) ** 2).mean(-1)
    spread = ((1.0 - (drawn.p**2).sum(-1)) * speeds).mean(-1)
    change = (counted**2).mean((-2, -1)) + speeds.mean()
    # u = g/|g|, with |g|² = g·g of what is stepped.
    size = gain if normalized else np.ones(1)
    return {
        "gain": gain / size**0.5, "curvature": (seen + spread) / size, "spread": spread / size, "change": change / size,
    }  # fmt: skip
