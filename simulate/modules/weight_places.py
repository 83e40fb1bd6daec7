"""Where the weights of a module are used, in which order its modules run, and what scalars stand between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from simulate.modules.factories import Made, seeded
from simulate.modules.layers import tensor_of
from simulate.modules.scalars import ScalarWatcher

ROOT = "(output)"
"""The name of the whole module among places."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A weight where it is used.

    Attributes:
        place: name of the innermost module that holds it and runs.
        parameter: its name in that module.
        weight: the first name in the whole module; weights that are tied have one.
        shape: of the weight.
        output: the last length of the module's output.
        inputs: of its input; 0 where that is no tensor of floats.
    """

    place: str
    parameter: str
    weight: str
    shape: tuple[int, ...]
    output: int
    inputs: int


@dataclass(frozen=True, slots=True, eq=False)
class WeightPlaces:
    """What one pass through a module shows.

    Attributes:
        owners: weights where they are used, in the order of the forward pass.
        order: the modules in the order in which they begin, with the last length of their output.
        scalars: place, quantity and value: multiplier and input_multiplier (scalars that a module's output, and its
            input, are multiplied by), logit_scale and key_size (of attention).
    """

    owners: tuple[Owner, ...]
    order: Mapping[str, int]
    scalars: tuple[tuple[str, str, float], ...]

    def by_place(self) -> dict[str, list[Owner]]:
        """Weights of every module that uses some."""
        owners: dict[str, list[Owner]] = {}
        for owner in self.owners:
            owners.setdefault(owner.place, []).append(owner)
        return owners


def named_places(module: nn.Module) -> dict[nn.Module, str]:
    """Names of modules; those that make a weight of others are part of who uses it."""
    return {part: name or ROOT for name, part in module.named_modules() if "parametrizations" not in name}


def weight_places(built: Made, seed: int) -> WeightPlaces:
    """Look at a module while it runs once.

    Args:
        built: module, batch and loss.
        seed: of whatever they draw.

    Raises:
        ProbeError: module or loss fails.
    """
    names = named_places(built.module)
    modules = {name: part for part, name in names.items()}
    order, inputs, before = dict[str, int](), dict[str, int](), dict[str, float]()
    watcher, running = ScalarWatcher(), list[str]()

    def enters(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = names[part]
        running.append(name)
        watcher.place = name
        order.setdefault(name, 0)
        x = tensor_of([*args, *kwargs.values()])
        if x is None:
            return
        inputs[name] = x.shape[-1] if x.ndim else 0
        factor, keys = watcher.factor_of(x)
        if factor != 1.0 and not any(_has_matrix(modules[str(key)]) for key in keys):
            watcher.release(keys)
            before[name] = factor

    def leaves(part: nn.Module, _: Any, output: Any) -> None:
        name = running.pop()
        watcher.place = running[-1] if running else ROOT
        if (y := tensor_of(output)) is not None:
            order[name] = y.shape[-1] if y.ndim else 0
            watcher.mark(name, y)

    handles: list[Any] = []
    for part in names:
        handles.append(part.register_forward_pre_hook(enters, with_kwargs=True))
        handles.append(part.register_forward_hook(leaves))
    try:
        with seeded(seed), watcher:
            built.fresh().forward()
    finally:
        for handle in handles:
            handle.remove()
    scalars = [(str(name), "multiplier", value) for name, value in watcher.multipliers.items()]
    scalars += [(name, "input_multiplier", value) for name, value in before.items()]
    for where, scale, size in watcher.logits:
        scalars += [(str(where), "logit_scale", scale), (str(where), "key_size", float(size))]
    return WeightPlaces(tuple(_owners(built.module, order, inputs)), order, tuple(scalars))


def _owners(module: nn.Module, order: Mapping[str, int], inputs: Mapping[str, int]) -> list[Owner]:
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    owners = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            continue
        place = name.rpartition(".")[0]
        while place and place not in order:
            place = place.rpartition(".")[0]
        inside = name[len(place) + 1 :] if place else name
        place = place or ROOT
        shape = tuple(parameter.shape)
        owners.append(Owner(place, inside, first[id(parameter)], shape, order[place], inputs.get(place, 0)))
    rank = {name: k for k, name in enumerate(order)}
    return sorted(owners, key=lambda owner: rank[owner.place])


def _has_matrix(part: nn.Module) -> bool:
    return any(parameter.ndim >= 2 for parameter in part.parameters(recurse=False))
