"""Precision instead of counts: how many more draws every cell needs, from the variances seen so far.

Counts grow in rounds, each by a factor of two at most, and are decided by the variance of the draws that earlier rounds
asked for, in the order of their blocks: an interrupted sweep decides the same again, whatever the number of workers.
Means are over all draws. The variance of a skewed quantity is correlated with its mean, so stopping by it has a bias of
second order; with 128 draws to begin with, 95% intervals cover 93 to 97% (tests/simulate/test_precision.py,
docs/runs.md).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulate.runs.cell import Cell
from simulate.runs.cost import block_work
from simulate.runs.execution import Execution
from simulate.runs.store import Run
from simulate.runs.sweep import Progress, sample_into

Array = NDArray[np.float64]

Moments = Callable[[Run, Sequence[Cell], int, Mapping[str, int]], tuple[Array, Array, Array]]

LEAST_DRAWS = 128
"""Of every cell to begin with: from 64 draws of a skewed quantity, stopping costs an interval 1% of its coverage."""

# A cell grows by at least this share of its draws at a time, so that planning takes few steps.
_STEP = 0.05
_GROWTH = 2.0


@dataclass(frozen=True, slots=True)
class Goal:
    """One number that is to be known: the last layer's gradient norm of a cell, or its exponent over several.

    Attributes:
        name: what it is, for people.
        cells: their indices.
        log_x: logarithms of what the exponent is against, one per cell; empty for one cell's norm.
        target: standard error wanted, of the norm relative to it.
    """

    name: str
    cells: tuple[int, ...]
    log_x: tuple[float, ...]
    target: float

    def error(self, counts: NDArray[Any], variances: Array) -> float:
        """The standard error at these counts of all cells.

        Args:
            counts: draws.
            variances: relative variances of the squared norm.
        """
        where = list(self.cells)
        # The logarithm of a root mean square has half the relative error of the mean square.
        weights = np.maximum(4.0 * counts[where] / np.maximum(variances[where], 1e-300), 1e-300)
        if not self.log_x:
            return float(weights[0] ** -0.5)
        x = np.array(self.log_x)
        centred = x - np.average(x, weights=weights)
        return float((weights @ centred**2) ** -0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """How a sweep to a precision ended.

    Attributes:
        counts: draws of every cell that were asked for and have landed.
        missed: the goals that were not met, with the errors that are left.
    """

    counts: NDArray[np.int64]
    missed: list[tuple[Goal, float]]


def next_counts(
    goals: Sequence[Goal], counts: NDArray[np.int64], variances: Array, blocks: NDArray[np.int64], costs: Array,
    *, most: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Draws of every cell after the next round: those of fewest cost that meet the goals, or twice as many as now.

    Args:
        goals: what is to be known.
        counts: draws of every cell so far.
        variances: relative variances of its squared norm.
        blocks: its draws per block.
        costs: of one of its blocks.
        most: draws of a cell at most, rounded up to a block.
    """
    wanted, largest = counts.copy(), np.minimum(_GROWTH * counts, -(-most // blocks) * blocks)
    for goal in goals:
        while (error := goal.error(wanted, variances)) > goal.target:
            best, gain = None, 0.0
            for cell in goal.cells:
                step = _step(wanted[cell], blocks[cell], largest[cell])
                if step > 0:
                    wanted[cell] += step
                    gained = (error**2 - goal.error(wanted, variances) ** 2) / (step / blocks[cell] * costs[cell])
                    wanted[cell] -= step
                    best, gain = ((cell, step), gained) if gained > gain else (best, gain)
            if best is None:
                break
            wanted[best[0]] += best[1]
    return wanted


def _step(count: int, block: int, largest: float) -> int:
    """Whole blocks to try: a twentieth of the draws, and no more than there may be."""
    return int(min(max(1, int(_STEP * count) // block), (largest - count) // block) * block)


def sweep_to(
    cells: Sequence[Cell],
    goals: Sequence[Goal],
    *,
    draws: int,
    most: int,
    seconds: float,
    seed: int,
    run: Run,
    execution: Execution,
    on_block: Callable[[Progress], None] | None = None,
    moments: Moments | None = None,
) -> Outcome:
    """Sample cells until the goals are met, or every cell of one that is not has its most draws, or time is over.

    Args:
        cells: what to sample, each once.
        goals: what is to be known.
        draws: of every cell in the first round, if they are more than `LEAST_DRAWS`.
        most: of a cell at most.
        seconds: no block is begun after so many.
        seed: root seed.
        run: where blocks land.
        execution: by whom.
        on_block: called after each block.
        moments: counts, means and relative variances of what is to be known; `last_layer_moments` if None.

    Raises:
        ValueError: as `sample_into`.
    """
    end = time.monotonic() + seconds
    blocks = np.array([cell.draws_per_block for cell in cells])
    costs = np.array([block_work(cell).cost for cell in cells])
    counts = -(-max(draws, LEAST_DRAWS) // blocks) * blocks
    with execution.executor() as pool:
        same = replace(execution, pool=pool)
        while True:
            asked = {cell.name: int(count) for cell, count in zip(cells, counts, strict=True)}
            sample_into(cells, draws=asked, seed=seed, run=run, execution=same, on_block=on_block, end=end)
            landed, _, variances = (moments or last_layer_moments)(run, cells, seed, asked)
            if (landed < counts).any():  # out of time
                break
            wanted = next_counts(goals, counts, variances, blocks, costs, most=most)
            if (wanted == counts).all():
                break
            counts = wanted
    errors = [(goal, goal.error(landed, variances)) for goal in goals]
    return Outcome(landed.astype(np.int64), [(goal, error) for goal, error in errors if not error <= goal.target])


def final_counts(
    goals: Sequence[Goal], counts: NDArray[np.int64], variances: Array, blocks: NDArray[np.int64], costs: Array,
    *, most: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Draws of every cell at the end, if its variance is as it seems; arguments as `next_counts` has them."""
    while ((wanted := next_counts(goals, counts, variances, blocks, costs, most=most)) != counts).any():
        counts = wanted
    return counts


def last_layer_moments(
    run: Run, cells: Sequence[Cell], seed: int, asked: Mapping[str, int] | None = None, *, since: float = -np.inf
) -> tuple[Array, Array, Array]:
    """Draws, means and relative variances of the last layer's squared gradient norm, of what has landed of each cell.

    Args:
        run: where.
        cells: which.
        seed: root seed of the draws.
        asked: so many draws of each cell, by its name, in the order of their blocks; all if None.
        since: when what counts landed, in seconds since the epoch.

    Returns:
        Counts; means, NaN without draws; variances over squared means, infinite with fewer than two draws.
    """
    parts = [pd.DataFrame({"cell": [], "last": []})]
    for rows in run.tables(["cell", "seed", "draw", "depth", "grad_sq_W2"], since=since):
        frame = pd.DataFrame({name: rows[name].to_numpy() for name in ("cell", "seed", "draw")})
        layers = rows["grad_sq_W2"].combine_chunks()
        frame["last"] = layers.flatten().to_numpy()[layers.offsets.to_numpy()[1:] - layers.offsets.to_numpy()[0] - 1]
        kept = frame["seed"] == seed
        parts.append(frame[kept & (frame["draw"] < frame["cell"].map(asked))] if asked else frame[kept])
    moments = pd.concat(parts).astype({"last": float}).groupby("cell")["last"].agg(["count", "mean", "var"])
    moments = moments.reindex([cell.name for cell in cells])
    variances = (moments["var"] / moments["mean"] ** 2).fillna(np.inf).to_numpy()
    return moments["count"].fillna(0).to_numpy(dtype=float), moments["mean"].to_numpy(), variances
