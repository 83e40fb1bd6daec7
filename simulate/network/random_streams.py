"""Random numbers for a batch of networks, with one random generator for every block of networks.

A number therefore does not depend on how many blocks are sampled together.
"""

import math
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Generator, Tensor

from theory.stack.initializations import Law

# Bytes; torch begins a tensor of the CPU at a multiple.
_ALIGNED = 64

AHEAD = 2**20
"""The number of random numbers that a block samples ahead on a GPU, where every generator call is a kernel launch."""


class RandomStreams:
    """The random generators of a batch of networks, one for each block of equally many networks.

    The networks ("draws") of a batch are ordered by block.

    Args:
        seeds: seeds of the blocks' generators.
        draws: number of draws in each block.
        device: the device of the numbers.
    """

    def __init__(self, seeds: Sequence[int], draws: int, device: str | torch.device = "cpu") -> None:
        self._generators = [Generator(device).manual_seed(seed) for seed in seeds]
        self._each = draws
        self.device = self._generators[0].device
        self.draws = draws * len(seeds)
        self._ahead: dict[tuple[str, torch.dtype], tuple[Tensor, int]] = {}

    def fill_normal(self, numbers: Tensor, std: float = 1.0, *, piece: int = sys.maxsize) -> Tensor:
        """Fill a tensor with independent normal random numbers of a given standard deviation.

        The tensor is contiguous, of shape (draws, ...), and the numbers are N(0, std²).

        At most `piece` numbers are sampled at once.
        """
        if (drawn := self._drawn_ahead("normal_", numbers)) is not None:
            torch.mul(drawn, std, out=numbers.view(drawn.shape))
            return numbers
        # Of blocks of one draw there are many, and every view that is made for each of them counts.
        blocks = len(self._generators)
        each = numbers.numel() // blocks
        for part, generator in zip(numbers.view(blocks, each).unbind(), self._generators, strict=True):
            for chunk in (part,) if each <= piece else part.split(piece):
                chunk.normal_(0.0, std, generator=generator)
        return numbers

    def normal(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return independent standard normal numbers, of shape (networks, *shape)."""
        return self.fill_normal(torch.empty(self.draws, *shape, dtype=dtype, device=self.device))

    def uniform(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return independent random numbers that are uniform in [0, 1), of shape (networks, *shape)."""
        numbers = torch.empty(self.draws, *shape, dtype=dtype, device=self.device)
        if (drawn := self._drawn_ahead("uniform_", numbers)) is not None:
            numbers.view(drawn.shape).copy_(drawn)
            return numbers
        for part, generator in self._parts(numbers):
            part.uniform_(generator=generator)
        return numbers

    def chi(self, degrees: Tensor) -> Tensor:
        """Return independent chi-distributed random numbers with the given degrees of freedom.

        The shape is (draws, *degrees.shape).
        """
        halves = (degrees / 2).expand(self._each, *degrees.shape).contiguous()
        parts = [torch._standard_gamma(halves, generator=generator) for generator in self._generators]
        return torch.cat(parts).mul_(2.0).sqrt_()

    def entries(self, *shape: int, std: float, law: Law, dtype: torch.dtype) -> Tensor:
        """Return independent random matrix entries with a given distribution and standard deviation.

        The shape is (draws, *shape).
        """
        if law.uniform:
            return self.uniform(*shape, dtype=dtype).sub_(0.5).mul_(12**0.5 * std)
        if not law.cut:
            return self.fill_normal(torch.empty(self.draws, *shape, dtype=dtype, device=self.device), std)
        # By the inverse of the distribution function, which at most 5 standard deviations leave numbers for.
        size, share = std * (2.0 / law.variance) ** 0.5, math.erf(law.cut / 2**0.5)
        return self.uniform(*shape, dtype=dtype).mul_(2.0).sub_(1.0).mul_(share).erfinv_().mul_(size)

    def integers(self, end: int, *shape: int) -> Tensor:
        """Return independent uniform random integers from 0 up to, but not including, a given number.

        The number is `end`, and the shape is (draws, *shape).
        """
        numbers = torch.empty(self.draws, *shape, dtype=torch.long, device=self.device)
        for part, generator in self._parts(numbers):
            part.random_(end, generator=generator)
        return numbers

    def chosen(self, weights: Tensor, *shape: int) -> Tensor:
        """Return independent random indices, chosen with probabilities proportional to given weights.

        The shape is (draws, *shape).
        """
        numbers = torch.empty(self.draws, *shape, dtype=torch.long, device=self.device)
        for part, generator in self._parts(numbers):
            part.view(-1).copy_(torch.multinomial(weights, part.numel(), replacement=True, generator=generator))
        return numbers

    def product(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the matrix product of two batches of matrices, one pair for each random network.

        The shapes are (draws, a, b) and (draws, b, c).

        On a CPU each block is multiplied separately, because the rounding of a batched product depends on the batch
        size.
        """
        return torch.cat([a @ b for a, b in zip(self.blocks(first), self.blocks(second), strict=True)])

    def blocks(self, batch: Tensor) -> list[Tensor]:
        """Split a batch of networks into its blocks, each with the memory alignment of a separate tensor.

        The batch has shape (draws, ...).

        Rounding depends on the alignment. On a GPU the batch is not split, because calls cost more than numbers.
        """
        if self.device.type != "cpu":
            return [batch]
        parts = batch.split(self._each)
        return [part if part.data_ptr() % _ALIGNED == batch.data_ptr() % _ALIGNED else part.clone() for part in parts]

    def parts(self, most: int) -> list[slice]:
        """Return slices of a batch with about a given number of networks each.

        They are equal parts of one block, or several whole blocks, of about `most` draws.
        """
        most, each = max(1, most), self._each
        blocks = range(0, self.draws, max(each, most // each * each))
        starts = [k + at for k in blocks for at in range(0, each, min(most, each))]
        return [slice(*ends) for ends in zip(starts, [*starts[1:], self.draws], strict=True)]

    def fill_part(self, numbers: Tensor, part: slice, std: float) -> None:
        """Fill a tensor with independent normal random numbers for one part of the batch, as `parts` divides it.

        They are N(0, std²); the tensor is contiguous, of shape (draws, ...).
        """
        first = part.start // self._each
        for k, chunk in enumerate((numbers,) if len(numbers) <= self._each else numbers.split(self._each)):
            chunk.normal_(0.0, std, generator=self._generators[first + k])

    def _drawn_ahead(self, kind: str, numbers: Tensor) -> Tensor | None:
        """Return numbers for every block from a buffer sampled ahead, (blocks, numbers), or None without a buffer."""
        blocks = len(self._generators)
        each = numbers.numel() // blocks
        if self.device.type == "cpu" or each > AHEAD // 2:
            return None
        drawn, used = self._ahead.get((kind, numbers.dtype), (numbers, AHEAD))
        if used + each > AHEAD:
            # What is left is dropped: so a number hangs on what its block asked for, not on the batch.
            drawn, used = torch.empty(blocks, AHEAD, dtype=numbers.dtype, device=self.device), 0
            for part, generator in zip(drawn, self._generators, strict=True):
                getattr(part, kind)(generator=generator)
        self._ahead[kind, numbers.dtype] = drawn, used + each
        return drawn[:, used : used + each]

    def _parts(self, numbers: Tensor) -> Iterable[tuple[Tensor, Generator]]:
        if len(self._generators) == 1:
            return ((numbers, self._generators[0]),)
        return zip(numbers.split(self._each), self._generators, strict=True)
