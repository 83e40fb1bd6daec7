"""Inputs and labels of sampled networks: Gaussian tokens with independent labels, or windows of a text."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from simulate.network.engines import Engine
from simulate.network.gram import GramEngine
from simulate.network.random_streams import RandomStreams
from simulate.network.tied_words import Words
from simulate.runs.cell import Cell
from simulate.text import TextWindows
from theory.stack import Stack


def network_inputs(
    cell: Cell, engine: Engine
) -> tuple[Float[Tensor, "draws tokens width"], Int[Tensor, "draws tokens"], Words | None]:
    """Sample inputs and labels for a batch of networks: Gaussian tokens, or random windows of a text.

    Tied token ids are returned too; the text is that of the cell.
    """
    stack, streams = cell.stack, engine.streams
    x = (
        engine.frame.normal(stack.rows)
        if isinstance(engine, GramEngine)
        else streams.normal(stack.rows, stack.width, dtype=engine.dtype)
    )
    if cell.text is None:
        x = _correlated(stack, streams, x)
        labels = _labels(stack, streams)
        words = first = torch.arange(stack.rows, device=streams.device).expand(labels.shape)
    else:
        words, labels, first = _window(stack, streams, cell.text)
        # A Gaussian table is needed only at a batch's words: their first occurrences draw it, the others repeat it.
        x = x.gather(1, first[:, :, None].expand_as(x))
    return _positioned(stack, x, positions(stack, engine)), labels, _tied(stack, x, words, first)


def input_batches(
    cell: Cell, engine: Engine
) -> Iterator[tuple[Float[Tensor, "draws tokens width"], Int[Tensor, "draws tokens"]]]:
    """Yield new inputs and labels for one batch after another, with the same distribution.

    The first batch has the same law as in `network_inputs`.

    Gaussian tokens and labels are independent of earlier batches. For a text, each batch uses new random windows, but
    token ids and positions keep their vectors.
    """
    stack, streams = cell.stack, engine.streams
    seen, vectors = list[Tensor](), list[Tensor]()
    placed: Tensor | None = None
    while True:
        x = streams.normal(stack.rows, stack.width, dtype=engine.dtype)
        if cell.text is None:
            x = _correlated(stack, streams, x)
            labels = _labels(stack, streams)
        else:
            words, labels, _ = _window(stack, streams, cell.text)
            seen.append(words)
            vectors.append(x)
            known, table = torch.cat(seen, 1), torch.cat(vectors, 1)
            first = (words[:, :, None] == known[:, None, :]).byte().argmax(2)  # of equal ones the first
            x = table.gather(1, first[:, :, None].expand_as(x))
        placed = positions(stack, engine) if placed is None else placed
        yield _positioned(stack, x, placed), labels


def source_inputs(stack: Stack, engine: Engine) -> Float[Tensor, "draws source width"] | None:
    """Sample the Gaussian input tokens of the encoder for a batch of networks; None without an encoder."""
    encoder = stack.encoder
    if encoder is None:
        return None
    x = engine.streams.normal(encoder.rows, encoder.width, dtype=engine.dtype)
    return _positioned(encoder, _correlated(encoder, engine.streams, x), positions(encoder, engine))


def positions(stack: Stack, engine: Engine) -> Tensor:
    """Return the position vectors that are added to the tokens of every sequence; empty if there are none.

    The shape is (1 or draws, tokens, width).
    """
    streams = engine.streams
    if stack.positions == "none":
        return torch.empty(0, device=streams.device)
    if stack.positions in ("learned", "learned_segment"):
        segments = int(stack.positions == "learned_segment")
        vectors = streams.normal(stack.tokens + segments, stack.width, dtype=engine.dtype) * stack.embedding_scale
        return vectors[:, : stack.tokens] + vectors[:, stack.tokens :].sum(1, keepdim=True)
    even = torch.arange(0, stack.width, 2, device=streams.device, dtype=torch.float64)
    angles = torch.arange(stack.tokens, device=streams.device)[:, None] * 10000 ** (-even / stack.width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(engine.dtype)[None]


def _positioned(stack: Stack, x: Tensor, added: Tensor) -> Tensor:
    """Scale inputs by the embedding scale and add position vectors, which are equal for all sequences of a network."""
    x = x if stack.embedding_scale == 1.0 else x * stack.embedding_scale
    return x + added.repeat(1, stack.sequences, 1) if len(added) else x


def _labels(stack: Stack, streams: RandomStreams) -> Int[Tensor, "draws tokens"]:
    # Sample labels that are independent of the inputs, (draws, tokens).
    shape = (streams.draws, stack.rows)
    count = stack.sequences * (stack.label_groups or stack.tokens)
    if stack.labels == "zipf":
        ranks = torch.arange(1, stack.vocab + 1, device=streams.device, dtype=torch.float64)
        labels = streams.chosen(1 / ranks, count)
    else:
        labels = streams.integers(stack.vocab, count)
    if stack.label_groups:
        groups = torch.arange(stack.tokens, device=streams.device) * stack.label_groups // stack.tokens
        labels = labels.view(streams.draws, stack.sequences, -1)[:, :, groups].reshape(shape)
    return labels


def _window(
    stack: Stack, streams: RandomStreams, text: TextWindows
) -> tuple[Int[Tensor, "draws tokens"], Int[Tensor, "draws tokens"], Int[Tensor, "draws tokens"]]:
    """Choose windows at random, and return token ids, labels and the first position of each token id."""
    shape = (streams.draws, stack.rows)
    chosen = streams.integers(len(text.ids) // stack.sequences)
    first = torch.as_tensor(text.first_occurrence(stack.sequences), device=streams.device)[chosen]
    windows = torch.as_tensor(text.batches(stack.sequences), device=streams.device)[chosen]
    words, labels = (part.reshape(shape) for part in (windows[:, :, :-1], windows[:, :, 1:]))
    return words, labels, first


def _tied(stack: Stack, x: Tensor, ids: Tensor, first: Tensor) -> Words | None:
    if stack.embeddings == "untied":
        return None
    return Words(ids, first, (x * (stack.output_scale * stack.width**-0.5)).requires_grad_())


def _correlated(stack: Stack, streams: RandomStreams, x: Tensor) -> Tensor:
    """Give independent N(0, I_d) tokens the stack's covariance within every sequence."""
    if not stack.input_gram and stack.input_correlation == 0.0:
        return x
    # Of the symmetric root, since a Gram matrix may be singular.
    values, vectors = np.linalg.eigh(stack.input_covariance)
    root = torch.as_tensor(vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T, dtype=x.dtype, device=x.device)
    return torch.cat([(root @ x.reshape(-1, stack.tokens, x.shape[2])).view_as(x) for x in streams.blocks(x)])
