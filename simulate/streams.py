"""Random numbers for a batch of networks, of which every block has a stream of its own.

So a number does not depend on how many blocks are sampled together.
"""

import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor


class Streams:
    """One generator per block of equally many draws; the blocks stand one after another in a batch.

    Args:
        seeds: of the blocks' generators.
        draws: of each block.
        device: of the numbers.
    """

    def __init__(self, seeds: Sequence[int], draws: int, device: str | torch.device = "cpu") -> None:
        self._generators = [Generator(device).manual_seed(seed) for seed in seeds]
        self._each = draws
        self.device = self._generators[0].device
        self.draws = draws * len(seeds)

    def fill_normal(self, numbers: Tensor, std: float = 1.0, *, piece: int = sys.maxsize) -> Tensor:
        """Independent N(0, std²) numbers in a contiguous tensor of shape (draws, ...), so many at a time."""
        for part, generator in self._parts(numbers):
            for some in part.view(-1).split(piece):
                some.normal_(0.0, std, generator=generator)
        return numbers

    def normal(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Independent N(0, 1) numbers, (draws, *shape)."""
        return self.fill_normal(torch.empty(self.draws, *shape, dtype=dtype, device=self.device))

    def uniform(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Independent numbers in [0, 1), (draws, *shape)."""
        numbers = torch.empty(self.draws, *shape, dtype=dtype, device=self.device)
        for part, generator in self._parts(numbers):
            part.uniform_(generator=generator)
        return numbers

    def integers(self, end: int, *shape: int) -> Tensor:
        """Independent integers below `end`, (draws, *shape)."""
        numbers = torch.empty(self.draws, *shape, dtype=torch.long, device=self.device)
        for part, generator in self._parts(numbers):
            part.random_(end, generator=generator)
        return numbers

    def chosen(self, weights: Tensor, *shape: int) -> Tensor:
        """Independent indices with chances in proportion to weights, (draws, *shape)."""
        numbers = torch.empty(self.draws, *shape, dtype=torch.long, device=self.device)
        for part, generator in self._parts(numbers):
            part.view(-1).copy_(torch.multinomial(weights, part.numel(), replacement=True, generator=generator))
        return numbers

    def _parts(self, numbers: Tensor) -> Iterator[tuple[Tensor, Generator]]:
        return zip(numbers.split(self._each), self._generators, strict=True)
