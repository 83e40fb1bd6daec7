"""Second moments of what enters a stack: inputs, positions, labels, and which tokens attend to which."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from theory.kernels import Exchangeable, Kernel, Pair, Tokens
from theory.stack import Stack

Array = NDArray[np.float64]


def is_exchangeable(stack: Stack) -> bool:
    """Whether no token differs in law from another, so that a pair of numbers says all of a kernel."""
    telling_apart = "input_gram", "positions", "mask", "loss_on", "sequences", "attention_dropout", "query_key_scale"
    return not (set(telling_apart) & set(stack.relaxed)) and not stack.composition.second_stream


def exchangeable_inputs(stack: Stack) -> tuple[Tokens, Kernel, Kernel]:
    """Layout, input kernel and label kernel of exchangeable tokens."""
    return Exchangeable(stack.tokens), Pair(1.0, stack.input_correlation), Pair(1.0, label_coincidence(stack))


def gaussian_inputs(stack: Stack) -> tuple[Array, Array]:
    """Input and label kernels of all sequences, (1, N, N) with N = sequences * tokens: Gaussian inputs, own labels."""
    same = np.full((stack.rows, stack.rows), label_coincidence(stack))
    np.fill_diagonal(same, 1.0)
    own = np.kron(np.eye(stack.sequences), stack.input_covariance)
    return (own + position_kernel(stack))[None], same[None]


def word_inputs(stack: Stack, ids: NDArray[np.integer]) -> tuple[Array, Array]:
    """Input and label kernels of windows of words, (batches, N, N): equal words share a Gaussian embedding.

    Args:
        stack: the network; B = sequences consecutive windows make a batch.
        ids: word ids of shape (windows, n + 1), windows a multiple of B.
    """
    words, labels = (part.reshape(-1, stack.rows) for part in (ids[:, :-1], ids[:, 1:]))
    equal_words, equal_labels = ((part[:, :, None] == part[:, None, :]) * 1.0 for part in (words, labels))
    return equal_words + position_kernel(stack), equal_labels


def position_kernel(stack: Stack) -> Any:
    """p_i·p_j/d of the position vectors, (N, N), or 0; every sequence has the same.

    Sinusoidal ones have sin and cos of i ω_k with ω_k = 10000^(−2k/d), k < d/2, so that p_i·p_j is the sum of
    cos((i − j) ω_k). Learned ones are independent N(0, I_d).

    Source: Vaswani et al. (2017), section 3.5.
    """
    n = stack.tokens
    if stack.positions == "none":
        return 0.0
    if stack.positions == "learned":
        kernel = np.eye(n)
    else:
        lag = np.arange(n)[:, None] - np.arange(n)
        kernel = np.cos(lag[..., None] * _frequencies(stack)).sum(-1) / stack.width
    return np.tile(kernel, (stack.sequences, stack.sequences))


def position_means(stack: Stack) -> Array | None:
    """The mean of each token's coordinates, (N,), where it does not vanish with the width and a LayerNorm removes it.

    Most frequencies are low, so that most cosines are near 1: sinusoidal positions point along (1, ..., 1).
    """
    if stack.positions != "sinusoidal" or stack.normalization != "layer":
        return None
    angles = np.arange(stack.tokens)[:, None] * _frequencies(stack)
    return np.tile((np.sin(angles) + np.cos(angles)).sum(-1) / stack.width, stack.sequences)


def _frequencies(stack: Stack) -> Array:
    return np.asarray(10000.0 ** (-np.arange(0, stack.width, 2) / stack.width))


def label_coincidence(stack: Stack) -> float:
    """The probability that two independent labels agree: Σ_k p_k²."""
    if stack.labels == "uniform":
        return 1.0 / stack.vocab
    weights = 1.0 / np.arange(1, stack.vocab + 1)
    return float((weights**2).sum() / weights.sum() ** 2)


def loss_positions(stack: Stack) -> Array:
    """1 for every row whose cross-entropy counts, (N,)."""
    own = np.ones(stack.tokens)
    if stack.loss_on == "last":
        own[:-1] = 0.0
    return np.tile(own, stack.sequences)


def attention_pattern(stack: Stack) -> Array | None:
    """Attention weights of all sequences with zero queries and keys, (N, N); None if all tokens attend to all.

    Token i attends equally to all tokens of its sequence, or, under a causal mask, to the first i.
    """
    if stack.mask == "none" and stack.sequences == 1:
        return None
    allowed = np.ones((stack.tokens, stack.tokens))
    if stack.mask == "causal":
        allowed = np.tril(allowed)
    return np.kron(np.eye(stack.sequences), allowed / allowed.sum(-1, keepdims=True))
