"""Attention written out, with what people get wrong in it, in place of that of a family's layers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers.model_families import HEADS, Block
from tests.helpers.single_modules import Layer

SEES = ("earlier", "all", "later")


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, over: int = -1, sees: str = "earlier",
    mixed: bool = False,
) -> Tensor:  # fmt: skip
    """Of (samples, heads, positions, d_k) to (samples, positions, heads, d_k).

    Args:
        q: queries.
        k: keys.
        v: values.
        scale: of q·k; 1/sqrt(d_k) if left out.
        over: the axis of softmax, -1 of keys and -2 of queries.
        sees: which positions a query sees beside its own, one of `SEES`.
        mixed: whether heads and positions are not transposed back, but taken for one another.
    """
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device)
    hidden = {"earlier": ones.triu(1), "all": ~ones, "later": ones.tril(-1)}[sees]
    y = logits.masked_fill(hidden, -1e9).softmax(over) @ v
    samples, heads, positions, size = y.shape
    return y.reshape(samples, positions, heads, size) if mixed else y.transpose(1, 2)


def rewrite(module: nn.Module, layers: list[nn.Module], chosen: list[nn.Module], **fault: Any) -> None:
    """Let some of a module's layers attend with a fault, as arguments of `attend` say; the others as they did."""
    if isinstance(layers[0], Layer):
        for layer in chosen:
            _in_decoder(layer, fault)
    elif isinstance(layers[0], Block):
        for layer in chosen:
            _in_block(layer, fault)
    else:
        _in_transformers(module, layers, chosen, fault)


def _in_decoder(layer: nn.Module, fault: dict[str, Any]) -> None:
    attention = layer.attention

    def forward(x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (attention.q, attention.k, attention.v))
        return attention.o(attend(q, k, v, **fault).flatten(2))

    attention.forward = forward


def _in_block(layer: nn.Module, fault: dict[str, Any]) -> None:
    sees = "earlier" if layer.causal else "all"

    def forward(x: Tensor) -> Tensor:
        parts = layer.qkv(layer.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        x = x + layer.proj(attend(q, k, v, **{"sees": sees} | fault).flatten(2))
        return x + layer.down(functional.gelu(layer.up(layer.norm2(x))))

    layer.forward = forward


def _in_transformers(
    module: nn.Module, layers: list[nn.Module], chosen: list[nn.Module], fault: dict[str, Any]
) -> None:
    """By an interface of their own, which `transformers` has for this; functions that it does not know get no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register("written out", _interface)
    module.config._attn_implementation = "written out"
    sees = "earlier" if "CausalLM" in type(module).__name__ or "LMHead" in type(module).__name__ else "all"
    for layer in layers:
        for part in layer.modules():
            part.attends = {"sees": sees} | (fault if layer in chosen else {})


def _interface(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return attend(q, k, v, **module.attends), None
