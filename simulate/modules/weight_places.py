"""Find which submodule uses each weight of a module, in which order, and which scalars are between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from simulate.modules.layers import tensor_of
from simulate.modules.scalars import ScalarWatcher, unwatched

ROOT = "(output)"
"""The name of the whole module among the submodules."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A weight of a module together with the submodule that uses it.

    Attributes:
        place: name of the innermost submodule that holds the weight and runs.
        parameter: the weight's name in that submodule.
        weight: the weight's first name in the whole module; tied weights share one.
        shape: the weight's shape.
        output: the last length of the submodule's output.
        inputs: the last length of its input; 0 if that is not a tensor of floats.
        vectors: number of input vectors of that length in a pass; for a submodule that runs several times, in the last
            run.
    """

    place: str
    parameter: str
    weight: str
    shape: tuple[int, ...]
    output: int
    inputs: int
    vectors: int


@dataclass(frozen=True, slots=True, eq=False)
class WeightPlaces:
    """The submodules that use each weight in one forward pass of a module.

    Attributes:
        owners: the uses of weights, in the order of the forward pass.
        order: the submodules in the order in which they begin, with the last length of their output.
        scalars: place, quantity and value: multiplier and input_multiplier (scalars that multiply a submodule's output
            and its input), logit_scale and key_size (of attention).
    """

    owners: tuple[Owner, ...]
    order: Mapping[str, int]
    scalars: tuple[tuple[str, str, float], ...]

    def by_place(self) -> dict[str, list[Owner]]:
        """Return the weights of a module in groups, by the submodule that uses them."""
        owners: dict[str, list[Owner]] = {}
        for owner in self.owners:
            owners.setdefault(owner.place, []).append(owner)
        return owners


def named_places(module: nn.Module) -> dict[nn.Module, str]:
    """Return the names of a module's submodules; a parametrization counts as part of the module that uses it."""
    return {part: name or ROOT for name, part in module.named_modules() if "parametrizations" not in name}


class PlaceWatcher:
    """A context manager that observes in a forward pass which submodules use which weights.

    `places` then returns the uses of weights.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._names = module, named_places(module)
        self._modules = {name: part for part, name in self._names.items()}
        self._order, self._before = dict[str, int](), dict[str, float]()
        self._inputs = dict[str, tuple[int, int]]()
        self._watcher, self._running, self._handles = ScalarWatcher(), list[str](), list[Any]()

    def __enter__(self) -> "PlaceWatcher":
        for part in self._names:
            self._handles.append(part.register_forward_pre_hook(self._enters, with_kwargs=True))
            self._handles.append(part.register_forward_hook(self._leaves))
        self._watcher.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watcher.__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _enters(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self._names[part]
        self._running.append(name)
        self._watcher.place = name
        self._order.setdefault(name, 0)
        with unwatched():
            x = tensor_of([*args, *kwargs.values()])
            if x is None:
                return
            self._inputs[name] = (x.shape[-1], x.shape[:-1].numel()) if x.ndim else (0, 0)
        factor, keys = self._watcher.factor_of(x)
        if factor != 1.0 and not any(
            parameter.ndim >= 2 for key in keys for parameter in self._modules[str(key)].parameters(recurse=False)
        ):
            self._watcher.release(keys)
            self._before[name] = factor

    def _leaves(self, _: nn.Module, args: Any, output: Any) -> None:
        name = self._running.pop()
        self._watcher.place = self._running[-1] if self._running else ROOT
        with unwatched():
            if (y := tensor_of(output)) is not None:
                self._order[name] = y.shape[-1] if y.ndim else 0
                self._watcher.mark(name, y)

    def places(self) -> WeightPlaces:
        """Return which submodules used which weights in the observed forward pass, and the scalars between them."""
        scalars = [(str(name), "multiplier", value) for name, value in self._watcher.multipliers.items()]
        scalars += [(name, "input_multiplier", value) for name, value in self._before.items()]
        for where, scale, size in self._watcher.logits:
            scalars += [(str(where), "logit_scale", scale), (str(where), "key_size", float(size))]
        return WeightPlaces(tuple(_owners(self._module, self._order, self._inputs)), self._order, tuple(scalars))


def _owners(module: nn.Module, order: Mapping[str, int], inputs: Mapping[str, tuple[int, int]]) -> list[Owner]:
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
        owners.append(Owner(place, inside, first[id(parameter)], shape, order[place], *inputs.get(place, (0, 0))))
    rank = {name: k for k, name in enumerate(order)}
    return sorted(owners, key=lambda owner: rank[owner.place])
