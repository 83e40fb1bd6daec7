"""Faults to plant in a layer, or in the whole, of any of the families of Transformers that are probed."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from simulate.modules.layers import layer_lists

# How names of matrices end that write into the stream, but for ".weight".
_PROJECTIONS = ("o_proj", "c_proj", "output.dense", ".o", ".wo", "proj", "down", "down_proj", "linear2", "out_proj")


def _matrices(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, one) for name, one in layer.named_parameters() if one.ndim == 2)


def _last_matrix(layer: nn.Module) -> nn.Parameter:
    return list(_matrices(layer))[-1][1]


def _wrapped(layer: nn.Module, change: Callable[[Any, Any], Any], *, detach: bool = False) -> None:
    """Change what a layer gives: a tensor, or the first of a tuple; of its first tensor and its output."""
    plain = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        named = "hidden_states" in kwargs
        x = kwargs["hidden_states"] if named else args[0]
        if detach:
            x = x.detach()
            args, kwargs = (args, kwargs | {"hidden_states": x}) if named else ((x, *args[1:]), kwargs)
        y = plain(*args, **kwargs)
        return (change(x, y[0]), *y[1:]) if isinstance(y, tuple) else change(x, y)

    layer.forward = forward


def _without_residual(layer: nn.Module) -> None:
    if hasattr(layer, "intermediate"):  # BERT, whose norm stands behind the sum
        own = layer.output
        own.forward = lambda hidden, _: own.LayerNorm(own.dense(hidden))
    else:
        _wrapped(layer, lambda x, y: y - x)


def _without_norm(layer: nn.Module) -> None:
    owner, name = next(
        (parent, name)
        for parent in layer.modules()
        for name, one in parent.named_children()
        if "norm" in type(one).__name__.lower()
    )
    setattr(owner, name, nn.Identity())


def _scaled(factor: float) -> Callable[[nn.Module], None]:
    return lambda layer: _last_matrix(layer).data.mul_(factor)


def _not_a_number(layer: nn.Module) -> None:
    _last_matrix(layer).data[0, 0] = torch.nan


def _matrices_scaled(factor: float) -> Callable[[nn.Module], None]:
    def fault(layer: nn.Module) -> None:
        for _, one in _matrices(layer):
            one.data.mul_(factor)

    return fault


LOCAL: dict[str, Callable[[nn.Module], None]] = {
    "no residual connection": _without_residual,
    "a matrix 10 times too large": _scaled(10.0),
    "a matrix 5 times too small": _scaled(0.2),
    "a matrix of zeros": _scaled(0.0),
    "not a number": _not_a_number,
    "input detached": lambda layer: _wrapped(layer, lambda _, y: y, detach=True),
    "output 4 times too large": lambda layer: _wrapped(layer, lambda _, y: 4 * y),
    "a norm left out": _without_norm,
}
"""In one layer."""


def _of_all(change: Callable[[nn.Module], None]) -> Callable[[nn.Module, list[nn.Module]], None]:
    def fault(_: nn.Module, layers: list[nn.Module]) -> None:
        for layer in layers:
            change(layer)

    return fault


def _embeddings(module: nn.Module, layers: list[nn.Module]) -> None:
    inside = {id(one) for layer in layers for one in layer.parameters()}
    next(one for one in module.parameters() if one.ndim > 1 and id(one) not in inside and one.any()).data.mul_(50.0)


def _projections(_: nn.Module, layers: list[nn.Module]) -> None:
    for layer in layers:
        for name, one in _matrices(layer):
            if name.removesuffix(".weight").endswith(_PROJECTIONS):
                one.data.mul_(math.sqrt(2 * len(layers)))


GLOBAL: dict[str, Callable[[nn.Module, list[nn.Module]], None]] = {
    "all matrices of layers 3 times too large": _of_all(_matrices_scaled(3.0)),
    "all matrices of layers 30% too large": _of_all(_matrices_scaled(1.3)),
    "embeddings 50 times too large": _embeddings,
    "residual projections without 1/sqrt(2L)": _projections,
    "no residual connections at all": _of_all(_without_residual),
    "no first norm in any layer": _of_all(_without_norm),
}
"""In the whole."""


def planted_in(factory: Callable[[int, int], Any], fault: str, number: int) -> Callable[[int, int], Any]:
    """A family's factory with a fault, in the layer of that number (from 1) of its first list where it is local."""

    def made(width: int, depth: int) -> Any:
        module, batch = factory(width, depth)
        layers = list(layer_lists(module, (), depth)[0].layers)
        with torch.no_grad():
            if fault in LOCAL:
                LOCAL[fault](layers[number - 1])
            else:
                GLOBAL[fault](module, layers)
        return module, batch

    return made
