"""What a very large sweep costs besides what it computes: empty blocks by the million, and the way to Dask and back."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from bench.store import new_run, seconds
from simulate import Cell, Run
from simulate.runs.execution import Execution
from simulate.runs.sample import sample_block
from simulate.runs.sweep import Progress, sample_into
from theory import Stack

BLOCKS = 1_000_000
STEP = 100_000
DASK_BLOCKS = 2000
# Wide enough that a block is one draw, of 23 numbers.
_WIDE = 2**20


class Empty(Executor):
    """Gives one draw of something for every block, without a network."""

    def __init__(self) -> None:
        values = sample_block(Cell(Stack(width=16, depth=1), "conditioned"), 0, 0)
        self.values = {name: value[:1] for name, value in values.items()}

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """A finished future."""
        future: Future = Future()
        future.set_result([self.values] * len(args[2]))
        return future


def many_cells(count: int) -> list[Cell]:
    """Cells of one draw per block that differ in the width."""
    return [Cell(Stack(width=_WIDE + k, depth=1), "conditioned") for k in range(count)]


def resident() -> float:
    """MiB of this process."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def empty_sweep(cells: list[Cell], draws: int, run: Run) -> list[dict[str, float]]:
    """Seconds and memory whenever another `STEP` blocks have been taken in."""
    start, seen = time.perf_counter(), [{"blocks": 0, "seconds": 0.0, "MiB": round(resident())}]

    def on_block(now: Progress) -> None:
        if now.blocks[0] % STEP == 0:
            spent = round(time.perf_counter() - start, 1)
            seen.append({"blocks": now.blocks[0], "seconds": spent, "MiB": round(resident())})

    sample_into(cells, draws=draws, seed=0, run=run, execution=Execution(pool=Empty()), on_block=on_block)
    return seen


def measured(cells: int, draws: int) -> dict[str, Any]:
    """A sweep of empty blocks, its folder, and what it takes to find out that nothing is left to do."""
    spent = time.perf_counter()
    swept = many_cells(cells)
    spent = time.perf_counter() - spent
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(folder)
        seen = empty_sweep(swept, draws, run)
        scan = seconds(lambda: sample_into(swept, draws=draws, seed=0, run=run))
        sizes = [file.stat().st_size for file in run.files()]
    return {
        "cells": cells,
        "blocks of each": draws,
        "cells made, ms each": round(1000 * spent / cells, 3),
        "ms per block": round(1000 * seen[-1]["seconds"] / seen[-1]["blocks"], 3),
        "along the way": seen,
        "files": len(sizes),
        "bytes per block": round(sum(sizes) / seen[-1]["blocks"]),
        "resume scan, seconds": round(scan, 1),
        "MiB after the scan": round(resident()),
    }


def in_a_process(call: str) -> dict[str, Any]:
    """What a call of this module gives in a process of its own, whose memory is its own."""
    code = f"import json; from bench.scale import *; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def dask_overhead() -> dict[str, float]:
    """Milliseconds that a Dask cluster of one process adds to sampling a tiny block here, one by one or in tasks."""
    from distributed import Client, LocalCluster

    cell = Cell(Stack(width=8, depth=1, tokens=2, vocab=4))
    draws = DASK_BLOCKS * cell.draws_per_block
    milliseconds = {
        "bare": 1000 * seconds(lambda: [sample_block(cell, 0, k) for k in range(DASK_BLOCKS)]) / DASK_BLOCKS
    }
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        pool = client.get_executor(pure=False)
        list(pool.map(abs, range(100)))
        for task_seconds in (0.0, 0.2):
            how = Execution(workers=16, pool=pool, task_seconds=task_seconds)
            with tempfile.TemporaryDirectory() as folder:
                run = new_run(folder)
                spent = seconds(
                    lambda run=run, how=how: sample_into([cell], draws=draws, seed=0, run=run, execution=how)
                )
            milliseconds[f"tasks of {task_seconds} s"] = 1000 * spent / DASK_BLOCKS - milliseconds["bare"]
    return {name: round(value, 2) for name, value in milliseconds.items()}


def report() -> dict[str, object]:
    """Empty blocks of one cell and of as many cells, and the way through Dask."""
    return {
        "one cell": in_a_process(f"measured(1, {BLOCKS})"),
        "a cell per block": in_a_process(f"measured({BLOCKS}, 1)"),
        "Dask, ms per block": dask_overhead(),
    }
