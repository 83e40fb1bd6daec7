"""Choose how many blocks of networks are sampled in one batch, so that they fit into memory.

The choice changes no number.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from simulate.free_memory import free_memory
from simulate.network.random_streams import AHEAD
from simulate.runs.cell import Cell
from simulate.runs.cost import block_bytes, block_work
from theory.stack.weights import rows_met, weight_shapes

# Of what is free, so much goes to batches, those of all workers of a machine together.
_SHARE = 0.5

# A sample's first batch asks the system for its memory, page by page, which takes longer than the draws, but larger
# batches have more draws for the milliseconds of a layer: with so many bytes a layer costs at L = 1000, d = 1024 at
# most 1.3 times what it does at L = 12, and with a third less 1.4 times (docs/report.md).
_ENOUGH = 1.5 * 2.0**32

# Every layer costs some milliseconds, however few draws it has. So many random numbers, or the draws of the largest
# block, make that a few percent of what the draws cost; more would only take memory.
_LAYER_NORMALS = 2**21

# An interrupted run loses the batches that it was at, so they are done within seconds, however small the networks.
_MOST_DRAWS = 1024

# Batches so small are always there; asking the system takes as long as a small block.
_ALWAYS_THERE = 2**26

# Numbers between places of memory at which products of matrices are rounded alike.
_ALIGNED = 16

# A GPU is given blocks of so many bytes at once, as far as half of what is free has room, and so many. On an H100 a
# draw of 100 or 1000 layers takes 1.8 times as long with half of it (bench/results/device-deep-h100.json).
_GPU_BATCH = 2**35
_GPU_BLOCKS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits of a batch of blocks: a fixed number of blocks, or a share of the memory.

    Attributes:
        at_once: number of blocks in a batch; 0 for as many as are useful and fit into memory.
        memory: bytes for the batches of all processes that share them, with at least one block each; None for half of
            the free memory, on a CPU at most 6 GiB each.
        sharers: number of processes that share the memory; 0 for one per core of the machine that samples the batch.

    Raises:
        ValueError: memory is not a positive number.
    """

    at_once: int = 0
    memory: float | None = None
    sharers: int = 1

    def __post_init__(self) -> None:
        check_memory(self.memory)

    @property
    def _sharers(self) -> int:
        return self.sharers or os.cpu_count() or 1

    @property
    def _room(self) -> float:
        """The bytes for each process on a CPU if no memory is given."""
        return min(_ENOUGH, _SHARE * free_memory() / self._sharers)

    def blocks(self, cell: Cell) -> int:
        """Return the number of blocks of a configuration that fit into one batch on this machine now.

        It is at least 1.
        """
        if self.at_once:
            return self.at_once
        useful, each = useful_blocks(cell), block_bytes(cell)
        if useful == 1 or (self.memory is None and useful * each <= _ALWAYS_THERE):
            return useful
        if self.memory is not None:
            room = self.memory / self._sharers
        elif cell.device_kind == "cpu":
            room = self._room
        else:
            # Workers take the GPUs in turn, unless one has a name, and those of one GPU ask it at the same time. Those
            # of a cluster, who are not counted, have one each.
            gpus = 1 if ":" in cell.device else max(1, torch.cuda.device_count())
            room = _SHARE * torch.cuda.mem_get_info(cell.device)[0] / max(1, -(-self.sharers // gpus))
            each += AHEAD * getattr(torch, cell.dtype).itemsize
        return max(1, min(useful, int(room // each)))


def check_memory(memory: float | None) -> None:
    """Check that a memory limit is None or a positive number of bytes.

    Raises:
        ValueError: the limit is neither None nor a positive finite number.
    """
    if memory is None:
        return
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 < memory < math.inf:
        raise ValueError(
            f"memory must be a positive number of bytes, or None for half of what is free, got {memory!r}."
        )


def useful_blocks(cell: Cell) -> int:
    """Return the number of blocks in a batch above which a larger batch does not sample faster."""
    if cell.device_kind != "cpu":
        return max(1, min(int(_GPU_BATCH // block_bytes(cell)), _GPU_BLOCKS))
    if not _rounds_alike(cell):
        return 1
    work = block_work(cell)
    return max(1, min(_MOST_DRAWS // cell.draws_per_block, round(_LAYER_NORMALS * work.steps / work.normals)))


def _rounds_alike(cell: Cell) -> bool:
    """Return whether a block's numbers are the same to the last bit in any batch on a CPU.

    They differ if the network multiplies batched matrices itself (attention other than the mean over all tokens, tied
    embeddings), if experts are chosen, which the last bit may change, or if matrices of the conditioned engine are not
    aligned in memory.
    """
    stack = cell.stack
    aligned = cell.engine == "dense" or not any(
        size % _ALIGNED for part in stack.parts for size in (part.width, part.ffn_width, part.vocab)
    )
    means = all(
        rows_met(part)[role] == part.sequences and role.replace("V", "Q") not in weight_shapes(part)
        for part in stack.parts
        for role in weight_shapes(part)
        if role in ("WV", "XV")
    )
    return aligned and means and stack.embeddings == "untied" and not stack.experts


def next_batch(left: int, most: int) -> int:
    """Return the size of the first batch, if items are split into as few, nearly equal batches as possible.

    A batch holds at most `most` items.

    >>> next_batch(64, 44)
    32
    """
    return -(-left // -(-left // most))


@contextmanager
def fitting(cell: Cell) -> Iterator[None]:
    """Turn a failed memory allocation within a `with` block into an error that names the network.

    Raises:
        ValueError: the memory of the cell's device is too small for the network.
        MemoryError: never; it is turned into a ValueError.
        RuntimeError: any other error within the block.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On a CPU torch says so in the text of a plain RuntimeError.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        s = cell.stack
        raise ValueError(
            f"width, depth and vocab must fit into the memory of {cell.device!r}, but one network of width {s.width}, "
            f"depth {s.depth} and vocab {s.vocab} does not fit with the {cell.engine} engine."
        ) from error
