"""Where blocks are sampled, and how many at a time. Nothing here changes a number."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simulate.cell import Cell, check_device
from simulate.cost import block_bytes, block_work
from simulate.sample import check_count, sample_blocks

LAND_EVERY = 5.0
"""Seconds between files of a young sweep: what an interruption can lose."""

# A GPU is given blocks of so many bytes at once, where its free memory, of which a batch takes half, allows.
_GPU_BATCH = 2**34
_MOST_AT_ONCE = 256

Values = dict[str, NDArray[np.floating]]
Task = tuple[Cell, int, tuple[int, ...]]
"""Blocks of one cell that are handed over together: the cell, the root seed, and their indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a sweep is carried out.

    Attributes:
        workers: processes of one thread; on CUDA they take the GPUs in turn.
        land_every: seconds between files at first, later 1% of the sweep's age.
        task_seconds: blocks of a cell are handed to a worker together until they take about so long.
        at_once: blocks in one batch of tensors; 0 for one on a CPU, and on a GPU for as many as fit its free memory.
        pool: an executor of `workers`, if there is one already.

    Raises:
        ValueError: a number is outside its range.
    """

    workers: int = 1
    land_every: float = LAND_EVERY
    task_seconds: float = 0.0
    at_once: int = 0
    pool: Executor | None = None

    def __post_init__(self) -> None:
        check_count("workers", self.workers, 1)
        check_count("at_once", self.at_once, 0)
        for name in ("land_every", "task_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number of seconds of at least 0, got {getattr(self, name)!r}.")

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """The pool, or one that ends with the context; one worker is this process."""
        if self.pool is not None or self.workers == 1:
            yield self.pool or InProcess()
            return
        context = get_context("spawn")  # not fork: CUDA and thread pools do not survive it
        numbers = context.SimpleQueue()
        for number in range(self.workers):
            numbers.put(number)
        pool = ProcessPoolExecutor(self.workers, context, _start_worker, (numbers,))
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def tasks(self, blocks: Iterable[tuple[Cell, int, int]], end: float) -> Iterator[Task]:
        """Blocks as tasks, in their order, until the monotonic clock says `end`."""
        waiting: list[int] = []
        last: tuple[Cell, int] | None = None
        for cell, seed, block in blocks:
            if time.monotonic() > end:
                return
            if last is not None and (last != (cell, seed) or len(waiting) >= self._most(cell)):
                yield *last, tuple(waiting)
                waiting = []
            last = cell, seed
            waiting.append(block)
        if last is not None:
            yield *last, tuple(waiting)

    def _most(self, cell: Cell) -> int:
        """Blocks of a task."""
        fits = 1 if cell.device_kind == "cpu" else min(int(_GPU_BATCH // block_bytes(cell)), _MOST_AT_ONCE)
        return max(1, self.at_once or fits, int(self.task_seconds / block_work(cell).cost))

    def completed(self, pool: Executor, tasks: Iterable[Task]) -> Iterator[tuple[Task, list[Values]]]:
        """Tasks and what they gave, as they finish."""
        # Two for each process keep it busy; this process takes one after the other.
        in_flight = 2 * self.workers if self.workers > 1 else 1
        queue = iter(tasks)
        futures: dict[Future, Task] = {}
        # A queue costs the same for thousands of futures, which waiting for the first of them does not.
        finished: SimpleQueue[Future] = SimpleQueue()
        failed: Future | None = None
        exhausted = False
        while futures or not exhausted:
            while not exhausted and len(futures) < in_flight:
                task = next(queue, None)
                if task is None:
                    exhausted = True
                    break
                future = pool.submit(sample_task, *task, self.at_once)
                futures[future] = task
                future.add_done_callback(finished.put)
            if not futures:
                break
            future = finished.get()
            task = futures.pop(future)
            if future.cancelled() or future.exception() is not None:
                # What failed comes last: the others that are being sampled land.
                failed = failed or future
                exhausted = True
                for other in futures:
                    other.cancel()
                continue
            yield task, future.result()
        if failed is not None:
            failed.result()


ONE_PROCESS = Execution()
"""Block after block, in this process."""


class InProcess(Executor):
    """An executor that runs each call at once, in this process."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Run the call and return its finished future."""
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def sample_task(cell: Cell, seed: int, blocks: Sequence[int], at_once: int) -> list[Values]:
    """The draws of the blocks of a task, in batches of `at_once` of them, or as many as memory allows.

    Raises:
        ValueError: there is no such device here, or one block does not fit into its memory.
    """
    check_device(cell.device)
    together = at_once or blocks_that_fit(cell)
    found: list[Values] = []
    while len(found) < len(blocks):
        batch = blocks[len(found) : len(found) + together]
        try:
            found += sample_blocks(cell, seed, batch)
        except ValueError:
            # Somebody else may have taken the memory that was free.
            if len(batch) == 1:
                raise
            together = len(batch) // 2
    return found


def blocks_that_fit(cell: Cell) -> int:
    """Blocks of a batch: one on a CPU, whose cache it fills; those that take half of a GPU's free memory."""
    if cell.device_kind == "cpu":
        return 1
    free, _ = torch.cuda.mem_get_info(cell.device)
    return max(1, int(min(free / 2, _GPU_BATCH) // block_bytes(cell)))


def _start_worker(numbers: Any) -> None:
    """Take a GPU in turn, leave Ctrl-C to the parent, and never outlive one that was killed."""
    number = numbers.get()
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
