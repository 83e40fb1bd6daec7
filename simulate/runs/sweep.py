"""Sweeps: sample many network configurations in blocks, and save the blocks in a run folder as they finish.

`sweep` creates the folder; `sample_into` fills an existing one.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulate.counts import check_count
from simulate.runs.cell import Cell, check_device
from simulate.runs.cost import block_work
from simulate.runs.execution import ONE_PROCESS, Execution, uninterrupted
from simulate.runs.provenance import manifest
from simulate.runs.store import Landed, Run
from simulate.runs.tables import Block, cell_table
from theory.stack import Stack

# Between files a sweep waits at least this share of its age, so that days of sampling leave some hundred files.
_SHARE_OF_AGE = 0.01
_FILE_BYTES = 2**24
_FILE_BLOCKS = 2**14


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a running sweep: blocks and work so far.

    Attributes:
        blocks: number of blocks sampled in this call, and number of blocks to sample in this call.
        share: the share of the work (random numbers and products) that is done, a better measure of time than blocks.
    """

    blocks: tuple[int, int]
    share: float


def sweep(
    cells: Sequence[Stack | Cell],
    *,
    draws: int,
    seed: int,
    out: str | Path,
    execution: Execution = ONE_PROCESS,
    on_block: Callable[[Progress], None] | None = None,
) -> Run:
    """Sample networks into a run folder, or continue one: saved networks are kept, and more are added.

    The same call continues a sweep, however it stopped. The number of draws, the execution and the order of the
    networks may change. `gradbounds sweep` with the same networks and seed also continues it.

    Args:
        cells: networks, or cells that also choose an engine, device, dtype or text.
        draws: smallest number of draws per network, rounded up to whole blocks.
        seed: root seed.
        out: a new or empty folder, or the folder of the same networks and seed.
        execution: number of processes, memory and file options.
        on_block: progress callback after each block.

    Returns:
        The run: `samples()` returns every network with all its draws.

    Raises:
        ValueError: an argument is outside its range, the folder holds something else or is in use, the disk is full, or
            a worker was killed.
    """
    known = distinct(cells)
    networks = [cell_table(cell) for cell in known]
    run = begin(known, draws=draws, seed=seed, out=out, execution=execution, networks=networks)
    sample_into(known, draws=draws, seed=seed, run=run, execution=execution, on_block=on_block)
    return run


def begin(
    cells: Sequence[Cell],
    *,
    draws: int,
    seed: int,
    out: str | Path,
    execution: Execution = ONE_PROCESS,
    **more: Any,
) -> Run:
    """Create or open the folder of a sweep, and write its manifest, before sampling.

    Args:
        cells: the cells to sample.
        draws: least number of draws per cell.
        seed: root seed.
        out: a new or empty folder, or the folder of the same cells and seed.
        execution: number of processes, memory and file options.
        **more: further entries of the manifest, such as the recipe.

    Raises:
        ValueError: an argument is outside its range, or the folder contains something else, is in use or cannot be
            written.
    """
    check_sweep(cells, draws=draws, seed=seed, execution=execution)
    return Run.create(out, manifest("sweep", cells, draws=draws, seed=seed) | more)


def distinct(cells: Sequence[Stack | Cell]) -> list[Cell]:
    """Return every configuration once, as a list of `Cell`.

    A Stack becomes a `Cell` with default options.

    Raises:
        ValueError: an item is neither a Stack nor a Cell.
    """
    if isinstance(cells, Stack | Cell | str):
        raise ValueError(f"cells must be a list of Stack or Cell, got {cells!r}.")
    for cell in cells:
        if not isinstance(cell, Stack | Cell):
            raise ValueError(f"cells must be of Stack or Cell, got {cell!r}.")
    every = (Cell(cell) if isinstance(cell, Stack) else cell for cell in cells)
    return list({cell.name: cell for cell in every}.values())


