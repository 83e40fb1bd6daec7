"""Gradients and hidden states of translation models at initialization, on mini-batches of a parallel text."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from simulate.counts import check_count
from simulate.modules.factories import seeded
from simulate.runs.cell import check_device
from studies.parallel_text import END, PADDING, Ids, ParallelText
from studies.translation_model import Translation, Translator, padded, translation_loss

EXCESSES = np.round(np.arange(0.0, 0.51, 0.02), 2)
"""The ε of the share of hidden states whose squared norm is beyond 1 + ε of the mean."""

ALMOST = float(np.log(1.1))
"""A norm that changes by less than a tenth from layer to layer is called almost the same."""

# Sentences of like lengths go through the model together, which spares most of the padding.
_TOGETHER = 48


def measure(
    translation: Translation, text: ParallelText, *, batches: int, batch_tokens: int, seed: int, device: str = "cpu"
) -> pd.DataFrame:
    """One model at initialization.

    Args:
        translation: the model.
        text: of its vocabulary.
        batches: mini-batches.
        batch_tokens: target tokens of a mini-batch, at most.
        seed: of matrices, mini-batches and dropout; torch's global generator is as before in the end.
        device: where.

    Returns:
        Columns part ("encoder", "decoder", "" for the model), layer (0 for the model), matrix, statistic and value.
        Of W1, W2, WQ, WK, WV, WO, and of XQ .. XO of the attention to the encoder: "mean norm", E‖∇‖ over mini-batches,
        "norm of mean", the norm of their average, and of two or more "expected norm", ‖E ∇‖: the square of a mean of B
        has Var ∇/B too much, which is taken off. Of the model: "loss", "tokens" and "pairs" of a mini-batch, "effective
        pairs" (tokens squared over the sum of squared lengths). Of every layer "excess 0.1", the share of tokens whose
        ‖x‖² is beyond 1.1 of its mean, x the last residual sum (Post-LN: x5, Pre-LN: x_{l+1}); of the last of the
        decoder "energy", the mean of ‖x‖²/d, and "excess ε" of more ε.

    Raises:
        ValueError: an argument is outside its range, or vocab is not the text's.
    """
    check_count("batches", batches, 1)
    check_count("batch_tokens", batch_tokens, 1)
    check_count("seed", seed, 0)
    check_device(device)
    if translation.vocab != text.vocab:
        raise ValueError(f"vocab must be the text's {text.vocab}, got {translation.vocab}.")
    generator = np.random.default_rng(seed)
    with seeded(seed):
        model = Translator(translation).to(device)
        parameters = matrices(model)
        sums = {name: torch.zeros_like(_part(p.detach(), name[2])) for name, p in parameters.items()}
        norms: dict[tuple[str, int, str], list[Tensor]] = {name: [] for name in parameters}
        losses: list[float] = []
        sizes, states = [], dict[tuple[str, int], list[Tensor]]()
        for batch, _ in zip(text.batches(batch_tokens, generator), range(batches), strict=False):
            with layer_energies(model, states):
                loss, lengths = _backward(model, text, batch, generator, device)
            losses.append(loss)
            sizes.append((lengths.sum(), len(lengths), lengths.sum() ** 2 / (lengths**2).sum()))
            for place, parameter in parameters.items():
                if parameter.grad is not None:  # an encoder that nothing attends to has none
                    gradient = _part(parameter.grad, place[2])
                    norms[place].append(torch.linalg.vector_norm(gradient))
                    sums[place] += gradient
            model.zero_grad(set_to_none=True)
        rows = list(_gradient_rows(norms, sums, batches))
    means = zip(("loss", "tokens", "pairs", "effective pairs"), [np.mean(losses), *np.mean(sizes, axis=0)], strict=True)
    rows += [("", 0, "", name, float(mean)) for name, mean in means]
    rows += _state_rows(states, translation.depth)
    return pd.DataFrame(rows, columns=["part", "layer", "matrix", "statistic", "value"])


def _gradient_rows(
    norms: dict[tuple[str, int, str], list[Tensor]], sums: dict[tuple[str, int, str], Tensor], batches: int
) -> Iterator[tuple[str, int, str, str, float]]:
    """The rows of every matrix that has gradients, from their norms and their sum over mini-batches."""
    for place, of_batches in norms.items():
        if of_batches:
            whole = float(torch.linalg.vector_norm(sums[place]) / batches)
            yield *place, "mean norm", float(torch.stack(of_batches).mean())
            yield *place, "norm of mean", whole
            if batches > 1:
                mean_square = sum(float(norm) ** 2 for norm in of_batches) / batches
                square = (batches * whole**2 - mean_square) / (batches - 1)
                yield *place, "expected norm", max(0.0, square) ** 0.5


def _state_rows(states: dict[tuple[str, int], list[Tensor]], depth: int) -> Iterator[tuple[str, int, str, str, float]]:
    """The rows of every layer's hidden states, from the mean squares of their tokens."""
    for layer, batches in states.items():
        energies = torch.cat(batches)
        relative = (energies / energies.mean()).cpu().numpy()
        if layer == ("decoder", depth):
            yield *layer, "", "energy", float(energies.mean())
        for e in EXCESSES if layer == ("decoder", depth) else (0.1,):
            yield *layer, "", f"excess {e:g}", float((relative > 1 + e).mean())


