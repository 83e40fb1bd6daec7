"""Find trained tensors that are not registered as parameters of the module, so that no optimizer updates them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

Unregistered = tuple[str, tuple[int, ...]]
"""The attribute path of a tensor from the module ("" if unknown), and the tensor's shape."""

_REGISTRIES = ("_parameters", "_buffers", "_modules")


def unregistered(module: nn.Module, output: Tensor | None, loss: Tensor, asked: Iterable[Tensor]) -> list[Unregistered]:
    """Find tensors that require a gradient and affect the loss but are not parameters of the module.

    Args:
        module: the module.
        output: the module's output, with the autograd graph.
        loss: the loss of the output.
        asked: tensors that require a gradient for the measurement itself, which are left out.

    Returns:
        Attribute path and shape of each tensor: first tensors that an attribute holds, in the order of attributes;
            then, with path "", parameters on which the output depends and that no attribute holds. Tensors that
            `forward` makes itself, and parameters of the loss only, are left out.
    """
    known = {id(tensor) for tensor in (*module.parameters(), *asked)}
    leaves = {id(leaf): leaf for leaf in _leaves([loss]) if id(leaf) not in known}
    of_output = {id(leaf): leaf for leaf in _leaves([] if output is None else [output]) if id(leaf) not in known}
    named = {id(tensor): (path, tuple(tensor.shape)) for path, tensor in held_tensors(module)}
    used = {**leaves, **of_output}
    nameless = [leaf for key, leaf in of_output.items() if key not in named and isinstance(leaf, nn.Parameter)]
    return [*(entry for key, entry in named.items() if key in used), *(("", tuple(leaf.shape)) for leaf in nameless)]


def held_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the trainable tensors that a module holds in plain attributes instead of parameters, with their paths."""
    known = {id(parameter) for parameter in module.parameters()}
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute not in _REGISTRIES:
                for path, tensor in _tensors(f"{name}.{attribute}".lstrip("."), value):
                    if tensor.requires_grad and tensor.is_leaf and id(tensor) not in known:
                        known.add(id(tensor))
                        yield path, tensor


def _tensors(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield path and tensor for the tensors in a tensor, a module, or a list, tuple or dict of these."""
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        inside = [(f"{path}[{key!r}]", entry) for key, entry in entries]
    else:
        inside = [(path, value)]
    for place, entry in inside:
        if isinstance(entry, nn.Module):
            yield from ((f"{place}.{name}", parameter) for name, parameter in entry.named_parameters())
        elif isinstance(entry, Tensor):
            yield place, entry


def _leaves(roots: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors in an autograd graph that require a gradient and were not computed."""
    leaves: dict[int, Tensor] = {}
    nodes = []
    for root in roots:
        if root.grad_fn is not None:
            nodes.append(root.grad_fn)
        elif root.requires_grad:
            leaves[id(root)] = root
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves[id(leaf)] = leaf
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                nodes.append(after)
    return list(leaves.values())
