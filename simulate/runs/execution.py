"""Options of how networks are sampled: processes, batch sizes and memory; none of them changes a number."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from multiprocessing import active_children, connection, forkserver, get_context, parent_process, resource_tracker
from multiprocessing.context import BaseContext
from operator import itemgetter
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simulate.counts import check_count
from simulate.runs.cell import Cell, check_device
from simulate.runs.cost import block_work
from simulate.runs.memory import BatchLimits, check_memory, next_batch, useful_blocks
from simulate.runs.registrations import packed, unpack
from simulate.runs.sample import sample_batches

LAND_EVERY = 5.0
"""Seconds between files at the beginning of a sweep: the work that an interruption can lose."""

# Blocks of a cell that are made tasks of together.
_AT_A_TIME = 2**16

# The signals that end a command: Ctrl-C, and the one that schedulers send before they kill.
_STOPS = (signal.SIGINT, signal.SIGTERM)

Values = dict[str, NDArray[np.floating]]
Task = tuple[Cell, int, tuple[int, ...]]
"""The blocks of one cell that a worker gets together: the cell, the root seed, and the blocks' indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The options of how a sweep runs: number of processes, memory and files.

    Attributes:
        workers: number of processes with one thread each; on CUDA they use the GPUs in turn.
        land_every: seconds between saved files at first, later 1% of the sweep's running time.
        task_seconds: seconds of work that a worker gets at once, as several blocks of a cell.
        at_once: blocks in one batch of tensors; 0 chooses the fastest number that fits into memory.
        memory: bytes for the batches of all workers together, or of each worker of a pool. None means half of the free
            memory, at most 6 GiB per worker; a worker of a pool uses its core's share.
        pool: an existing executor with `workers` workers.
        work: function that returns the draws of a task's blocks, with the arguments of `sample_task`, its default.

    Raises:
        ValueError: a number is outside its range.
    """

    workers: int = 1
    land_every: float = LAND_EVERY
    task_seconds: float = 0.0
    at_once: int = 0
    memory: float | None = None
    pool: Executor | None = None
    work: Callable[..., list[Values]] | None = None

    def __post_init__(self) -> None:
        check_count("workers", self.workers, 1)
        check_count("at_once", self.at_once, 0)
        check_memory(self.memory)
        for name in ("land_every", "task_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number of seconds of at least 0, got {getattr(self, name)!r}.")

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Yield the executor that samples: a given pool, this process, or new worker processes.

        Raises:
            KeyboardInterrupt: the `with` block was interrupted; its workers are then terminated.
            SystemExit: the `with` block was interrupted by a handler that exits; its workers are then terminated.
        """
        if self.pool is not None or self.workers == 1:
            yield self.pool or InProcess()
            return
        context = worker_context()
        numbers = context.SimpleQueue()
        for number in range(self.workers):
            numbers.put(number)
        others = set(active_children())
        pool = _Processes(self.workers, context, _start_worker, (numbers,))
        try:
            yield pool
        except (KeyboardInterrupt, SystemExit):  # the latter where somebody's handler of Ctrl-C exits
            # What they are at is lost in any case, and a scheduler does not wait for the end of it.
            for worker in set(active_children()) - others:
                worker.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def tasks(self, blocks: Iterable[tuple[Cell, int, int]]) -> Iterator[Task]:
        """Group blocks of networks into tasks for workers; each task has one configuration.

        The order is that of the blocks.
        """
        for (cell, seed), group in groupby(blocks, key=itemgetter(0, 1)):
            # A cell may have more blocks than fit into memory.
            while left := [block for _, _, block in islice(group, _AT_A_TIME)]:
                start, most = 0, self._most(cell, len(left))
                while start < len(left):
                    size = next_batch(len(left) - start, most)
                    yield cell, seed, tuple(left[start : start + size])
                    start += size

    @property
    def limits(self) -> BatchLimits:
        """The limits of a batch: number of blocks, memory, and number of processes that share the memory.

        They apply where blocks are sampled.
        """
        sharers = (0 if self.memory is None else 1) if self.pool is not None else self.workers
        return BatchLimits(at_once=self.at_once, memory=self.memory, sharers=sharers)

    def _most(self, cell: Cell, left: int) -> int:
        """Return the largest number of blocks in a task: a batch, or more if that would take too little time."""
        # The memory of a worker elsewhere, or of its GPU, is not known here.
        batch = self.limits.blocks(cell) if self.pool is None and cell.device_kind == "cpu" else useful_blocks(cell)
        # One worker with all that is left would leave the others without work where there is one cell.
        batch = self.at_once or min(batch, -(-left // self.workers))
        return max(batch, int(self.task_seconds / block_work(cell).cost))

    def completed(self, pool: Executor, tasks: Iterable[Task]) -> Iterator[tuple[Task, list[Values]]]:
        """Yield each task with its sampled blocks, in the order in which tasks finish."""
        # Two for each process keep it busy; this process takes one after the other.
        in_flight = 2 * self.workers if self.workers > 1 else 1
        queue = iter(tasks)
        futures: dict[Future, Task] = {}
        # A queue costs the same for thousands of futures, which waiting for the first of them does not.
        finished: SimpleQueue[Future] = SimpleQueue()
        failed: Future | None = None
        while True:
            for task in islice(queue, in_flight - len(futures)):
                work: Callable[..., list[Values]] = self.work or sample_task
                registrations = packed(task[0].stack) if self.workers > 1 or self.pool is not None else b""
                future = pool.submit(work, *task, self.limits, registrations)
                futures[future] = task
                future.add_done_callback(finished.put)
            if not futures:
                break
            future = finished.get()
            task = futures.pop(future)
            if future.cancelled() or future.exception() is not None:
                # What failed comes last: the others that are being sampled land.
                failed, queue = failed or future, iter(())
                for other in futures:
                    other.cancel()
                continue
            yield task, future.result()
        if failed is not None:
            failed.result()


ONE_PROCESS = Execution()
"""The default execution: block after block, in this process."""


class _Processes(ProcessPoolExecutor):
    """A process pool whose calls to start workers cannot be interrupted halfway."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Hand a call to a worker process."""
        with uninterrupted():
            return super().submit(fn, *args, **kwargs)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of a `with` block.

    Blocking the signals is not sufficient: another thread of the process receives them, and Python raises in this one.
    """
    came: list[int] = []
    here = threading.current_thread() is threading.main_thread()  # the only one that is interrupted
    before = {which: signal.getsignal(which) for which in (_STOPS if here else ())}
    try:
        for which, handler in before.items():
            if callable(handler):
                signal.signal(which, lambda number, _: came.append(number))
        yield
    finally:
        for which, handler in before.items():
            if callable(handler):
                signal.signal(which, handler)
        for number in came[:1]:
            signal.raise_signal(number)


class InProcess(Executor):
    """An executor that runs each call immediately, in this process."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Run a call immediately and return its finished future."""
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def sample_task(
    cell: Cell, seed: int, blocks: Sequence[int], limits: BatchLimits, registrations: bytes = b""
) -> list[Values]:
    """Sample the blocks of a task in a worker process.

    The registrations of the main process are applied before.

    Raises:
        ValueError: this machine does not have the device, one block does not fit into its memory, or a registration
            cannot be loaded in this process.
    """
    unpack(cell.stack, registrations)
    check_device(cell.device)
    return sample_batches(cell, seed, blocks, limits)


def worker_context() -> BaseContext:
    """Return the multiprocessing context of worker processes, which are not forked from this process.

    This process has CUDA and threads.

    On Linux, workers are forks of a server process that has only imported the necessary modules. The server and its
    workers start with Ctrl-C and SIGTERM blocked, so that only the parent handles an interruption, even a very early
    one or one that a scheduler sends to all processes of a job.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    # The first imports this module too, but where somebody's file has our package's name.
    context.set_forkserver_preload(["gradbounds.workers", __name__])
    resource_tracker.ensure_running()  # which the server needs, and whose start ends with Ctrl-C let in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _start_worker(numbers: Any) -> None:
    """Set up a worker: take a GPU in turn, leave Ctrl-C and SIGTERM to the parent, and end when the parent ends."""
    number = numbers.get()
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
        if sys.platform == "linux":
            threading.Thread(target=_obey, args=(parent.pid,), daemon=True).start()


def _follow(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _obey(parent: int) -> None:
    """End this worker when its parent sends SIGTERM, which is blocked for all other senders."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(1)
