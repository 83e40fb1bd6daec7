"""What half precision leaves of a gradient behind one layer, at its full size, in the parts of a tensor-parallel run.

The least number of half precision is 2^-24, and every product of matrices is rounded to it, part by part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import gelu

from theory import Stack

UNIT = 2.0**-24
DROPPED = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """A gradient at what a branch is given, of tokens: rounded, and exact."""

    rounded: torch.Tensor
    exact: torch.Tensor

    @property
    def share(self) -> float:
        """Of the norm, what is left."""
        return float(self.rounded.norm() / self.exact.norm())


def half(numbers: torch.Tensor) -> torch.Tensor:
    """Rounded to half precision."""
    return numbers.half().float()


def normals(generator: torch.Generator, *shape: int, std: float) -> torch.Tensor:
    """Gaussian numbers of half precision."""
    return half(torch.randn(shape, generator=generator) * std)


def below_norm(gradient: torch.Tensor, stream: torch.Tensor, size: float) -> torch.Tensor:
    """Before a LayerNorm that divides the stream, given here as it leaves the norm, by a size."""
    along = (gradient * stream).mean(-1, keepdim=True)
    return half((gradient - gradient.mean(-1, keepdim=True) - stream * along) / size)


def label_gradient(stack: Stack, error: float, size: float, tokens: int, seed: int) -> Returned:
    """At the last residual sum, of tokens with labels of their own, each of that error in the column of its label."""
    generator = torch.Generator().manual_seed(seed)
    labels = normals(generator, tokens, stack.width, std=stack.init_std or 1.0)
    stream = torch.randn(tokens, stack.width, generator=generator)
    return Returned(below_norm(half(error * labels), stream, size), error * labels / size)


def dropped(generator: torch.Generator, gradient: torch.Tensor) -> torch.Tensor:
    """Behind dropout."""
    return half(gradient * (torch.rand(gradient.shape, generator=generator) > DROPPED)) / (1.0 - DROPPED)


def behind_units(stack: Stack, gradient: Returned, parts: int, seed: int) -> Returned:
    """At what feed-forward units are given."""
    generator = torch.Generator().manual_seed(seed)
    std, width, units = stack.init_std or 1.0, stack.width, round(stack.ffn_ratio * stack.width) // parts
    last, given = std / (2 * stack.depth) ** 0.5, dropped(generator, gradient.rounded)
    found, exact = torch.zeros_like(given), torch.zeros_like(given)
    for _ in range(parts):
        second, first = (normals(generator, units, width, std=one) for one in (last, std))
        before = (torch.randn(len(given), units, generator=generator) * std * width**0.5).requires_grad_()
        (slope,) = torch.autograd.grad(gelu(before, approximate="tanh").sum(), before)
        found = half(found + half(half(half(given @ second.T) * slope) @ first))
        exact += ((gradient.exact @ second.T) * slope) @ first
    return Returned(found, exact)


def behind_attention(stack: Stack, gradient: Returned, parts: int, seed: int) -> Returned:
    """At what attention is given, with causal patterns of random queries."""
    generator = torch.Generator().manual_seed(seed)
    std, width, size = stack.init_std or 1.0, stack.width, stack.width // stack.heads
    last, given = std / (2 * stack.depth) ** 0.5, dropped(generator, gradient.rounded)
    stream = torch.randn(given.shape, generator=generator)
    seen = torch.ones(len(given), len(given)).tril() > 0
    found, exact = torch.zeros_like(given), torch.zeros_like(given)
    for _ in range(parts):
        part = torch.zeros_like(given)
        for _ in range(stack.heads // parts):
            output, *inputs = (normals(generator, size, width, std=one) for one in (last, std, std, std))
            queries, keys, values = (half(stream @ each.T) for each in inputs)
            weights = torch.softmax((queries @ keys.T / size**0.5).masked_fill(~seen, -torch.inf), -1)
            for total, at, cut in ((part, given, half), (exact, gradient.exact, torch.Tensor.float)):
                of_head = cut(at @ output.T)
                of_inputs = _of_inputs(of_head, weights, queries, keys, values, cut)
                total += sum(one @ each for one, each in zip(of_inputs, inputs, strict=True))
        found = half(found + half(part))
    return Returned(found, exact)


def _of_inputs(
    gradient: torch.Tensor, weights: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
    cut: Callable[[torch.Tensor], torch.Tensor],
) -> Iterator[torch.Tensor]:  # fmt: skip
    """At queries, keys and values."""
    of_weights = cut(gradient @ values.T)
    logits = cut(weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True)) / queries.shape[-1] ** 0.5)
    yield from (cut(logits @ keys), cut(logits.T @ queries), cut(weights.T @ gradient))
