"""Many cells in blocks over an executor, landing in a run folder as they finish."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process

import numpy as np
from numpy.typing import NDArray

from simulate.cell import Cell, check_device
from simulate.cost import block_work
from simulate.sample import check_count, sample_block
from simulate.store import Landed, Run
from simulate.tables import Block

LAND_EVERY = 5.0
"""Seconds between files of a young sweep: what an interruption can lose."""

# Between files a sweep waits at least this share of its age, so that days of sampling leave some hundred files.
_SHARE_OF_AGE = 0.01
_FILE_BYTES = 2**24

Work = tuple[Cell, int, int]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep has come.

    Attributes:
        blocks: blocks sampled now, without those that had landed before, and how many there are to sample.
        cells: cells that have all their blocks, and all cells.
        draws: draws sampled now.
        share: of the random numbers and products, which is nearer to time than blocks are.
    """

    blocks: tuple[int, int]
    cells: tuple[int, int]
    draws: int
    share: float


class InProcess(Executor):
    """An executor that runs each call at once, in this process."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        """Run the call and return its finished future."""
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def executor(workers: int) -> Iterator[Executor]:
    """An executor of that many processes; one worker is this process."""
    if workers == 1:
        yield InProcess()
        return
    # Not fork: CUDA and thread pools do not survive it.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, which then stops its workers; and never outlive a parent that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def sweep(
    cells: Sequence[Cell],
    *,
    draws: int | Mapping[str, int],
    seed: int,
    run: Run,
    workers: int = 1,
    land_every: float = LAND_EVERY,
    on_block: Callable[[Progress], None] | None = None,
    end: float = float("inf"),
    pool: Executor | None = None,
) -> None:
    """Sample every cell into a run, skipping the blocks that have landed there.

    Blocks are whole: a cell gets at least `draws` draws, rounded up to its block size. The numbers depend on seed,
    cell and block alone, not on workers or order.

    Args:
        cells: what to sample.
        draws: least number of draws per cell, or of each by its name.
        seed: root seed.
        run: where blocks land; nobody else may write there meanwhile.
        workers: processes.
        land_every: seconds between files at first, later 1% of the sweep's age.
        on_block: called after each block.
        end: a time of `time.monotonic` after which no block is begun.
        pool: of `workers` processes, if there is one already.

    Raises:
        ValueError: an argument is outside its range, the run is in use, the disk is full, or a worker was killed.
    """
    check_sweep(cells, draws=draws, seed=seed, workers=workers, land_every=land_every)
    cells = list({cell.name: cell for cell in cells}.values())
    with run.hold():
        run.keep_windows(cells)
        landed = run.landed()
        to_do = _Account(cells, draws, seed, landed)
        log.info("%d of %d blocks to sample, seed %d", to_do.blocks, to_do.blocks + to_do.landed, seed)
        landing = _Landing(run, land_every)
        try:
            with executor(workers) if pool is None else nullcontext(pool) as processes:
                # Two for each process keep it busy; this process takes one after the other.
                in_flight = 2 * workers if workers > 1 else 1
                for (cell, _, index), values in _completed(processes, to_do.work(end), in_flight):
                    landing.add(Block(cell, seed, index, values))
                    if on_block is not None:
                        on_block(to_do.finished(cell, len(values["loss"])))
        except BrokenProcessPool as error:
            raise ValueError(
                "workers must fit into memory, but one was killed; use fewer. Draws that landed stay, and the same "
                "command continues."
            ) from error
        finally:
            landing.land()
            log.info("ended with %d blocks sampled, %d not", to_do.done, to_do.blocks - to_do.done)


class _Landing:
    """Blocks on their way to the disk."""

    def __init__(self, run: Run, land_every: float) -> None:
        self._run, self._land_every = run, land_every
        self._pending: list[Block] = []
        self._bytes = 0
        self._start = self._last = time.monotonic()

    def add(self, block: Block) -> None:
        """Take a block; write a file when there is enough for one."""
        self._pending.append(block)
        self._bytes += sum(value.nbytes for value in block.values.values())
        now = time.monotonic()
        if self._bytes > _FILE_BYTES or now - self._last > max(self._land_every, _SHARE_OF_AGE * (now - self._start)):
            self.land()

    def land(self) -> None:
        """Write what is there as one file."""
        blocks, self._pending, self._bytes = self._pending, [], 0
        self._run.append(blocks)
        self._last = time.monotonic()
        if blocks:
            log.info("landed %d blocks", len(blocks))


class _Account:
    """Which blocks are to be sampled, and how many have been."""

    def __init__(self, cells: Sequence[Cell], draws: int | Mapping[str, int], seed: int, landed: set[Landed]) -> None:
        self._cells, self._seed, self._skip = cells, seed, landed
        each = draws if isinstance(draws, Mapping) else dict.fromkeys((cell.name for cell in cells), draws)
        self._blocks = {cell.name: cell.blocks(each[cell.name]) for cell in cells}
        self._left: dict[str, int] = {}
        self.landed = self.blocks = self.done = self._drawn = 0
        self._cost = self._spent = 0.0
        for cell in cells:
            missing = sum((cell.name, seed, block) not in landed for block in range(self._blocks[cell.name]))
            self.landed += self._blocks[cell.name] - missing
            self.blocks += missing
            self._cost += missing * block_work(cell).cost
            if missing:
                self._left[cell.name] = missing

    def work(self, end: float) -> Iterator[Work]:
        """The blocks to sample, cell after cell, until the clock says `end`."""
        for cell in self._cells:
            for block in range(self._blocks[cell.name]):
                if time.monotonic() > end:
                    return
                if (cell.name, self._seed, block) not in self._skip:
                    yield cell, self._seed, block

    def finished(self, cell: Cell, draws: int) -> Progress:
        """Count a block."""
        self.done += 1
        self._drawn += draws
        self._spent += block_work(cell).cost
        self._left[cell.name] -= 1
        if not self._left[cell.name]:
            del self._left[cell.name]
        total = len(self._cells)
        return Progress(
            (self.done, self.blocks), (total - len(self._left), total), self._drawn, self._spent / self._cost
        )


def check_sweep(
    cells: Sequence[Cell],
    *,
    draws: int | Mapping[str, int],
    seed: int,
    workers: int,
    land_every: float = LAND_EVERY,
) -> None:
    """Refuse what `sweep` would refuse, before a folder is made for it.

    Raises:
        ValueError: no cells, a count outside its range, or a device this machine does not have.
    """
    if not cells:
        raise ValueError("cells must hold at least one cell, got none.")
    for count in set(draws.values()) if isinstance(draws, Mapping) else {draws}:
        check_count("draws", count, 1)
    check_count("seed", seed, 0)
    check_count("workers", workers, 1)
    if not 0 <= land_every < float("inf"):
        raise ValueError(f"land_every must be a number of seconds of at least 0, got {land_every!r}.")
    for device in {cell.device for cell in cells}:
        check_device(device)


def _completed(
    pool: Executor, work: Iterable[Work], in_flight: int
) -> Iterator[tuple[Work, dict[str, NDArray[np.floating]]]]:
    queue = iter(work)
    futures: dict[Future, Work] = {}
    exhausted = False
    while not exhausted or futures:
        while not exhausted and len(futures) < in_flight:
            item = next(queue, None)
            if item is None:
                exhausted = True
                break
            futures[pool.submit(sample_block, *item)] = item
        finished, _ = wait(futures, return_when=FIRST_COMPLETED)
        # What failed comes last: the others have been sampled, and land.
        for future in sorted(finished, key=lambda f: f.exception() is not None):
            yield futures.pop(future), future.result()