_THIRDS = {"WQ": 0, "WK": 1, "WV": 2, "XQ": 0, "XK": 1, "XV": 2}


def matrices(model: Translator) -> dict[tuple[str, int, str], nn.Parameter]:
    """The parameter that holds every matrix of the layers, by part, layer and role; three share one."""
    parameters: dict[tuple[str, int, str], nn.Parameter] = {}
    for part, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        layer: Any  # torch.nn declares its layers' attributes as modules or tensors
        for number, layer in enumerate(layers, start=1):
            parameters[part, number, "W1"], parameters[part, number, "W2"] = layer.linear1.weight, layer.linear2.weight
            for kind, attention in (("W", layer.self_attn), ("X", getattr(layer, "multihead_attn", None))):
                if attention is not None:
                    for role in "QKV":
                        parameters[part, number, kind + role] = attention.in_proj_weight
                    parameters[part, number, kind + "O"] = attention.out_proj.weight
    return parameters


def gradient_norms(model: Translator) -> dict[tuple[str, int, str], Tensor]:
    """‖∇‖_F of every matrix of the layers, as the parameters have it; none of what the loss does not depend on."""
    return {
        place: torch.linalg.vector_norm(_part(parameter.grad, place[2]))
        for place, parameter in matrices(model).items()
        if parameter.grad is not None
    }


def _part(values: Tensor, matrix: str) -> Tensor:
    """Of queries, keys and values, which are one parameter, a third."""
    return values.chunk(3)[_THIRDS[matrix]] if matrix in _THIRDS else values


def _backward(
    model: Translator, text: ParallelText, batch: Ids, generator: np.random.Generator, device: str
) -> tuple[float, Ids]:
    """The gradients of a mini-batch's loss, averaged over its target tokens, in the parameters; and pairs' lengths."""
    lengths = np.array([len(text.targets[pair]) - 1 for pair in batch])
    total, loss = int(lengths.sum()), 0.0
    order = np.argsort(lengths, kind="stable")
    for pairs in np.array_split(batch[order], -(-len(batch) // _TOGETHER)):
        source, target = (padded([ids[pair] for pair in pairs]).to(device) for ids in (text.sources, text.targets))
        labels = target[:, 1:]
        if not model.translation.real_labels:
            drawn = torch.as_tensor(generator.integers(END + 1, text.vocab, labels.shape), device=device)
            labels = torch.where(labels == PADDING, labels, drawn)
        inputs = target[:, :-1].masked_fill(labels == PADDING, PADDING)
        part = translation_loss(model.translation, model(source, inputs), labels, reduction="sum") / total
        part.backward()
        loss += float(part.detach())
    return loss, lengths


@contextmanager
def layer_energies(model: Translator, states: dict[tuple[str, int], list[Tensor]]) -> Iterator[None]:
    """Append ‖x‖²/d of every layer's last residual sum, of all tokens that are words."""
    words: dict[str, Tensor] = {}

    def ids(_: nn.Module, args: tuple[Tensor, Tensor]) -> None:
        words["encoder"], words["decoder"] = (tokens != PADDING for tokens in args)

    def keep(place: tuple[str, int], x: Tensor) -> None:
        states.setdefault(place, []).append(x.detach().square().mean(-1)[words[place[0]]])

    handles = [model.register_forward_pre_hook(ids)]
    for part, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        layer: Any  # torch.nn declares its layers' attributes as modules or tensors
        for number, layer in enumerate(layers, start=1):
            place = part, number
            if model.translation.placement == "pre":
                handles.append(layer.register_forward_hook(lambda _, __, x, place=place: keep(place, x)))
            else:
                norm = getattr(layer, "norm3", layer.norm2)
                handles.append(norm.register_forward_pre_hook(lambda _, args, place=place: keep(place, args[0])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
