"""Predictions: the recursion on the inputs of a stack, averaged over windows of text and over attention patterns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from theory.inputs import attention_pattern, exchangeable_inputs, gaussian_inputs, is_exchangeable, word_inputs
from theory.kernels import Kernel, Labelled
from theory.mean_field import recursion
from theory.stack import Stack

Arrays = dict[str, NDArray[np.float64]]

# Windows of text are predicted in chunks: a stack keeps about 12 kernels per layer for its backward pass.
_CHUNK_ENTRIES = 2_000_000

_MOST_PATTERNS = 2**18
_AIMED_AT = ("hidden_energy", "input_gradient_sq")


class NoRuleError(ValueError):
    """A network that can be sampled and that large-width theory has no rule for yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction(Mapping[str, NDArray[np.float64]]):
    """Predicted means by quantity name: shape () or, per layer, (L,) with layer l at index l - 1.

    Attributes:
        stack: the network.
        arrays: the means.
        errors: their standard errors where attention patterns are sampled, by name; empty where nothing is.
    """

    stack: Stack
    arrays: Arrays
    errors: Arrays = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def predict(
    stack: Stack,
    windows: NDArray[np.integer] | None = None,
    *,
    finite_width: bool = False,
    patterns: int = 4096,
    target: float | None = None,
) -> Prediction:
    """Large-width means of every predicted quantity of a random stack.

    Args:
        stack: the network.
        windows: word ids of shape (windows, n + 1): inputs are the first n columns (equal ids share one
            Gaussian embedding), labels the last n. The prediction is the average over the windows. Without
            windows, inputs are independent N(0, I_d) tokens and labels are uniform and independent.
        finite_width: correct the gradients of W1, W2 and WV for a width that is not large beside the depth, to first
            order in 1/d at fixed L/d; for Post-LN, good to 5% up to L/d = 1/8 (docs/finite_width.md).

        patterns: how many attention patterns are sampled at least, with a fixed seed; without random queries and keys
            or dropped attention weights there are none.
        target: largest relative standard error of a gradient or energy where attention patterns are sampled; more are
            until it is met, or until there are 2^18.

    Raises:
        ValueError: windows do not have n + 1 columns of integers, or `finite_width` without Post-LN.
        NoRuleError: random queries and keys in a placement for which they have no rule.

    Source: derived in docs/theory.md; the paper's energies (Lemma 2) are its diagonal.

    >>> energy = predict(Stack(placement="post", depth=3))["hidden_energy"]
    >>> energy.round(12).tolist()  # Lemma 2: 3/2 in every layer
    [1.5, 1.5, 1.5]
    """
    if finite_width:
        from theory.finite_width import corrections  # sympy is as slow to load as the rest of the package

        factors = corrections(stack)
        large = predict(stack, windows)
        return Prediction(stack, {name: value * factors.get(name, 1.0) for name, value in large.items()})
    generator = np.random.default_rng(0)
    if windows is None and is_exchangeable(stack):
        found = recursion(stack, *exchangeable_inputs(stack), generator)
        return Prediction(stack, {name: np.array(value) for name, value in found.items()})
    _check_queries(stack)
    kernel, same_label = gaussian_inputs(stack) if windows is None else word_inputs(stack, _checked(stack, windows))
    if not stack.attention_dropout and not stack.query_key_scale:
        means, _ = _batch_means(stack, kernel, same_label, generator)
        return Prediction(stack, means)
    repeats = -(-patterns // len(kernel))
    kernel, same_label = np.repeat(kernel, repeats, axis=0), np.repeat(same_label, repeats, axis=0)
    rounds: list[tuple[Arrays, Arrays]] = []
    while True:
        rounds.append(_batch_means(stack, kernel, same_label, generator))
        means, squares = (
            {name: np.mean([one[which][name] for one in rounds], axis=0) for name in rounds[0][0]} for which in (0, 1)
        )
        count = len(rounds) * len(kernel)
        errors = {name: np.sqrt(np.maximum(squares[name] - means[name] ** 2, 0.0) / count) for name in means}
        aimed = [name for name in means if name in _AIMED_AT or name.startswith("grad_sq_")]
        widest = max(float(np.max(errors[name] / means[name])) for name in aimed)
        if target is None or widest <= target or count >= _MOST_PATTERNS:
            return Prediction(stack, means, errors)


def _batch_means(
    stack: Stack, kernel: Kernel, same_label: Kernel, generator: np.random.Generator
) -> tuple[Arrays, Arrays]:
    """Means of every quantity and of its square over a batch of kernels, in chunks that fit into memory."""
    tokens = Labelled(stack.rows, attention_pattern(stack), stack.sequences)
    size = max(1, _CHUNK_ENTRIES // (stack.rows**2 * stack.depth * stack.heads))
    means: Arrays = {}
    squares: Arrays = {}
    for start in range(0, len(kernel), size):
        chunk = slice(start, start + size)
        part = recursion(stack, tokens, kernel[chunk], same_label[chunk], generator)
        share = len(kernel[chunk]) / len(kernel)
        for name, value in part.items():
            means[name] = means.get(name, np.array(0.0)) + share * value.mean(-1)
            squares[name] = squares.get(name, np.array(0.0)) + share * np.square(value).mean(-1)
    return means, squares


def _check_queries(stack: Stack) -> None:
    """Refuse what random queries and keys have no rule for.

    Raises:
        NoRuleError: the placement has no norm on every branch's way, or attention weights are dropped.
    """
    composition = stack.composition
    if not stack.query_key_scale:
        return
    if not (composition.input_norm or composition.stream_norm) or composition.second_stream:
        raise NoRuleError(
            f"query_key_scale must be 0 for a prediction of placement {stack.placement!r} with normalization "
            f"{stack.normalization!r}: random queries and keys have a rule where a norm stands on the stream or before "
            "every branch."
        )
    if stack.attention_dropout:
        raise NoRuleError(
            "query_key_scale must be 0 for a prediction with attention_dropout: the two have no rule yet."
        )


def _checked(stack: Stack, windows: NDArray[np.integer]) -> NDArray[np.integer]:
    """The windows that make whole batches of sequences.

    Raises:
        ValueError: they are not integers of n + 1 columns, or too few.
    """
    ids = np.asarray(windows)
    least = stack.sequences
    if ids.ndim != 2 or len(ids) < least or ids.shape[1] != stack.tokens + 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"windows must be integers of shape (windows, tokens + 1) = (windows, {stack.tokens + 1}), and at least "
            f"{least}, got {ids.dtype} of shape {ids.shape}."
        )
    return ids[: len(ids) // least * least]
