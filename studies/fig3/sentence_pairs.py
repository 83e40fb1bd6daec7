"""Predictions for mini-batches of pairs of sentences, whose lengths differ: what an encoder-decoder is trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from studies.fig3.drawn_products import DrawnLayout
from theory.mean_field.inputs import Inputs, Source, equal_weights, position_kernel, position_means
from theory.mean_field.kernels import Array, MatrixLayout
from theory.mean_field.recursion import forward_pass, quantities_of
from theory.stack import Stack

Ids = NDArray[np.integer]

_QUERIES_AND_KEYS = tuple(f"grad_sq_{kind}{role}" for kind in "WX" for role in "QK")


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
    finite_width: bool = False,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Large-width means over patterns of attention, of the loss averaged over all target tokens of some pairs.

    Args:
        stack: the network; its sizes of sequences are those of the pairs, its mask and positions hold within each.
        pairs: of sentences, whose words share a Gaussian embedding where they are equal.
        generator: of the patterns.
        patterns: how many; their standard error is not given.
        embedding_dropout: share of the coordinates of the inputs that is dropped.
        finite_width: take gradients of queries and keys from products of tokens that are drawn at the stack's width,
            anew for every pattern, in the place of their means (`studies.fig3.drawn_products`).

    Returns:
        Quantities by name, () or (L,); token correlations are over all pairs of tokens. And the same with the sums,
        over pairs, of squares of what each alone adds to the gradients.

    Raises:
        ValueError: the mask is given, for one length; or, at finite width, branches end in a norm or there are two
            streams.
    """
    if stack.mask == "given":
        raise ValueError("mask must be 'none' or 'causal' for pairs of sentences, whose lengths differ, got 'given'.")
    if finite_width and (stack.composition.output_norm or stack.composition.second_stream):
        raise ValueError(
            f"placement must have one stream and no norm after its branches at finite width, got {stack.placement!r}."
        )
    means = _sampled(stack, pairs, generator, patterns, embedding_dropout, MatrixLayout)
    if not finite_width:
        return means
    # What draws make of a norm's size, E 1/q > 1/E q, fluctuations of gradients undo; so the others are not drawn.
    layout = partial(DrawnLayout, generator=generator.spawn(1)[0])
    drawn = _sampled(stack, pairs, generator, patterns, embedding_dropout, layout)
    together, each = (
        of_means | {name: value for name, value in of_draws.items() if name.endswith(_QUERIES_AND_KEYS)}
        for of_means, of_draws in zip(means, drawn, strict=True)
    )
    return together, each


def _sampled(
    stack: Stack, pairs: Sequence[SentencePair], generator: np.random.Generator, patterns: int, dropout: float,
    layout: Callable[[int, Array], MatrixLayout],
) -> tuple[dict[str, Array], dict[str, Array]]:  # fmt: skip
    """What `predict_group` gives, of tokens laid out like that.

    Gradients of all pairs together and of each are of the same patterns: they differ by little, which the error of two
    samples would bury.
    """
    sources, targets = ([getattr(pair, name) for pair in pairs] for name in ("source", "target"))
    rows, read = (sum(map(len, sentences)) for sentences in (targets, sources))
    whole = replace(stack, tokens=rows, source_tokens=read if stack.source_tokens else 0, sequences=1)
    tokens = layout(rows, _pattern(stack, targets))
    source = None
    if stack.source_tokens:
        across = block_diag(*(np.full((len(p.target), len(p.source)), 1.0 / len(p.source)) for p in pairs))
        its = layout(read, _pattern(replace(stack, mask="none", window=0), sources))
        source = Source(its, *_embedded(whole, its, sources, dropout, patterns), across)
    kernel, means = _embedded(whole, tokens, targets, dropout, patterns)
    same_label = np.repeat(_equal(np.concatenate([pair.labels for pair in pairs]))[None], patterns, axis=0)
    inputs = Inputs(kernel, same_label, means=means, source=source)
    # Masks and positions are in the kernels and patterns, of sentences one after another.
    bare = replace(whole, mask="none", window=0, positions="none")
    forward = forward_pass(bare, tokens, inputs, generator)
    within = block_diag(*(np.ones((len(pair.target),) * 2) for pair in pairs))
    ways_down = (quantities_of(bare, tokens, inputs, forward, generator, share) for share in (None, within))
    together, each = ({name: value.mean(-1) for name, value in quantities.items()} for quantities in ways_down)
    return together, each


