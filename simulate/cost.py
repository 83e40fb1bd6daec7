"""What a sweep takes: its work counted, and turned into time, memory and disk by a short calibration."""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import nnls

from simulate.cell import Cell
from simulate.sample import sample_block
from theory.quantities import QUANTITIES
from theory.stack import Stack
from theory.weights import rows_met, weight_shapes

# Small Stacks that differ in what dominates: fixed steps, random numbers, products, elementwise work.
_PROBES = (
    Stack(width=4, depth=1, tokens=1, vocab=2),
    Stack(width=4, depth=32, tokens=1, vocab=2),
    Stack(width=256, depth=4, tokens=1, vocab=2),
    Stack(width=128, depth=2, tokens=64, vocab=2),
    Stack(width=16, depth=4, tokens=256, vocab=2),
    Stack(width=64, depth=1, tokens=4, vocab=512),
)
_REPETITIONS = 2

# A process that has imported everything, and a file's own overhead, from measurements on Linux.
_PROCESS_BYTES = 4e8
_FILE_BYTES = 2e4


@dataclass(frozen=True, slots=True)
class Work:
    """What one block takes, in counts.

    Attributes:
        steps: layers, each with a fixed overhead.
        normals: random numbers.
        flops: of matrix products.
        elements: entries of token matrices and logits that elementwise operations touch.
    """

    steps: float
    normals: float
    flops: float
    elements: float

    @property
    def cost(self) -> float:
        """One number for a progress bar: seconds by the usual rates of a CPU core."""
        return 5e-4 * self.steps + 6e-9 * self.normals + 3e-11 * self.flops + 1e-8 * self.elements


def block_work(cell: Cell) -> Work:
    """The work of one block of a cell."""
    s, draws = cell.stack, cell.draws_per_block
    normals, flops = (_dense if cell.engine == "dense" else _conditioned)(s)
    return Work(
        steps=sum(part.depth for part in s.parts) + 1,
        normals=draws * (normals + sum(part.rows for part in s.parts) * s.width),
        flops=draws * flops,
        elements=draws * (_kept(s, 10) + s.rows * s.vocab),
    )


def _kept(s: Stack, streams: int) -> int:
    """Entries of so many streams and twice the units in every layer."""
    return sum(part.rows * part.depth * (streams * part.width + 2 * part.ffn_width) for part in s.parts)


def _maps(s: Stack) -> list[tuple[int, int, int]]:
    """Rows, d_in and d_out of every matrix of the layers."""
    each = [(rows_met(part)[role], a, b) for part in s.parts for role, (a, b) in weight_shapes(part).items()]
    return each * s.depth


def _dense(s: Stack) -> tuple[float, float]:
    """Random numbers and flops of one draw: every matrix, forward and back; Gram matrices; ‖W_emb‖₂."""
    maps, (smaller, larger) = _maps(s), sorted((s.vocab, s.width))
    products = sum(4 * rows * a * b for rows, a, b in maps) + sum(8 * p.rows**2 * s.width * s.depth for p in s.parts)
    head = 4 * s.rows * s.width * s.vocab + 2 * smaller**2 * larger + 4 * smaller**3
    return sum(a * b for _, a, b in maps) + s.vocab * s.width, products + head


def _conditioned(s: Stack) -> tuple[float, float]:
    """Random numbers and flops of one draw: n rows of either width per map, and seven products of n x n with n x d."""
    maps = [*_maps(s), (s.rows, s.width, s.vocab)]
    normals = sum(rows * (a + b + rows) for rows, a, b in maps)
    return normals, sum(2 * rows**2 * (4 * a + 3 * b) for rows, a, b in maps)


def block_bytes(cell: Cell) -> float:
    """Peak memory of sampling one block: the weights once more while they are scaled, and what autograd keeps."""
    s, size = cell.stack, 4 if cell.dtype == "float32" else 8
    dense = cell.engine == "dense"
    entries = [a * b for _, a, b in _maps(s)]
    weights = sum(entries) + s.vocab * s.width if dense else 0
    largest = max(*entries, s.vocab * s.width) if dense else 4 * s.rows * max(s.width, s.ffn_width, s.vocab)
    kept = _kept(s, 12) + 4 * s.rows * s.vocab
    return float(cell.draws_per_block * size * (weights + largest + kept))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep will take.

    Attributes:
        cells: number of cells.
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


def plan(cells: Sequence[Cell], *, draws: int, workers: int) -> Plan:
    """Estimate a sweep from a calibration of a second or two on the cells' device.

    Raises:
        ValueError: the device is not there.
    """
    kinds = {(cell.engine, cell.device, cell.dtype): cell for cell in cells}
    rates = {kind: _rates(cell) for kind, cell in kinds.items()}
    blocks = np.array([cell.blocks(draws) for cell in cells])
    each = np.array([rates[c.engine, c.device, c.dtype] @ astuple(block_work(c)) for c in cells])
    per_layer = sum(q.per_layer for q in QUANTITIES.values())
    values = np.array([len(QUANTITIES) - per_layer + per_layer * cell.stack.depth for cell in cells])
    sizes = np.array([4 if cell.dtype == "float32" else 8 for cell in cells])
    sampled = blocks * np.array([cell.draws_per_block for cell in cells])
    seconds = float(blocks @ each) / workers
    return Plan(
        cells=len(cells),
        blocks=int(blocks.sum()),
        draws=int(sampled.sum()),
        seconds=seconds,
        memory=workers * (_PROCESS_BYTES + max(block_bytes(cell) for cell in cells)),
        disk=float((sampled * values * sizes).sum()) + _FILE_BYTES * min(float(blocks.sum()), 1 + seconds / 5),
    )


def _rates(cell: Cell) -> np.ndarray:
    """Seconds per step, random number, flop and element of this machine, by nonnegative least squares."""
    probes = [Cell(stack, cell.engine, cell.device, cell.dtype) for stack in _PROBES]
    seconds = []
    for probe in probes:
        sample_block(probe, 0, 0)
        seconds.append(min(_timed(probe) for _ in range(_REPETITIONS)))
    # Relative errors count: every row is divided by its time.
    rows = np.array([astuple(block_work(probe)) for probe in probes]) / np.array(seconds)[:, None]
    scale = rows.max(0)
    return nnls(rows / scale, np.ones(len(probes)))[0] / scale


def _timed(cell: Cell) -> float:
    start = time.perf_counter()
    sample_block(cell, 0, 0)
    return time.perf_counter() - start
