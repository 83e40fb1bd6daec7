"""Logits and labels, which are all that is random in a step at large width; and what it does, given them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from theory.mean_field.inputs import label_groups, loss_positions, sampled_labels
from theory.mean_field.kernels import Array, cholesky
from theory.stack import Stack

# Samples of logits and labels: so many numbers, no fewer and no more than these; of rules that ask for each its own C
# as many as fit.
_NUMBERS, _FEWEST, _MOST = 2**20, 256, 2**13
_KERNELS, _FEWEST_KERNELS, _MOST_KERNELS = 2**16, 16, 512


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """Of M networks.

    Attributes:
        p: softmax of the positions that count, (M, P, V).
        r: gradients of the loss at the logits of all positions, (M, N, V); 0 where they do not count.
        counted: which do, (N,).
    """

    p: Array
    r: Array
    counted: NDArray[np.bool_]


def sampled_outputs(
    stack: Stack, output: Array, generator: np.random.Generator, *, linear: bool, share: float = 1.0
) -> Outputs:
    """Logits and labels of as many networks as are worth it, or of a share of them."""
    n, vocab = stack.rows, stack.vocab
    count = int(np.clip(_NUMBERS // (n * vocab), _FEWEST, _MOST))
    if not linear:
        count = min(count, int(np.clip(_KERNELS // n**2, _FEWEST_KERNELS, _MOST_KERNELS)))
    count = max(_FEWEST_KERNELS, round(count * share))
    logits = stack.output_scale * cholesky(output) @ generator.standard_normal((count, n, vocab))
    p, labels, counted = softmax(logits, axis=-1), sampled_labels(stack, count, generator), loss_positions(stack) > 0
    if stack.label_groups:
        labels = labels[:, label_groups(stack)]
    certain = np.eye(vocab)[labels] * (1.0 - stack.label_smoothing)
    r = (p - certain - stack.label_smoothing / vocab) * counted[:, None] / counted.sum()
    return Outputs(p[:, counted], r, counted)


def gram(stack: Stack, first: Array, second: Array) -> Array:
    """The symmetric part of the products of two fields of gradients at the output tokens, (M, N, N)."""
    product = first @ second.mT * stack.output_scale**2
    return np.asarray((product + product.mT) / 2)


def orders(drawn: Outputs, w: Array, speeds: Array, *, normalized: bool) -> dict[str, Array]:
    """Of every sample: g·u, u'Gu, what of it is due to the random part, and a logit's squared change, (M,) each."""
    gain, counted = (drawn.r * w).sum((-2, -1)), w[:, drawn.counted]
    average = (drawn.p * counted).sum(-1)
    seen = ((drawn.p * counted**2).sum(-1) - average**2).mean(-1)
    spread = ((1.0 - (drawn.p**2).sum(-1)) * speeds).mean(-1)
    change = (counted**2).mean((-2, -1)) + speeds.mean()
    # u = g/|g|, with |g|² = g·g of what is stepped.
    size = gain if normalized else np.ones(1)
    return {
        "gain": gain / size**0.5, "curvature": (seen + spread) / size, "spread": spread / size, "change": change / size,
    }  # fmt: skip
