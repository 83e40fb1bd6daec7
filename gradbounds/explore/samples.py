"""The sampled networks that the interactive page shows, sampled now or read from a run folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.stacks.gradients_by_layer import layer_columns
from gradbounds.explore.questions import Question
from gradbounds.grid import said
from gradbounds.network_text import title, with_cosines
from gradbounds.units import duration, format_bytes

if TYPE_CHECKING:
    from simulate import Samples

SECONDS, BYTES = 60.0, 2e9
"""The limits of an answer's sampling on one core, by the estimate of `predict --draws`."""


def drawn(question: Question) -> Iterator[dict[str, Any]]:
    """Sample the network of a question, and yield a summary of the samples after each block of networks.

    Yields:
        How many are drawn and how many will be, in whole blocks, with means and errors as `summary` has them once
        there are two.

    Raises:
        ValueError: there is no such network, or sampling it would exceed the page's limits.
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
    """Return the mean and the standard error of every quantity in every layer; norms are root mean squares."""
    table = with_cosines(layer_columns(None, samples))
    rows = {name: table["quantity"] == name for name in dict.fromkeys(table["quantity"])}
    return [
        {"quantity": str(name), **{column: table[column][at].tolist() for column in ("layer", "mean", "sem")}}
        for name, at in rows.items()
    ]


class RunSamples:
    """The samples in a run folder, for each of its networks.

    Attributes:
        about: the folder's name, the cells by name, title, fields and draws, and how many are of a text, which theory
            on the page does not know.
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder.

        Raises:
            ValueError: the folder is not a run, or has no draws of networks at initialization.
        """
        from simulate import Run

        every = Run.open(folder).samples()
        self._cells = {each.cell.name: each for each in every if each.cell.text is None and each.draws > 1}
        if not self._cells:
            raise ValueError(f"run must hold two draws of a network without a text, but {str(folder)!r} has none.")
        self.about = {
            "folder": folder.resolve().name,
            "cells": [
                {
                    "name": name,
                    "title": f"{title(each.stack)} ({each.draws} draws, {each.cell.engine}, {each.cell.dtype})",
                    "fields": {field: str(said(field, value)) for field, value in each.stack.non_default().items()},
                }
                for name, each in self._cells.items()
            ],
            "left_out": len(every) - len(self._cells),
        }

    def cell(self, name: Any) -> dict[str, Any]:
        """Return means and standard errors of the samples of one network in the run folder.

        Raises:
            ValueError: the run has no network of that name.
        """
        if name not in self._cells:
            raise ValueError(f"cell must be one of the {len(self._cells)} of the run, got {str(name)[:40]!r}.")
        samples = self._cells[name]
        return {"draws": samples.draws, "of": samples.draws, "series": summary(samples)}
