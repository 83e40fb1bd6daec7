"""What storing, resuming and reading cost, on ten thousand cells; and what a second worker brings."""

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pandas as pd

from simulate import Cell, Run
from simulate.runs.execution import Execution
from simulate.runs.sample import sample_block
from simulate.runs.sweep import sample_into
from theory import Stack

REPETITIONS = 5


def cells(count: int) -> list[Cell]:
    """So many different tiny cells, one block each."""
    stacks = (
        Stack(placement=placement, width=width, depth=depth, tokens=tokens, vocab=4)
        for tokens in range(1, 51)
        for depth in (1, 2)
        for width in range(4, 54)
        for placement in ("post", "pre")
    )
    return [Cell(stack) for stack, _ in zip(stacks, range(count), strict=False)]


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def new_run(folder: str) -> Run:
    """An empty run."""
    return Run.create(folder, {"request": {"command": "bench"}})


def overhead(many: list[Cell]) -> float:
    """Milliseconds per block that a sweep adds to sampling the same blocks bare, from the fastest repetitions."""
    best = {"bare": float("inf"), "swept": float("inf")}
    for _ in range(REPETITIONS):
        best["bare"] = min(best["bare"], seconds(lambda: [sample_block(cell, 0, 0) for cell in many]))
        with tempfile.TemporaryDirectory() as folder:
            run = new_run(folder)
            best["swept"] = min(best["swept"], seconds(lambda run=run: sample_into(many, draws=1, seed=0, run=run)))
    return 1000 * (best["swept"] - best["bare"]) / len(many)


def peak_memory(count: int) -> float:
    """MiB at most of a process that sweeps so many cells."""
    code = (
        "import tempfile; from bench.store import *\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        f"    sample_into(cells({count}), draws=1, seed=0, run=new_run(folder))\n"
        # Of this program alone: what getrusage says, a process inherits from the one that started it.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def workers(count: int) -> float:
    """Seconds of a compute-bound sweep with so many processes, their start included."""
    heavy = [Cell(Stack(placement=p, width=512, depth=6, vocab=512), "dense") for p in ("post", "pre")]
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(folder)
        return seconds(lambda: sample_into(heavy, draws=768, seed=0, run=run, execution=Execution(workers=count)))


def report() -> dict[str, object]:
    """Everything above, interleaved where it is a ratio."""
    many = cells(10_000)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = new_run(folder)
        whole = seconds(lambda: sample_into(many, draws=1, seed=0, run=run))
        scan = seconds(lambda: sample_into(many, draws=1, seed=0, run=run))
        into_pandas = seconds(lambda: pd.concat([s.to_frame() for s in run.samples()], ignore_index=True))
        into_samples = seconds(run.samples)
        size = sum(file.stat().st_size for file in (run.folder / "blocks").iterdir())
    both = [(workers(1), workers(2)) for _ in range(2)]
    memory = {count: peak_memory(count) for count in (1000, 10_000)}
    return {
        "10^4 cells of one block, seconds": {
            "sweep": whole,
            "resume scan": scan,
            "into pandas": into_pandas,
            "into Samples": into_samples,
        },
        "10^4 cells, MiB on disk": size / 2**20,
        "overhead per block, milliseconds": overhead(many[:300]),
        "peak memory of a sweep, MiB": {f"{count} cells": value for count, value in memory.items()},
        "one worker over two": min(single for single, _ in both) / min(two for _, two in both),
    }
