"""Find the layers of a module: lists of modules of one class that run one after another."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class LayerList:
    """A list of layers that run one after another in a module, such as "encoder.layers".

    Attributes:
        name: the list's name in the module, such as "encoder.layers"; the module's class if it is the list itself.
        layers: the layers, in order.
        names: the layers' names in the module.
        takers: for layers without a forward of their own, the module in each layer that takes the layer's input,
            followed by the module that runs after the last layer, if any.
        last_seen: whether the module after the last layer takes the last layer's output.
        unseen: the reason why layers without a forward of their own are not measured; "" if they are measured.
        apart: modules outside of the layers that run after few of them: the layer's number, name and module. The
            output of such a layer is not the next layer's input, and is not measured.
    """

    name: str
    layers: tuple[nn.Module, ...]
    names: tuple[str, ...]
    takers: tuple[nn.Module, ...] = ()
    last_seen: bool = False
    unseen: str = ""
    apart: tuple[tuple[int, str, nn.Module], ...] = ()


def layer_lists(module: nn.Module, globs: Sequence[str], depth: int) -> list[LayerList]:
    """Find the lists of layers in a module, automatically or by glob patterns of the layers' names.

    Automatically found are the outermost lists of modules of one or a few classes.

    If some lists have `depth` modules, only these are returned.

    Raises:
        ValueError: a glob pattern is invalid or matches nothing, or the module has no list of layers.
    """
    globs = (globs,) if isinstance(globs, str) else globs
    if not isinstance(globs, Sequence) or not all(isinstance(glob, str) and glob for glob in globs):
        raise ValueError(f"layers must be globs such as 'encoder.layers.*', got {globs!r}.")
    if globs:
        return [_named(module, glob) for glob in globs]
    lists: dict[str, LayerList] = {}
    for name, submodule in module.named_modules():
        if any(not other or name.startswith(f"{other}.") for other in lists):
            continue
        children = tuple(submodule.children())
        kinds = len({type(child) for child in children})
        # Layers of several classes take turns in a list; the parts of one layer are each of its own.
        taking_turns = isinstance(submodule, nn.ModuleList) and 1 < kinds <= len(children) // 2
        # A Sequential of two linear maps is no list of layers: a layer has parts.
        listed = isinstance(submodule, nn.ModuleList | nn.Sequential) and (kinds == 1 or taking_turns)
        if listed and all(list(c.children()) for c in children) and not _are_stages(children):
            paths = tuple(f"{name}.{child}".lstrip(".") for child, _ in submodule.named_children())
            lists[name] = LayerList(name or type(module).__name__, children, paths)
    deep = [part for part in lists.values() if len(part.layers) == depth]
    if not lists:
        names = ", ".join(name for name, _ in module.named_children()) or "no modules"
        raise ValueError(
            f"layers must be given for {type(module).__name__!r}, which has no list of modules of one class that "
            "have parts of their own (a list of nn.Linear does not count): globs such as 'encoder.layers.*' name "
            f"them; it holds {names}. A module without layers is probed as it is, by a factory of no width and depth."
        )
    return deep or list(lists.values())


def _are_stages(children: Sequence[nn.Module]) -> bool:
    """Return whether modules are the stages of a pyramid: lists of layers with parameters of different shapes.

    The members of a list are compared by their places, since names such as "block2-0" hold the stage's number.
    """
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for child in children:
        for place, part in enumerate(child.children() if isinstance(child, nn.ModuleList | nn.Sequential) else [child]):
            for name, parameter in part.named_parameters():
                shapes.setdefault(f"{place}.{name}", set()).add(tuple(parameter.shape))
    inner = (part for child in children for part in child.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    lists = (list(part.children()) for part in inner)
    listed = any(layers and len({*map(type, layers)}) == 1 and list(layers[0].children()) for layers in lists)
    return listed and any(len(of_name) > 1 for of_name in shapes.values())


def _named(module: nn.Module, glob: str) -> LayerList:
    """Return the modules whose names match a glob pattern, part by part.

    Raises:
        ValueError: no module matches.
    """
    parts = glob.split(".")
    modules: dict[str, nn.Module] = {}
    for name, submodule in module.named_modules():
        own_parts = name.split(".")
        if len(own_parts) == len(parts) and all(fnmatchcase(a, b) for a, b in zip(own_parts, parts, strict=True)):
            modules[name] = submodule
    if not modules:
        names = [name for name, _ in module.named_modules() if name.count(".") == glob.count(".")]
        raise ValueError(
            f"layers must name modules of {type(module).__name__!r}, but {glob!r} matches none of {names[:8]}."
        )
    return LayerList(glob.removesuffix(".*"), tuple(modules.values()), tuple(modules))


@contextmanager
def watched_members(lists: Sequence[LayerList]) -> Iterator[dict[nn.Parameter, tuple[str, int, str]]]:
    """Watch which experts of each layer receive no tokens, in a `with` block.

    The block collects the parameters of such experts or other members of a layer.

    Members are modules of one class in a list within a layer. A member has no tokens if it did not run while another
    did, or if its gradient is 0 while another's is not. A member whose output is detached from gradients does not
    count. In training mode a whole layer counts too if none of its modules ran while other layers' did, because random
    depth left it out. The yielded dictionary has list, layer and name by parameter, and is filled at the end.
    """
    ran: set[nn.Module] = set()
    asked: set[nn.Module] = set()

    def runs(member: nn.Module, _: Any, output: Any) -> None:
        ran.add(member)
        y = tensor_of(output)
        if y is not None and y.requires_grad:
            asked.add(member)

    members = {
        (part.name, number, f"{name}.{place}"): (member, siblings)
        for part in lists
        for number, layer in enumerate(part.layers, 1)
        for name, siblings in layer.named_modules()
        if name and isinstance(siblings, nn.ModuleList) and len(set(map(type, siblings))) == 1
        for place, member in siblings.named_children()
    }
    layers = [(part, layer) for part in lists for layer in part.layers if layer.training]
    watched = {member for member, _ in members.values()} | {inner for _, layer in layers for inner in layer.modules()}
    handles = [member.register_forward_hook(runs) for member in watched]
    idle: dict[nn.Parameter, tuple[str, int, str]] = {}
    try:
        yield idle
    finally:
        for handle in handles:
            handle.remove()
        counts = {member for member, _ in members.values() if any(_has_gradient(p) for p in member.parameters())}
        for where, (member, siblings) in members.items():
            silent = member not in ran and not ran.isdisjoint(siblings)
            nowhere = member in asked - counts and not counts.isdisjoint(siblings)
            if silent or nowhere:
                idle |= dict.fromkeys(member.parameters(), where)
        for part, layer in layers:
            if ran.isdisjoint(layer.modules()) and any(not ran.isdisjoint(other.modules()) for other in part.layers):
                idle |= dict.fromkeys(layer.parameters(), (part.name, part.layers.index(layer) + 1, ""))


def _has_gradient(parameter: nn.Parameter) -> bool:
    gradient = parameter.grad
    dense = gradient.coalesce().values() if gradient is not None and gradient.is_sparse else gradient
    return dense is not None and bool(dense.any())


def place_of(name: str, of_layer: Mapping[str, tuple[str, int]]) -> tuple[str, int, str]:
    """Return where a parameter or module is: the list of layers, the layer's number, and the name in the layer.

    It is ("", 0, name) outside of layers.
    """
    parts = name.split(".")
    for count in range(1, len(parts)):
        if (place := of_layer.get(".".join(parts[:count]))) is not None:
            return (*place, ".".join(parts[count:]))
    return "", 0, name


def token_axis(module: nn.Module) -> int:
    """Return the axis of positions in a module's inputs: -2, or 0 if torch's attention has positions first.

    The same holds for recurrent modules of `torch.nn`.
    """
    kinds = nn.MultiheadAttention, nn.RNNBase
    first = [part.batch_first for kind in kinds for part in module.modules() if isinstance(part, kind)]
    return 0 if first and not first[0] else -2


def tensor_of(values: Any) -> Tensor | None:
    """Return the first floating-point tensor in a layer's arguments or output; nested tensors are skipped."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() and not values.is_nested else None
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, tuple | list):
        return next((tensor for tensor in map(tensor_of, values) if tensor is not None), None)
    return None
