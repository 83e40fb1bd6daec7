"""Sweeps that are killed at random moments, and what is left of them."""

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simulate import Run


def short_blocks(draws: int) -> list[str]:
    """A sweep of ten cells, in blocks of 64 draws and of a few milliseconds."""
    return [
        "sweep", "--width", "8:16:+8", "--vocab", "4", "--depth", "1:5:+1", "--tokens", "2", "--placement", "pre",
        "--draws", str(draws), "--land-every", "0.05",
    ]  # fmt: skip


SWEEP = short_blocks(768)
BLOCKS = 120


def start(out: Path, workers: int = 1, line: list[str] = SWEEP, dask: str = "") -> subprocess.Popen:
    """A sweep in a process of its own, by so many workers or those of a scheduler."""
    where = ["--dask", dask] if dask else ["--workers", str(workers)]
    command = [sys.executable, "-m", "gradbounds", *line, "--out", str(out), *where]
    # A suite that a shell runs in the background has SIGINT ignored, and children inherit that.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def wait_for_a_file(out: Path, process: subprocess.Popen) -> None:
    """Until the first blocks of a sweep have landed."""
    while not list((out / "blocks").glob("*.parquet")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def landed(out: Path) -> int:
    """How many blocks a run holds."""
    return len(Run.open(out).landed()) if (out / "manifest.toml").exists() else 0


def stop_at_random(
    out: Path,
    rng: np.random.Generator,
    how: signal.Signals,
    workers: int = 1,
    line: list[str] = SWEEP,
    last: float = 0.6,
) -> subprocess.Popen:
    """Start or continue a sweep, and signal it at most `last` seconds after its first new file."""
    process = start(out, workers, line)
    seen = len(list((out / "blocks").glob("*.parquet")))
    while process.poll() is None and len(list((out / "blocks").glob("*.parquet"))) == seen:
        time.sleep(0.005)
    time.sleep(rng.uniform(0.0, last))
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (-how, 0), said
    return process


def sorted_table(out: Path) -> pa.Table:
    """All draws of a run in one order."""
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
