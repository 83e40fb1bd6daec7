"""Describe layers of `torch.nn` as a network that theory can predict (`Stack`), from their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from simulate.modules.layers import LayerList
from theory.stack import Activation, Stack
from theory.stack.initializations import INITIALIZATIONS

# How far the variance of a drawn matrix may be from its initialization's.
_CLOSE = 0.1


def nearest_stack(lists: Sequence[LayerList], first: Mapping[str, float]) -> Stack | None:
    """Return the network description (`Stack`) that fits a module's `torch.nn.TransformerEncoder` layers.

    It has Gaussian inputs like theirs.

    Args:
        lists: the lists of layers of a module.
        first: the measured numbers of the first layer by quantity, as in `simulate.Probed`.

    Returns:
        The Stack, whose vocabulary and loss are defaults. None if the module does not have exactly one list of
        `torch.nn.TransformerEncoder` layers, uses dropout, or has matrix variances of no initialization that a Stack
        supports.
    """
    layers = [layer for part in lists for layer in part.layers if isinstance(layer, nn.TransformerEncoderLayer)]
    if len(lists) != 1 or len(layers) != len(lists[0].layers):
        return None
    energy, tokens = first.get("input_energy", 1.0), int(first.get("input_positions", 1))
    stack = _of_encoder(layers, tokens)
    if stack is None or not energy > 0:
        return stack
    least = -1.0 / (tokens - 1) if tokens > 1 else 0.0
    correlation = min(max(first.get("input_correlation", 0.0) / energy, least * (1 - 1e-9)), 1.0)
    return replace(stack, embedding_scale=energy**0.5, input_correlation=correlation)


def _of_encoder(layers: Sequence[nn.TransformerEncoderLayer], tokens: int) -> Stack | None:
    first = layers[0]
    width, hidden = first.linear1.in_features, first.linear1.out_features
    weight = first.self_attn.in_proj_weight
    dropped = first.training and max(part.p for part in first.modules() if isinstance(part, nn.Dropout)) > 0
    activation = _activation(first)
    norms = all(isinstance(norm, nn.LayerNorm) for layer in layers for norm in (layer.norm1, layer.norm2))
    if weight is None or dropped or activation is None or not norms:
        return None
    gains = {
        "WV": _variance(weight[2 * width :]) * width,
        "WO": _variance(first.self_attn.out_proj.weight) * width,
        "W1": _variance(first.linear1.weight) * width,
        "W2": _variance(first.linear2.weight) * hidden,
    }
    shapes = {"W1": (width, hidden), "W2": (hidden, width)}
    for name, initialization in INITIALIZATIONS.items():
        usual = {role: initialization.gain(role, *shapes.get(role, (width, width))) for role in gains}
        if all(abs(gains[role] / usual[role] - 1) < _CLOSE for role in gains):
            return Stack(
                placement="pre" if first.norm_first else "post", width=width, depth=len(layers), tokens=tokens,
                ffn_ratio=hidden / width, activation=activation, initialization=name, output_projection="random",
                heads=first.self_attn.num_heads, norm_epsilon=first.norm1.eps,
                query_key_scale=round((_variance(weight[: 2 * width]) * width) ** 0.5, 2),
            )  # fmt: skip
    return None


def _variance(weight: Tensor) -> float:
    return float(weight.detach().float().square().mean())


def _activation(layer: nn.TransformerEncoderLayer) -> Activation | None:
    chosen = layer.activation
    if chosen is torch.nn.functional.relu or isinstance(chosen, nn.ReLU):
        return "relu"
    return "gelu" if chosen is torch.nn.functional.gelu or isinstance(chosen, nn.GELU) else None