def _equal(ids: Ids) -> Array:
    return np.asarray((ids[:, None] == ids) * 1.0)


def _embedded(
    stack: Stack, tokens: MatrixLayout, sentences: Sequence[Ids], dropout: float, patterns: int
) -> tuple[Array, Array | None]:
    """Kernels of the inputs, one per pattern, and the means of their coordinates: words and positions."""
    places = np.concatenate([np.arange(len(sentence)) for sentence in sentences])
    longest = replace(stack, tokens=max(map(len, sentences)), source_tokens=0)
    given, means = position_kernel(longest), position_means(longest)
    words = _equal(np.concatenate(sentences))
    positions = np.zeros_like(words) if stack.positions == "none" else given[np.ix_(places, places)]
    if stack.positions in ("learned", "learned_segment"):  # as random as the words
        positions, words = 0.0 * positions, words + positions
    # What is dropped of a sum is an independent part of every token.
    words[np.diag_indices_from(words)] += np.diagonal(words + positions) * dropout / (1.0 - dropout)
    means = None if means is None else means[places]
    positions, words = (np.repeat(part[None], patterns, axis=0) for part in (positions, words))
    return tokens.plus(positions, words, stack.width, means), means


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
    finite_width: bool = False,
    seed: int = 0,
) -> dict[str, Array]:
    """Squared gradient norms of a mini-batch of pairs.

    A mini-batch of B pairs has E‖∇‖² = C + (S − C)/B, with S the mean square of one pair's gradient and C the mean
    product of two's. C is found from groups of four pairs, which share a kernel; so B may be hundreds, or infinite.

    Args:
        stack: the network, as in `predict_group`.
        pairs: at least 4 * groups.
        size: B, of pairs that differ in length the number of tokens squared over the sum of squares.
        groups: of four pairs that are predicted.
        patterns: of attention, for each.
        embedding_dropout: share of the coordinates of the inputs that is dropped.
        finite_width: as in `predict_group`.
        seed: of the choice of pairs and the patterns.

    Returns:
        E‖∂L/∂W‖² of every matrix by name, () or (L,).

    Raises:
        ValueError: there are too few pairs, or as in `predict_group`.
    """
    if groups < 1 or len(pairs) < 4 * groups:
        raise ValueError(f"pairs must be at least 4 * groups = {4 * groups}, and groups at least 1, got {len(pairs)}.")
    generator = np.random.default_rng(seed)
    squares, products, left = [], [], 0.0
    for chosen in generator.choice(len(pairs), (groups, 4), replace=False):
        group = [pairs[k] for k in chosen]
        together, each = predict_group(
            stack, group, generator, patterns=patterns, embedding_dropout=embedding_dropout, finite_width=finite_width
        )
        squares.append(each)
        products.append({name: together[name] - each[name] for name in each})
        # A pair's share of the loss is its length's, so that long pairs count with its square.
        lengths = np.array([len(pair.target) for pair in group])
        left += 1.0 - float((lengths**2).sum() / lengths.sum() ** 2)
    norms = {}
    for name in (name for name in squares[0] if "grad_sq_" in name):
        square = np.sum([of_group[name] for of_group in squares], axis=0) / (groups - left)
        product = np.sum([of_group[name] for of_group in products], axis=0) / left
        norms[name] = product + (square - product) / size
    return norms
