"""Sizes of tensors in single precision; of many tensors the numbers leave their device at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a tensor.

    Attributes:
        norm: square root of the sum of squares.
        count: number of entries.
    """

    norm: Tensor
    count: int


def size_of_difference(y: Tensor, z: Tensor) -> Size:
    """Return the size of the difference of two outputs."""
    return Size(torch.dist(y.float(), z.float()), y.numel())


def root_mean_squares(tensors: Sequence[Tensor]) -> list[float]:
    """Return the root mean square entry of every tensor; sparse gradients count with their zeros."""
    dense = [(x.to_dense() if x.is_sparse else x.detach()).float() for x in tensors]
    norms = numbers_of(torch._foreach_norm(dense)) if dense else []
    return [norm / x.numel() ** 0.5 for norm, x in zip(norms, dense, strict=True)]


def damping(squares: Sequence[Tensor], epsilons: Sequence[float]) -> list[float | None]:
    """How much epsilon holds back steps that are divided by the root of a mean square plus epsilon.

    Args:
        squares: means of squares of gradients, as Adam keeps them.
        epsilons: the epsilon of each tensor's optimizer.

    Returns:
        The mean of epsilon over the root and epsilon, of entries above 0; None where none is.
    """
    counts = numbers_of([square.count_nonzero() for square in squares])
    sums = numbers_of([
        square.detach().float().sqrt().add_(epsilon).reciprocal_().sum()
        for square, epsilon in zip(squares, epsilons, strict=True)
    ])  # fmt: skip
    shares = list[float | None]()
    for square, epsilon, count, total in zip(squares, epsilons, counts, sums, strict=True):
        # Where the root is 0 the share is 1, and nothing moves.
        shares.append(max(0.0, epsilon * total - (square.numel() - count)) / count if count else None)
    return shares


def numbers_of(tensors: Sequence[Tensor]) -> list[float]:
    """Return the numbers in one-element tensors, on any devices."""
    if not tensors:
        return []
    if len({(x.dtype, x.device) for x in tensors}) > 1:
        tensors = [x.to(tensors[0].device, torch.float32) for x in tensors]
    return torch.stack(list(tensors)).tolist()
