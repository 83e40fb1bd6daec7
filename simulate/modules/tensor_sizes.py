"""Compute norms of many tensors in single precision, with one transfer from the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Size:
    """The norm of a tensor together with the number of its entries.

    Attributes:
        norm: square root of the sum of squares.
        count: number of entries.
    """

    norm: Tensor
    count: int


def size_of_difference(y: Tensor, z: Tensor) -> Size:
    """Return the norm of the difference of two tensors, with the number of their entries."""
    return Size(torch.dist(y.float(), z.float()), y.numel())


def root_mean_squares(tensors: Sequence[Tensor]) -> list[float]:
    """Return the root mean square entry of every tensor; zeros of sparse gradients count as entries."""
    dense = [(x.to_dense() if x.is_sparse else x.detach()).float() for x in tensors]
    norms = numbers_of(torch._foreach_norm(dense)) if dense else []
    return [norm / x.numel() ** 0.5 for norm, x in zip(norms, dense, strict=True)]


def damping(squares: Sequence[Tensor], epsilons: Sequence[float]) -> list[float | None]:
    """Return, for each tensor, the share by which the optimizer's epsilon reduces the step, as in Adam.

    Steps are divided by sqrt(mean square) + epsilon.

    Args:
        squares: running means of squared gradients from Adam's state.
        epsilons: the epsilon of each tensor's optimizer.

    Returns:
        The mean of epsilon/(sqrt(square) + epsilon) over entries above 0; None for a tensor without such entries.
    """
    counts = numbers_of([square.count_nonzero() for square in squares])
    sums = numbers_of([
        square.detach().float().sqrt().add_(epsilon).reciprocal_().sum()
        for square, epsilon in zip(squares, epsilons, strict=True)
    ])  # fmt: skip
    # Where the root is 0 the share is 1, and nothing moves.
    return [
        max(0.0, epsilon * total - (square.numel() - count)) / count if count else None
        for square, epsilon, count, total in zip(squares, epsilons, counts, sums, strict=True)
    ]


def numbers_of(tensors: Sequence[Tensor]) -> list[float]:
    """Return the numbers in one-element tensors on any devices, as a list of floats."""
    if not tensors:
        return []
    if len({(x.dtype, x.device) for x in tensors}) > 1:
        tensors = [x.to(tensors[0].device, torch.float32) for x in tensors]
    return torch.stack(list(tensors)).tolist()
