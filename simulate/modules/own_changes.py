"""Changes of a module's output by updates of its own weights, at the inputs that it was given at the start.

A module is run once more with its updated weights, and once for each weight alone that is updated. A bias that is
added last needs no pass, and where one weight stands beside it neither does that.
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
    """How far updates moved a weight.

    Attributes:
        difference: difference of a vector from its first value; empty for other tensors.
        size: size of the difference.
    """

    difference: Tensor
    size: Size


def moves_of(now: Mapping[str, Tensor], firsts: Mapping[str, Tensor]) -> dict[str, Move]:
    """Return the change of every tensor that has moved; the many vectors are subtracted together."""
    moved = [name for name, first in firsts.items() if not torch.equal(now[name], first)]
    nothing = Move(Tensor(), Size(Tensor(), 0))
    moves = dict.fromkeys(moved, nothing)
    alike: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name in moved:
        if (first := firsts[name]).ndim == 1:
            alike.setdefault((first.dtype, first.device), []).append(name)
    for names in alike.values():
        differences = torch._foreach_sub([now[name].detach() for name in names], [firsts[name] for name in names])
        norms = torch._foreach_norm([difference.float() for difference in differences])
        for name, difference, norm in zip(names, differences, norms, strict=True):
            moves[name] = Move(difference, Size(norm, difference.numel()))
    return moves


def draws_nothing(part: nn.Module) -> bool:
    """Whether its forward with other weights is all that a pass of it takes; nothing but two hooks are on it."""
    return type(part) in _STEADY and _plain(part) and not part._modules


@dataclass(frozen=True, slots=True)
class Start:
    """The inputs and the output of a module before the first step.

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
    """Run a module with what it was given at the start; where no gradients are taken, as in torch.no_grad().

    Args:
        part: a module with hooks on it that let such a pass alone; one of the caller's own each way.
        owned: names of the weights whose updates are its own.
        firsts: the first values of all weights in it, those of modules in it too, by their names.
        moves: what updates made so far of those of its own that have moved, by their names.
        start: its inputs and output at the start.
        y: its current output.

    Returns:
        How far y is from the output of the first inputs with the module's own updates and the first values of all
        else, None where that is no tensor of floats, or of another shape; and by weight of its own how far that one's
        update alone takes the first output.
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
    """The output of the first inputs with first values of all weights but some."""
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
    """Whether nothing but the caller's two hooks stands around the class's own forward."""
    return "forward" not in vars(part) and len(part._forward_hooks) == 1 and len(part._forward_pre_hooks) == 1


def random_state(values: list[Any]) -> RandomState:
    """Return the state of the torch generators that a module with such arguments may use."""
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
