"""Split the change of a module's output: the part due to its own weight updates, and the part from its input.

The own part is measured at the inputs of the first pass.

A module runs once more with its updated weights, and once for each updated weight alone. A bias that is added last
needs no pass, and neither does a single weight next to such a bias.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from simulate.modules.layers import tensor_of
from simulate.modules.tensor_sizes import Size, size_of_difference

# The parameter that is added to the output, by entries or by channels.
_ADDED: Mapping[type[nn.Module], str] = {
    nn.Linear: "bias", nn.LayerNorm: "bias", nn.Conv1d: "bias", nn.Conv2d: "bias", nn.Conv3d: "bias",
    nn.MultiheadAttention: "out_proj.bias",
}  # fmt: skip

# They draw nothing, so that their forward with other weights is all that a pass takes.
_STEADY = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)

RandomState = tuple[Tensor, Tensor | None, int]


@dataclass(frozen=True, slots=True)
class Move:
    """The difference between a weight's current value and its value before the first step.

    Attributes:
        difference: difference of a vector from its first value; empty for other tensors.
        size: norm and number of entries of the difference.
    """

    difference: Tensor
    size: Size


def moves_of(now: Mapping[str, Tensor], firsts: Mapping[str, Tensor]) -> dict[str, Move]:
    """Return the change of every tensor that differs from its value before the first step, by name."""
    moved = [name for name, first in firsts.items() if not torch.equal(now[name], first)]
    moves = dict.fromkeys(moved, Move(Tensor(), Size(Tensor(), 0)))
    alike: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name in moved:
        if (first := firsts[name]).ndim == 1:
            alike.setdefault((first.dtype, first.device), []).append(name)
    for names in alike.values():
        differences = torch._foreach_sub([now[name].detach() for name in names], [firsts[name] for name in names])
        norms = torch._foreach_norm([difference.float() for difference in differences])
        moves |= {
            name: Move(difference, Size(norm, difference.numel()))
            for name, difference, norm in zip(names, differences, norms, strict=True)
        }
    return moves


def draws_nothing(part: nn.Module) -> bool:
    """Return whether a module can be run again safely: no random numbers, submodules or further hooks.

    Its `forward` alone is then its pass.
    """
    return type(part) in _STEADY and _plain(part) and not part._modules


@dataclass(frozen=True, slots=True)
class Start:
    """The inputs and the output of a module in the forward pass before the first optimizer step.

    Attributes:
        args: copies of the positional arguments.
        kwargs: copies of the keyword arguments.
        y: a copy of the output.
        state: `random_state` before it ran; None if it uses no random numbers.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    y: Tensor
    state: RandomState | None


def own_changes(
    part: nn.Module, owned: Sequence[str], firsts: Mapping[str, Tensor], moves: Mapping[str, Move], start: Start,
    y: Tensor,
) -> tuple[Size | None, dict[str, Size]]:  # fmt: skip
    """Return how much a module's output changes by its own weight updates, and how much by its changed input.

    The module runs once more with its first inputs and updated weights.

    Args:
        part: a module with one forward pre-hook and one forward hook of the caller, which ignore this pass.
        owned: names of the weights that count as the module's own.
        firsts: the values before the first step of all weights in the module and its submodules, by name.
        moves: the changes of the own weights that have moved, by name.
        start: the module's inputs and output before the first step.
        y: the module's current output.

    Returns:
        The size of the passed-on change: y minus the output for the first inputs with the own weights updated and all
        other weights at their first values; None if that is not a tensor of floats of y's shape. Then, for each own
        weight, the size of the change of the first output by its update alone. Call this without gradients, as in
        torch.no_grad().
    """
    first_y = start.y
    # What has not moved makes nothing, and rounding would make something of it.
    sizes = {name: Size(y.new_zeros((), dtype=torch.float32), 1) for name in owned if name not in moves}
    moved = [name for name in owned if name in moves]
    added, last = _ADDED.get(type(part), ""), Tensor()
    if added in moved and _plain(part):
        # Of a convolution every channel has as many outputs, so that the means are one.
        last, sizes[added] = moves[added].difference, moves[added].size
        if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            last = last.reshape(-1, *[1] * len(part.kernel_size))
    rest = [name for name in moved if name not in sizes]
    whole = _again(part, firsts, moved, start) if rest else first_y + last if moved else first_y
    if whole is None:
        return None, {}
    passed = size_of_difference(y, whole) if whole.shape == y.shape else None
    for name in rest:
        if rest == moved == [name]:
            z: Tensor | None = whole
        elif len(rest) == 1 and len(moved) == 2 and last.numel():
            # It is no other's, since a class of torch made it just now; autocast makes it less precise than a bias.
            z = whole.sub_(last) if whole.dtype == last.dtype else whole - last
        else:
            z = _again(part, firsts, [name], start)
        if z is not None:
            sizes[name] = size_of_difference(z, first_y)
    return passed, {name: sizes[name] for name in owned if name in sizes}


def _again(part: nn.Module, firsts: Mapping[str, Tensor], updated: Sequence[str], start: Start) -> Tensor | None:
    """Return a module's output for its first inputs, with the first values of all weights except the updated ones."""
    first = {name: value for name, value in firsts.items() if name not in updated}
    if start.state is None or draws_nothing(part):
        # What torch.func.functional_call does for a module that has no other in it, in less time.
        parameters: dict[str, Any] = part._parameters
        kept = {name: parameters[name] for name in first}
        parameters.update(first)
        try:
            return tensor_of(part.forward(*start.args, **start.kwargs))
        finally:
            parameters.update(kept)
    with _same_draws(start.state):
        # It may change in place what it is given.
        args, kwargs = tree_map_only(Tensor, torch.clone, (start.args, start.kwargs))
        return tensor_of(functional_call(part, first, args, kwargs))


def _plain(part: nn.Module) -> bool:
    """Return whether a module has its class's own forward and no hooks except the caller's two."""
    return "forward" not in vars(part) and len(part._forward_hooks) == 1 and len(part._forward_pre_hooks) == 1


def random_state(values: list[Any]) -> RandomState:
    """Return the state of the torch random generators that a module may use, given its arguments."""
    x = tensor_of(values)
    if x is not None and x.is_cuda:
        return torch.get_rng_state(), torch.cuda.get_rng_state(x.device), x.device.index
    return torch.get_rng_state(), None, 0


@contextmanager
def _same_draws(state: RandomState) -> Iterator[None]:
    """Set torch's generators to a saved state, and restore them at the end."""
    host, device, index = state
    with torch.random.fork_rng(devices=[] if device is None else [index]):
        torch.set_rng_state(host)
        if device is not None:
            torch.cuda.set_rng_state(device, index)
        yield
