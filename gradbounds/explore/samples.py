"""Sampled networks for the page, drawn now or read from a run folder: means with standard errors."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.stacks.gradients_by_layer import layer_table
from gradbounds.explore.questions import Question
from gradbounds.grid import said
from gradbounds.network_text import title, with_cosines
from gradbounds.units import duration, format_bytes

if TYPE_CHECKING:
    from simulate import Samples

SECONDS, BYTES = 60.0, 2e9
"""What the samples of an answer may take on one core, by the estimate of `predict --draws`."""


def drawn(question: Question) -> Iterator[dict[str, Any]]:
    """Sample a question's networks and yield the summary after each block.

    Yields:
        How many are drawn and how many will be, in whole blocks, with means and errors as `summary` has them once
        there are two.

    Raises:
        ValueError: there is no such network, or its samples would take more than they may.
    """
    stack, _ = question.network()
    # Late: torch takes longer to load than a prediction takes.
    import numpy as np

    from simulate import Cell, Samples
    from simulate.runs.cost import block_bytes, block_work
    from simulate.runs.sample import sample_block

    cell = Cell(stack)
    blocks = cell.blocks(question.draws)
    of, seconds, peak = blocks * cell.draws_per_block, block_work(cell).cost * blocks, block_bytes(cell)
    if seconds > SECONDS or peak > BYTES:
        raise ValueError(
            f"samples of {of} networks would take about {duration(seconds)} and {format_bytes(peak)}, more than the "
            f"{duration(SECONDS)} and {format_bytes(BYTES)} of this page; fewer or smaller networks are within these, "
            "and gradbounds sweep has no such limit."
        )
    yield {"draws": 0, "of": of, "seconds": seconds}
    parts: list[dict[str, Any]] = []
    for block in range(blocks):
        parts.append(sample_block(cell, question.seed, block))
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        count = (block + 1) * cell.draws_per_block
        means = summary(Samples(cell, np.full(count, question.seed), arrays)) if count > 1 else []
        yield {"draws": count, "of": of, "seconds": seconds, "series": means}


def summary(samples: "Samples") -> list[dict[str, Any]]:
    """Return means and standard errors of every quantity by layer; norms are root mean squares, as in theory."""
    table = with_cosines(layer_table(None, samples))
    return [
        {"quantity": str(name), **{column: rows[column].tolist() for column in ("layer", "mean", "sem")}}
        for name, rows in table.groupby("quantity", sort=False)
    ]


class RunSamples:
    """The cells of a run folder, one network for each.

    Attributes:
        about: the folder's name, the cells by name, title, fields and draws, and how many are of a text, which theory
            on the page does not know.
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder.

        Raises:
            ValueError: it is no run, or holds no draws of networks at initialization.
        """
        from simulate import Run

        every = Run.open(folder).samples()
        self._cells = {each.cell.name: each for each in every if each.cell.text is None and each.draws > 1}
        if not self._cells:
            raise ValueError(f"run must hold two draws of a network without a text, but {str(folder)!r} has none.")
        self.about = {
            "folder": folder.resolve().name,
            "cells": _described([*self._cells.values()]),
            "left_out": len(every) - len(self._cells),
        }

    def cell(self, name: Any) -> dict[str, Any]:
        """Return means and standard errors for one network of the folder.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self._cells:
            raise ValueError(f"cell must be one of the {len(self._cells)} of the run, got {str(name)[:40]!r}.")
        samples = self._cells[name]
        return {"draws": samples.draws, "of": samples.draws, "series": summary(samples)}


def _described(cells: "Sequence[Samples]") -> list[dict[str, Any]]:
    return [
        {
            "name": each.cell.name,
            "title": f"{title(each.stack)} ({each.draws} draws, {each.cell.engine}, {each.cell.dtype})",
            "fields": {name: str(said(name, value)) for name, value in each.stack.non_default().items()},
        }
        for each in cells
    ]
