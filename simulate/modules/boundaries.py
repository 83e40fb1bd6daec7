"""Find where layers begin and end in the autograd graph, for layers that have no `forward` method.

Layers that are an `nn.ModuleDict` or `nn.ModuleList` are never called. Their input is the input of their first module,
x in `x + f(norm(x))`, and their output is the next layer's input.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from simulate.modules.factories import Made
from simulate.modules.kept_state import kept_state
from simulate.modules.layers import LayerList, tensor_of

_NAMED = 3
# Nodes of the graph that a residual connection does not pass.
_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "linear", "convolution", "attention", "rnn", "checkpoint")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a module: the module's name, the graph node that made its input, and the input's shape."""

    name: str
    node: Any
    shape: tuple[int, ...]


def with_boundaries(built: Made, lists: Sequence[LayerList], seed: int) -> list[LayerList]:
    """Find where layers without a `forward` method begin and end, or why this cannot be found.

    The result is lists of layers with these boundaries. This takes a forward pass if there are such lists.

    Args:
        built: module and batch; the module is left unchanged.
        lists: the module's lists of layers.
        seed: random seed of the module.

    Raises:
        ProbeError: the module fails.
    """
    if not any(map(without_forward, lists)):
        return list(lists)
    calls: list[_Call] = []

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = tensor_of([*args, *kwargs.values()])
            if x is not None:
                calls.append(_Call(name, x.grad_fn, tuple(x.shape)))

        return hook

    handles = [
        part.register_forward_pre_hook(hook_of(name), with_kwargs=True)
        for name, part in built.module.named_modules() if name
    ]  # fmt: skip
    try:
        with kept_state(built.module, seed):
            output = built.fresh().output()
    finally:
        for handle in handles:
            handle.remove()
    bounded = [_bounded(built.module, part, calls) if without_forward(part) else part for part in lists]
    del output
    return bounded


