"""Estimate the time, memory and disk space of a sweep, from counted work and a short calibration."""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from simulate.runs.cell import Cell
from simulate.runs.cost import block_bytes, block_work
from simulate.runs.memory import BatchLimits
from simulate.runs.sample import sample_block
from theory.stack import Stack
from theory.stack.quantities import QUANTITIES

# Small Stacks that differ in what dominates: fixed steps, random numbers, products, elementwise work.
_PROBES = (
    Stack(width=4, depth=1, tokens=1, vocab=2),
    Stack(width=4, depth=8, tokens=1, vocab=2),
    Stack(width=64, depth=1, tokens=4, vocab=512),
    Stack(width=128, depth=1, tokens=32, vocab=2),
    Stack(width=16, depth=2, tokens=64, vocab=2),
    Stack(width=256, depth=2, tokens=1, vocab=2),
)
_REPETITIONS = 2
# Beyond, what is left to calibrate runs once.
_SECONDS = 1.0

# Cells whose work is counted one by one, some tenths of a second.
_MOST_CELLS = 1000

# A process that has imported everything, and a file's own overhead, from measurements on Linux.
_PROCESS_BYTES = 4e8
_FILE_BYTES = 2e4


@dataclass(frozen=True, slots=True)
class Plan:
    """The estimated cost of a sweep: time, memory and disk space.

    Attributes:
        cells: number of cells (configurations).
        blocks: number of blocks.
        draws: number of draws, in whole blocks.
        seconds: estimated duration.
        memory: estimated peak bytes, of all processes.
        disk: estimated bytes of the run folder.
    """

    cells: int
    blocks: int
    draws: int
    seconds: float
    memory: float
    disk: float


def plan(cells: Sequence[Cell], *, draws: int, workers: int, limits: BatchLimits) -> Plan:
    """Estimate time, memory and disk space of a sweep, after a calibration of about a second on its device.

    Args:
        cells: the cells to sample.
        draws: least number of draws per cell.
        workers: number of processes.
        limits: limits of the processes' batches.

    Raises:
        ValueError: this machine does not have the device.
    """
    kinds = {(cell.engine, cell.device, cell.dtype): cell for cell in cells}
    rates = {kind: _rates(cell, _SECONDS / len(kinds)) for kind, cell in kinds.items()}
    blocks = np.array([cell.blocks(draws) for cell in cells])
    sampled = blocks * np.array([cell.draws_per_block for cell in cells])
    per_layer = sum(q.per_layer for q in QUANTITIES.values())
    values = np.array([len(QUANTITIES) - per_layer + per_layer * cell.stack.most_layers for cell in cells])
    sizes = np.array([4 if cell.dtype == "float32" else 8 for cell in cells])
    # Of a great many cells some stand for all; the largest is among them, for its memory.
    largest = max(range(len(cells)), key=lambda k: cells[k].stack.width * cells[k].stack.depth * cells[k].stack.tokens)
    at = np.arange(len(cells))
    if len(cells) > _MOST_CELLS:
        at = np.append(np.random.default_rng(0).choice(at, _MOST_CELLS, replace=False), largest)
    chosen, counts = [cells[int(k)] for k in at], blocks[at]
    each = np.array([rates[c.engine, c.device, c.dtype] @ astuple(block_work(c)) for c in chosen])
    if all(cell.device_kind == "cpu" for cell in cells):
        limits = limits.as_now()
    batches = [min(count, limits.blocks(cell)) * block_bytes(cell) for cell, count in zip(chosen, counts, strict=True)]
    seconds = float(counts @ each) * float(blocks.sum() / counts.sum()) / workers
    return Plan(
        cells=len(cells),
        blocks=int(blocks.sum()),
        draws=int(sampled.sum()),
        seconds=seconds,
        memory=workers * (_PROCESS_BYTES + max(batches)),
        disk=float((sampled * values * sizes).sum()) + _FILE_BYTES * min(float(blocks.sum()), 1 + seconds / 5),
    )


def _rates(cell: Cell, enough: float) -> np.ndarray:
    """Return this machine's seconds per step, random number, flop and element, by nonnegative least squares.

    Args:
        cell: a cell with the engine, device and data type to calibrate.
        enough: number of seconds after which no measurement is repeated.
    """
    from scipy.optimize import nnls  # late: to sample takes none of it

    engine = "conditioned" if cell.engine == "gram" else cell.engine  # which takes the narrow ones too
    probes = [Cell(stack, engine, cell.device, cell.dtype) for stack in _PROBES]
    seconds, end = [], time.perf_counter() + enough
    for probe in probes:
        times = [_timed(probe)]  # the first is to warm up, and counts where nothing follows
        while len(times) <= _REPETITIONS and time.perf_counter() < end:
            times.append(_timed(probe))
        seconds.append(min(times))
    # Relative errors count: every row is divided by its time.
    rows = np.array([astuple(block_work(probe)) for probe in probes]) / np.array(seconds)[:, None]
    scale = rows.max(0)
    return nnls(rows / scale, np.ones(len(probes)))[0] / scale


def _timed(cell: Cell) -> float:
    start = time.perf_counter()
    sample_block(cell, 0, 0)
    return time.perf_counter() - start
