"""Many cells in blocks over an executor, landing in a run folder as they finish."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from simulate.cell import Cell, check_device
from simulate.sample import check_count, sample_block
from simulate.store import Block, Run

# A file per this many blocks or seconds, whichever comes first: what an interruption can lose.
_FILE_BLOCKS = 256
_FILE_SECONDS = 5.0

Work = tuple[Cell, int, int]


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
    # Not fork: CUDA and thread pools do not survive it. Ctrl-C is for this process, which then stops the workers.
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def sweep(
    cells: Sequence[Cell],
    *,
    draws: int,
    seed: int,
    run: Run,
    workers: int = 1,
    on_block: Callable[[int, int], None] | None = None,
) -> None:
    """Sample every cell into a run, skipping the blocks that have landed there.

    Blocks are whole: a cell gets at least `draws` draws, rounded up to its block size. The numbers depend on seed,
    cell and block alone, not on workers or order.

    Args:
        cells: what to sample.
        draws: least number of draws per cell.
        seed: root seed.
        run: where blocks land.
        workers: processes.
        on_block: called with (blocks done, blocks in all) after each.

    Raises:
        ValueError: an argument is outside its range.
    """
    check_sweep(cells, draws=draws, seed=seed, workers=workers)
    landed = run.landed()
    work = [
        (cell, seed, block)
        for cell in cells
        for block in range(-(-draws // cell.draws_per_block))
        if (cell.name, block) not in landed
    ]
    done = 0
    pending: list[Block] = []
    last_file = time.monotonic()
    with executor(workers) as pool:
        try:
            for (cell, _, index), values in _completed(pool, work, in_flight=2 * workers):
                pending.append(Block(cell, seed, index, values))
                done += 1
                if on_block is not None:
                    on_block(done, len(work))
                if len(pending) >= _FILE_BLOCKS or time.monotonic() - last_file > _FILE_SECONDS:
                    run.append(pending)
                    pending, last_file = [], time.monotonic()
        finally:
            run.append(pending)


def check_sweep(cells: Sequence[Cell], *, draws: int, seed: int, workers: int) -> None:
    """Refuse what `sweep` would refuse, before a folder is made for it.

    Raises:
        ValueError: no cells, a count outside its range, or a device this machine does not have.
    """
    if not cells:
        raise ValueError("cells must hold at least one cell, got none.")
    check_count("draws", draws, 1)
    check_count("seed", seed, 0)
    check_count("workers", workers, 1)
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
        for future in finished:
            yield futures.pop(future), future.result()