def unseen_layers(lists: Sequence[LayerList], rows: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """Return the reason why a list of layers was not measured, for each such list of a module.

    Args:
        lists: the lists that `with_boundaries` returned.
        rows: the measured rows: part, layer, parameter, quantity and value.
    """
    measured = {row[0] for row in rows if row[3] == "hidden_energy"}
    return {
        part.name: f"{', '.join(part.names[:_NAMED])}{', ...' * (len(part.names) > _NAMED)} "
        f"{part.unseen or 'are never called'}"
        for part in lists
        if part.name not in measured
    }


def without_forward(part: LayerList) -> bool:
    """Return whether the layers in a list have no `forward` method of their own."""
    # One that is set on the layer itself counts.
    return any(getattr(layer.forward, "__func__", None) is nn.Module.forward for layer in part.layers)


def _bounded(module: nn.Module, part: LayerList, calls: Sequence[_Call]) -> LayerList:
    within = [[k for k, call in enumerate(calls) if call.name.startswith(f"{name}.")] for name in part.names]
    if not all(within):
        return replace(part, unseen="are not all used: in some no module is called")
    counts = Counter(id(parameter) for layer in part.layers for parameter in set(layer.parameters()))
    learned = [{id(p) for p in layer.parameters() if p.requires_grad and counts[id(p)] == 1} for layer in part.layers]
    names = [list(dict.fromkeys(calls[k].name.removeprefix(f"{name}.") for k in of))
             for name, of in zip(part.names, within, strict=True)]  # fmt: skip
    for inner in [name for name in names[0] if all(name in of for of in names)]:
        entries = [
            next(calls[k] for k in of if calls[k].name == f"{name}.{inner}")
            for name, of in zip(part.names, within, strict=True)
        ]
        if _enters(entries, learned) and _carries(entries):
            last = max(within[-1])
            after = next((call for call in calls[last + 1 :] if not call.name.startswith(f"{part.names[-1]}.")), None)
            takers = [module.get_submodule(call.name) for call in (*entries, *((after,) if after else ()))]
            seen = after is not None and _made_alike(after, entries) and bool(_reached(after.node, set()) & learned[-1])
            apart = _apart(
                module, part, calls, [(max(of), calls.index(e)) for of, e in zip(within, entries[1:], strict=False)]
            )
            return replace(part, takers=tuple(takers), last_seen=seen, apart=apart)
    return replace(part, unseen="have no forward, and their first modules do not take the residual stream")


def _apart(
    module: nn.Module, part: LayerList, calls: Sequence[_Call], gaps: Sequence[tuple[int, int]]
) -> tuple[tuple[int, str, nn.Module], ...]:
    """Return the modules with weights that run between few pairs of layers, such as one that merges tokens.

    Modules that run between most pairs, such as norms in a separate list, belong to the layers' common form.
    """
    inside = tuple(f"{name}." for name in part.names)
    weighted = {name for name, of in module.named_modules() if not name.startswith(inside) and [*of.parameters()]}
    between = [
        (number, name, module.get_submodule(name))
        for number, (last, entry) in enumerate(gaps, 1)
        for name in [call.name for call in calls[last + 1 : entry] if call.name in weighted][:1]
    ]
    return tuple(between) if 2 * len(between) <= len(gaps) else ()


def _below(node: Any, visited: set[Any], ends: Sequence[str] = ()) -> Iterator[Any]:
    """Yield a graph node and all nodes on which it depends, without earlier visited nodes.

    Args:
        node: the node.
        visited: the visited nodes, to which new ones are added.
        ends: words in the names of nodes below which nothing is visited.
    """
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if here is None or here in visited:
            continue
        visited.add(here)
        yield here
        if not any(word in here.name().lower() for word in ends):
            waiting += [before for before, _ in here.next_functions]


def _reached(node: Any, visited: set[Any]) -> set[int]:
    """Return the parameters on which a graph node depends, but no earlier visited node."""
    return {id(here.variable) for here in _below(node, visited) if hasattr(here, "variable")}


def _enters(entries: Sequence[_Call], learned: Sequence[set[int]]) -> bool:
    """Return whether each input depends on the preceding layer and on no later layer."""
    visited = set[Any]()
    for number, call in enumerate(entries):
        reached = _reached(call.node, visited)
        of_layers = {k for k, parameters in enumerate(learned) if reached & parameters}
        if of_layers != ({number - 1} if number else set()):
            return False
    return True


def _carries(entries: Sequence[_Call]) -> bool:
    """Return whether most inputs reach the next input without matrix products, as in a residual stream."""
    pairs = [(a.node, b.node) for a, b in zip(entries, entries[1:], strict=False) if a.node is not None]
    reaching = sum(any(here is before for here in _below(after, set(), _PRODUCTS)) for before, after in pairs)
    return 2 * reaching >= max(len(pairs), 1)


def _made_alike(after: _Call, entries: Sequence[_Call]) -> bool:
    """Return whether the input of the module after the last layer is made by the same operation as layers' inputs.

    The operation may also be one that ends a branch, if the branch is not added to the stream. Another operation, such
    as a norm as a function or a scalar, would change the stream before that module.
    """
    operations = {call.node.name() for call in entries[1:]}
    added = [call.node for call in entries[1:] if call.node.name().startswith("Add")]
    operations |= {before.name() for node in added for before, _ in node.next_functions if before is not None}
    return after.node is not None and after.shape == entries[-1].shape and after.node.name() in operations


def boundary_hooks(
    part: LayerList, begin: Callable[[int, Tensor], None], end: Callable[[int, Tensor | None], None]
) -> list[Any]:
    """Add hooks that report when a layer without a `forward` method begins and ends; return their handles.

    Args:
        part: a list of layers with takers.
        begin: called with a layer's number and its input.
        end: called with a layer's number and its output, or None if the output is not seen.
    """
    running = 0

    def hook_of(place: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal running
            x = tensor_of([*args, *kwargs.values()])
            # A module may be called several times; the first call in its turn counts. Tied layers begin again.
            again = place == 1 and running == len(part.layers) > 1
            if x is None or (place != running + 1 and not again):
                return
            if running and running not in {number for number, *_ in part.apart}:
                end(running, x if place <= len(part.layers) or part.last_seen else None)
            running = place if place <= len(part.layers) else 0
            if running:
                begin(running, x)

        return hook

    def outside(number: int, *_: Any) -> None:
        if running == number:
            end(number, None)

    takers = [taker.register_forward_pre_hook(hook_of(k), with_kwargs=True) for k, taker in enumerate(part.takers, 1)]
    return takers + [apart.register_forward_pre_hook(partial(outside, k)) for k, _, apart in part.apart]
