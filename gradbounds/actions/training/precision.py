"""How well a run of training is known: what `simulate.runs.precision` plans draws by."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from checks.stacks.training import CHANGES
from simulate import Cell, Run
from simulate.training.cells import TrainingCell, arrays_in

Array = NDArray[np.float64]

# `Goal` takes variances of squares, whose roots have half the error; the loss is known by itself.
_OF_A_MEAN = 4.0


def change_moments(run: Run, cells: Sequence[Cell], seed: int, asked: Mapping[str, int]) -> tuple[Array, Array, Array]:
    """Draws, means and relative variances of what is known worst of every cell.

    That is of the squared changes of logits and of the last layer's features, after the first step and the last; of the
    loss after the last, where batches are fresh and there are none.

    Args:
        run: where draws landed.
        cells: of training.
        seed: root seed of the draws.
        asked: so many draws of each cell, by its name, in the order of their blocks.

    Returns:
        Counts; means, NaN without draws; variances over squared means, infinite with fewer than two draws.

    Raises:
        ValueError: a file is damaged.
    """
    trained = [cell for cell in cells if isinstance(cell, TrainingCell)]
    counts, means, variances = (np.full(len(cells), value) for value in (0.0, np.nan, np.inf))
    for k, arrays in enumerate(arrays_in(run, trained, seed, asked)):
        if not arrays:
            continue
        counts[k] = len(arrays["loss"])
        squares = [
            values[:, step, -1] if values.ndim == 3 else values[:, step]
            for name in CHANGES
            if (values := arrays.get(name)) is not None
            for step in (1, -1)
        ]
        each = [_relative(values) for values in squares]
        if not each:
            mean, variance = _relative(arrays["loss"][:, -1])
            each = [(mean, _OF_A_MEAN * variance)]
        means[k], variances[k] = max(each, key=lambda moments: moments[1])
    return counts, means, variances


def _relative(values: NDArray[np.floating]) -> tuple[float, float]:
    """The mean, and the variance over its square."""
    wide = values.astype(float)
    if len(wide) < 2:
        return float(wide.mean()), np.inf
    return float(wide.mean()), float(wide.var(ddof=1) / wide.mean() ** 2)
