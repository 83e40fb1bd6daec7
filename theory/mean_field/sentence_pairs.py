"""Predictions for mini-batches of pairs of sentences, whose lengths differ: what an encoder-decoder is trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from theory.mean_field.inputs import Inputs, Source, equal_weights, position_kernel, position_means
from theory.mean_field.kernels import MatrixLayout
from theory.mean_field.recursion import recursion
from theory.stack import Stack

Array = NDArray[np.float64]
Ids = NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class SentencePair:
    """A pair of sentences as an encoder-decoder is given it.

    Attributes:
        source: ids of the source.
        target: ids of the target, its inputs.
        labels: ids that follow them.
    """

    source: Ids
    target: Ids
    labels: Ids


def predict_group(
    stack: Stack,
    pairs: Sequence[SentencePair],
    generator: np.random.Generator,
    *,
    patterns: int,
    embedding_dropout: float = 0.0,
) -> dict[str, Array]:
    """Large-width means over patterns of attention, of the loss averaged over all target tokens of some pairs.

    Args:
        stack: the network; its sizes of sequences are those of the pairs, its mask and positions hold within each.
        pairs: of sentences, whose words share a Gaussian embedding where they are equal.
        generator: of the patterns.
        patterns: how many; their standard error is not given.
        embedding_dropout: share of the coordinates of the inputs that is dropped.

    Returns:
        Quantities by name, () or (L,); token correlations are over all pairs of tokens.

    Raises:
        ValueError: the mask is given, for one length.
    """
    if stack.mask == "given":
        raise ValueError("mask must be 'none' or 'causal' for pairs of sentences, whose lengths differ, got 'given'.")
    sources, targets = ([getattr(pair, name) for pair in pairs] for name in ("source", "target"))
    rows, read = (sum(map(len, sentences)) for sentences in (targets, sources))
    whole = replace(stack, tokens=rows, source_tokens=read if stack.source_tokens else 0, sequences=1)
    of_targets, its = (_kernel(whole, sentences, embedding_dropout) for sentences in (targets, sources))
    labels = np.concatenate([pair.labels for pair in pairs])
    source = None
    if stack.source_tokens:
        across = block_diag(*(np.full((len(p.target), len(p.source)), 1.0 / len(p.source)) for p in pairs))
        layout = MatrixLayout(read, _pattern(replace(stack, mask="none", window=0), sources))
        source = Source(layout, its[0][None], its[1], across)
    inputs = Inputs(of_targets[0][None], _equal(labels)[None], means=of_targets[1], source=source)
    tokens = MatrixLayout(rows, _pattern(stack, targets))
    # Masks and positions are in the kernels and patterns, of sentences one after another.
    bare = replace(whole, mask="none", window=0, positions="none")
    quantities = recursion(bare, tokens, inputs.repeated(patterns), generator)
    return {name: value.mean(-1) for name, value in quantities.items()}


def _equal(ids: Ids) -> Array:
    return np.asarray((ids[:, None] == ids) * 1.0)


def _kernel(stack: Stack, sentences: Sequence[Ids], dropout: float) -> tuple[Array, Array | None]:
    """Kernel of the inputs, and the means of their coordinates: words and positions."""
    places = np.concatenate([np.arange(len(sentence)) for sentence in sentences])
    longest = replace(stack, tokens=max(map(len, sentences)), source_tokens=0)
    positions, means = position_kernel(longest), position_means(longest)
    kernel = _equal(np.concatenate(sentences))
    if stack.positions != "none":
        kernel = kernel + positions[np.ix_(places, places)]
    kernel[np.diag_indices_from(kernel)] /= 1.0 - dropout
    return kernel, None if means is None else means[places]


def _pattern(stack: Stack, sentences: Sequence[Ids]) -> Array:
    """Attention weights with zero queries and keys and the mask of a stack; every token looks at its own sentence."""
    return np.asarray(block_diag(*(equal_weights(stack, len(sentence)) for sentence in sentences)))


def predict_minibatch(
    stack: Stack,
    pairs: Sequence[SentencePair],
    *,
    size: float,
    groups: int = 32,
    patterns: int = 4,
    embedding_dropout: float = 0.0,
    seed: int = 0,
) -> dict[str, Array]:
    """Squared gradient norms of a mini-batch of pairs, and other means over pairs.

    A mini-batch of B pairs has E‖∇‖² = C + (S − C)/B, with S the mean square of one pair's gradient and C the mean
    product of two's. C is found from groups of four pairs, which share a kernel; so B may be hundreds, or infinite.

    Args:
        stack: the network, as in `predict_group`.
        pairs: at least 4 * groups.
        size: B, of pairs that differ in length the number of tokens squared over the sum of squares.
        groups: of four pairs that are predicted.
        patterns: of attention, for each.
        embedding_dropout: share of the coordinates of the inputs that is dropped.
        seed: of the choice of pairs and the patterns.

    Raises:
        ValueError: there are too few pairs.
    """
    if groups < 1 or len(pairs) < 4 * groups:
        raise ValueError(f"pairs must be at least 4 * groups = {4 * groups}, and groups at least 1, got {len(pairs)}.")
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(pairs), (groups, 4), replace=False)
    alone, squared, products, left = [], [], [], []
    for group in chosen:
        members = [pairs[k] for k in group]
        together = predict_group(stack, members, generator, patterns=patterns, embedding_dropout=embedding_dropout)
        singles = [predict_group(stack, [pair], generator, patterns=patterns, embedding_dropout=embedding_dropout)
               for pair in members]  # fmt: skip
        weights = np.array([len(pair.target) for pair in members]) / sum(len(pair.target) for pair in members)
        square = {
            name: np.sum([w**2 * single[name] for w, single in zip(weights, singles, strict=True)], 0)
            for name in together
        }
        alone.append({name: np.mean([single[name] for single in singles], axis=0) for name in together})
        squared.append(square)
        products.append({name: together[name] - square[name] for name in together})
        left.append(1.0 - float((weights**2).sum()))
    mean = {name: np.mean([of_group[name] for of_group in alone], axis=0) for name in alone[0]}
    product = {name: np.sum([of_group[name] for of_group in products], axis=0) / sum(left) for name in products[0]}
    for name in (name for name in mean if "grad_sq" in name):
        # A pair's share of the loss is its length's, so that long pairs count with its square.
        own_square = np.sum([of_group[name] for of_group in squared], axis=0) / (groups - sum(left))
        mean[name] = product[name] + (own_square - product[name]) / size
    return mean