def sample_into(
    cells: Sequence[Cell],
    *,
    draws: int | Mapping[str, int],
    seed: int,
    run: Run,
    execution: Execution = ONE_PROCESS,
    on_block: Callable[[Progress], None] | None = None,
) -> None:
    """Sample every configuration into an existing run, except for blocks that are already saved there.

    A cell gets at least `draws` draws, rounded up to whole blocks. The numbers depend only on seed, cell and block, not
    on the execution.

    Args:
        cells: the cells to sample.
        draws: smallest number of draws per cell, or a mapping from cell names to numbers.
        seed: root seed.
        run: the run in which blocks are saved; no other process may write to it meanwhile.
        execution: number of processes, memory and file options.
        on_block: progress callback after each block.

    Raises:
        ValueError: an argument is outside its range, the run is in use or was deleted meanwhile, its files are damaged
            or copies, the disk is full, or a worker was killed.
    """
    check_sweep(cells, draws=draws, seed=seed, execution=execution)
    cells = distinct(cells)
    with run.hold():
        run.keep_windows(cells)
        to_do = _Account(cells, draws, seed, run.landed(cells))
        landing = _Landing(run, execution.land_every)
        try:
            with execution.executor() as pool:
                for (cell, _, indices), arrays in execution.completed(pool, execution.tasks(to_do.work())):
                    for index, values in zip(indices, arrays, strict=True):
                        landing.add(Block(cell, seed, index, values))
                        if on_block is not None:
                            on_block(to_do.finished(cell))
        except BrokenProcessPool as error:
            raise ValueError(
                "workers must fit into memory, but one was killed; use fewer. Saved draws are kept, and the same "
                "command continues."
            ) from error
        finally:
            landing.land()
        run.check_there()


class _Landing:
    """A buffer of sampled blocks that are waiting to be saved."""

    def __init__(self, run: Run, land_every: float) -> None:
        self._run, self._land_every = run, land_every
        self._pending: list[Block] = []
        self._bytes = 0
        self._start = self._last = time.monotonic()

    def add(self, block: Block) -> None:
        """Add a block, and save all waiting blocks if there are enough or enough time has passed."""
        self._pending.append(block)
        self._bytes += sum(value.nbytes for value in block.values.values())
        now = time.monotonic()
        full = self._bytes > _FILE_BYTES or len(self._pending) >= _FILE_BLOCKS
        if full or now - self._last > max(self._land_every, _SHARE_OF_AGE * (now - self._start)):
            self.land()

    def land(self) -> None:
        """Save all waiting blocks as one file."""
        blocks, self._pending, self._bytes = self._pending, [], 0
        with uninterrupted():  # else the blocks of a half-written file would be lost
            self._run.append(blocks)
        self._last = time.monotonic()


class _Account:
    """The account of a sweep: the blocks that are to be sampled, and the number sampled so far."""

    def __init__(self, cells: Sequence[Cell], draws: int | Mapping[str, int], seed: int, landed: set[Landed]) -> None:
        self._cells, self._seed, self._skip = cells, seed, landed
        each = draws if isinstance(draws, Mapping) else dict.fromkeys((cell.name for cell in cells), draws)
        self._blocks = {cell.name: cell.blocks(each[cell.name]) for cell in cells}
        self.blocks = self.done = 0
        self._cost = self._spent = 0.0
        # Counted, not gone through: a cell may have a great many blocks.
        there = Counter(name for name, at, block in landed if at == seed and block < self._blocks.get(name, 0))
        for cell in cells:
            missing = self._blocks[cell.name] - there[cell.name]
            self.blocks += missing
            self._cost += missing * block_work(cell).cost

    def work(self) -> Iterator[tuple[Cell, int, int]]:
        """Yield the blocks to sample, cell by cell, as (cell, root seed, block index)."""
        return (
            (cell, self._seed, block)
            for cell in self._cells
            for block in range(self._blocks[cell.name])
            if (cell.name, self._seed, block) not in self._skip
        )

    def finished(self, cell: Cell) -> Progress:
        """Count a sampled block and return the progress."""
        self.done += 1
        self._spent += block_work(cell).cost
        return Progress((self.done, self.blocks), self._spent / self._cost)


def check_sweep(
    cells: Sequence[Cell], *, draws: int | Mapping[str, int], seed: int, execution: Execution = ONE_PROCESS
) -> None:
    """Check the arguments of a sweep before its folder is created.

    Raises:
        ValueError: there are no cells, a count is outside its range, `execution` is not an `Execution`, or this machine
            does not have a device that it is to sample on.
    """
    if not cells:
        raise ValueError("cells must hold at least one cell, got none.")
    if not isinstance(execution, Execution):
        raise ValueError(f"execution must be an Execution, such as Execution(workers=2), got {execution!r}.")
    for count in set(draws.values()) if isinstance(draws, Mapping) else {draws}:
        check_count("draws", count, 1)
    check_count("seed", seed, 0)
    if execution.pool is None:
        for device in {cell.device for cell in cells}:
            check_device(device)
