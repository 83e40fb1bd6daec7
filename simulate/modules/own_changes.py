"""What updates of a module's weights make of its output, of the inputs that it was given at the start.

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
        difference: of a vector, from its first value; empty of others.
        mean_square: of that.
    """

    difference: Tensor
    mean_square: Tensor


def moves_of(now: Mapping[str, Tensor], firsts: Mapping[str, Tensor]) -> dict[str, Move]:
    """Of those that are not where they were; vectors, of which there are many, are subtracted in one go."""
    moved = [name for name, first in firsts.items() if not torch.equal(now[name], first)]
    vectors, nothing = [name for name in moved if firsts[name].ndim == 1], Tensor()
    moves = {name: Move(nothing, nothing) for name in moved}
    for dtype in {firsts[name].dtype for name in vectors}:
        names = [name for name in vectors if firsts[name].dtype == dtype]
        differences = torch._foreach_sub([now[name].detach() for name in names], [firsts[name] for name in names])
        norms = torch._foreach_norm([difference.float() for difference in differences])
        for name, difference, norm in zip(names, differences, norms, strict=True):
            moves[name] = Move(difference, norm.square_().div_(difference.numel()))
    return moves


def draws_nothing(part: nn.Module) -> bool:
    """Whether its forward with other weights is all that a pass of it takes; nothing but two hooks are on it."""
    return type(part) in _STEADY and _plain(part) and not part._modules


@dataclass(frozen=True, slots=True)
class Start:
    """What a module was given before the first step, and what it gave.

    Attributes:
        args: copies.
        kwargs: likewise.
        y: the output.
        state: of torch's generators before it ran, as `random_state` has it; None of what draws nothing.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    y: Tensor
    state: RandomState | None


def own_changes(
    part: nn.Module, owned: Sequence[str], firsts: Mapping[str, Tensor], moves: Mapping[str, Move], start: Start
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Run a module with what it was given at the start.

    Args:
        part: a module with hooks on it that let such a pass alone; one of the caller's own each way.
        owned: names of the weights whose updates are its own.
        firsts: the first values of all weights in it, those of modules in it too, by their names.
        moves: what updates made so far of those of its own that have moved, by their names.
        start: what it was given.

    Returns:
        The output with its own updates and the first values of all else, None where it is no tensor of floats; and by
        weight of its own the mean square of what that one's update alone makes of the first output.
    """

    def again(names: Sequence[str]) -> Tensor | None:
        first = {name: value for name, value in firsts.items() if name not in names}
        if start.state is None or draws_nothing(part):
            with torch.no_grad(), _other_weights(part, first):
                return tensor_of(part.forward(*start.args, **start.kwargs))
        with torch.no_grad(), _same_draws(start.state):
            # It may change in place what it is given.
            args, kwargs = tree_map_only(Tensor, torch.clone, (start.args, start.kwargs))
            return tensor_of(functional_call(part, first, args, kwargs))

    y = start.y
    # What has not moved makes nothing, and rounding would make something of it.
    squares = {name: y.new_zeros((), dtype=torch.float32) for name in owned if name not in moves}
    moved = [name for name in owned if name in moves]
    whole: Tensor | None = y
    added, last = _ADDED.get(type(part), ""), Tensor()
    if added in moved and _plain(part):
        # Of a convolution every channel has as many outputs, so that the means are one.
        last, squares[added] = moves[added].difference, moves[added].mean_square
        if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            last = last.reshape(-1, *[1] * len(part.kernel_size))
    rest = [name for name in moved if name not in squares]
    if rest:
        whole = again(moved)
        if whole is None:
            return None, {}
    elif moved:
        whole = y + last
    for name in rest:
        if rest == moved == [name]:
            z: Tensor | None = whole
        elif whole is not None and len(rest) == 1 and len(moved) == 2 and last.numel():
            z = whole - last
        else:
            z = again([name])
        if z is not None:
            squares[name] = mean_square(z, y)
    return whole, {name: squares[name] for name in owned if name in squares}


def mean_square(y: Tensor, z: Tensor) -> Tensor:
    """Of the difference of two outputs, in single precision."""
    return torch.dist(y.float(), z.float()).square_().div_(y.numel())


def root_mean_squares(tensors: Sequence[Tensor]) -> list[float]:
    """Of entries, in single precision; of a sparse gradient, as of a table of words, with the zeros."""
    dense = [(x.to_dense() if x.is_sparse else x.detach()).float() for x in tensors]
    if not dense:
        return []
    norms = torch.stack([norm.to(dense[0].device) for norm in torch._foreach_norm(dense)]).tolist()
    return [norm / x.numel() ** 0.5 for norm, x in zip(norms, dense, strict=True)]


def _plain(part: nn.Module) -> bool:
    """Whether nothing but the caller's two hooks stands around the class's own forward."""
    return "forward" not in vars(part) and len(part._forward_hooks) == 1 and len(part._forward_pre_hooks) == 1


def random_state(values: list[Any]) -> RandomState:
    """Of torch's generators that a module with such arguments may draw from."""
    x = tensor_of(values)
    if x is not None and x.is_cuda:
        return torch.get_rng_state(), torch.cuda.get_rng_state(x.device), x.device.index
    return torch.get_rng_state(), None, 0


@contextmanager
def _other_weights(part: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """What torch.func.functional_call does for a module that has no other in it, in less time."""
    parameters: dict[str, Any] = part._parameters
    kept = {name: parameters[name] for name in weights}
    parameters.update(weights)
    try:
        yield
    finally:
        parameters.update(kept)


@contextmanager
def _same_draws(state: RandomState) -> Iterator[None]:
    """As they were before, and put back."""
    host, device, index = state
    with torch.random.fork_rng(devices=[] if device is None else [index]):
        torch.set_rng_state(host)
        if device is not None:
            torch.cuda.set_rng_state(device, index)
        yield
