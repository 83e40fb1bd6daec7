"""The command `gradbounds sweep`: sample networks into a run folder."""

import shlex
from pathlib import Path

from gradbounds.progress import progress
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from simulate import Cell, read_windows
from simulate.runs.execution import ONE_PROCESS, Execution
from simulate.runs.sweep import begin, sample_into


def cells_of(recipe: Recipe) -> list[Cell]:
    """Return the configurations, as `gb.Cell` objects, that the recipe of a sweep describes.

    Raises:
        ValueError: a grid, the text, or a sampling option is invalid.
    """
    stacks = recipe.stacks()
    shapes = {(s.tokens, s.vocab) for s in stacks} if recipe.text else ()
    windows = {(n, vocab): read_windows(recipe.text, tokens=n, vocab=vocab) for n, vocab in shapes}
    return [
        Cell(s, recipe.engine, recipe.device, recipe.dtype, windows.get((s.tokens, s.vocab)))  # type: ignore[arg-type]
        for s in stacks
    ]


def sweep_into(out: Path, recipe: Recipe, execution: Execution = ONE_PROCESS) -> Result:
    """Sample the networks of a recipe into the folder of a run, which may be a run to continue."""
    cells = cells_of(recipe)
    run = begin(cells, draws=recipe.draws, seed=recipe.seed, out=out, execution=execution, recipe=recipe.to_dict())
    with progress() as on_block:
        sample_into(cells, draws=recipe.draws, seed=recipe.seed, run=run, execution=execution, on_block=on_block)
    return Result(
        about=f"sweep in {out}",
        values={"run": str(out), "cells": len(cells), "draws": recipe.draws},
        lines=[
            f"run     {out}",
            f"cells   {len(cells)}, each with at least {recipe.draws} draws (in whole blocks)",
            f"next    gradbounds check {shlex.quote(str(out))}",
        ],
    )
