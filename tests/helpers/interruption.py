"""Sweeps that are killed at random moments, and what is left of them."""

import atexit
import hashlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simulate import Run
from simulate.runs.execution import worker_context
from simulate.runs.tables import Block


def short_blocks(draws: int) -> list[str]:
    """A sweep of ten cells, in blocks of 64 draws and of a few milliseconds."""
    return [
        "sweep", "--width", "8:16:+8", "--vocab", "4", "--depth", "1:5:+1", "--tokens", "2", "--placement", "pre",
        "--draws", str(draws), "--land-every", "0.05",
    ]  # fmt: skip


SWEEP = short_blocks(384)
BLOCKS = 60


class Forked:
    """A command line in a process of its own, with as much of `subprocess.Popen` as is used here.

    It is a fork of a server that has imported everything, as a sweep's workers are, and so is there at once.

    Args:
        program: where its function `main` is.
        arguments: of the command line.
        said: the file that both streams go to.
    """

    def __init__(self, program: str, arguments: list[str], said: Path) -> None:
        context = worker_context()
        said.touch()
        self._said = said
        self._process = context.Process(target=_command_line, args=(program, arguments, said))
        self._process.start()
        atexit.register(self._process.kill)  # else Python waits at its end for one that has stopped
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)

    def send_signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, which)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end: nothing, and what it said on both streams."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it runs on"
        return "", self._said.read_text()


def _command_line(program: str, arguments: list[str], said: Path) -> None:
    """Run a program, which stops itself where a sweep has landed its first file, until it is sent SIGCONT.

    A test that looked for the file from outside would find the sweep finished on a busy machine.
    """
    append, seen = Run.append, []

    def first_stops(run: Run, blocks: Sequence[Block]) -> None:
        append(run, blocks)
        if blocks and not seen:
            seen.append(run)
            os.kill(os.getpid(), signal.SIGSTOP)

    Run.append = first_stops
    stream = os.open(said, os.O_WRONLY)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.argv = [program, *arguments]
    sys.exit(importlib.import_module(program).main())


def start(out: Path, workers: int = 1, line: list[str] = SWEEP, dask: str = "") -> Forked:
    """A sweep in a process of its own, by so many workers or those of a scheduler."""
    where = ["--dask", dask] if dask else ["--workers", str(workers)]
    return Forked("gradbounds.__main__", [*line, "--out", str(out), *where], out.with_name(f"{out.name}.said"))


def wait_for_a_file(process: Forked) -> None:
    """Until the first blocks of a sweep have landed, where it has stopped itself."""
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def landed(out: Path) -> int:
    return len(Run.open(out).landed()) if (out / "manifest.toml").exists() else 0


def kill_at_random(out: Path, rng: np.random.Generator, last: float) -> None:
    """Start or continue a sweep, and kill it at most `last` seconds after its first new file; for 0, while it waits.

    One that finished before has the exit code 0.
    """
    process = start(out)
    wait_for_a_file(process)
    if last:
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(rng.uniform(0.0, last))
    process.kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGKILL, 0), said


def sorted_table(out: Path) -> pa.Table:
    table = pa.concat_tables(Run.open(out).tables(), promote_options="permissive")
    return table.sort_by([(name, "ascending") for name in ("cell", "seed", "draw")]).combine_chunks()


def table_digest(out: Path) -> str:
    """SHA-256 of the bytes of the sorted table as a Parquet file: equal for equal bytes, and short to print."""
    sink = pa.BufferOutputStream()
    pq.write_table(sorted_table(out), sink, compression="none")
    return hashlib.sha256(sink.getvalue()).hexdigest()


def repeated_draws(out: Path) -> int:
    """Draws that stand in the run more than once: blocks that landed and were sampled again."""
    keys = sorted_table(out).select(["cell", "seed", "draw"])
    return len(keys) - len(keys.group_by(["cell", "seed", "draw"]).aggregate([]))
