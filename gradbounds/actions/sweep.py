"""The command `gradbounds sweep`: sample networks into a run folder, or estimate the cost of sampling them."""

import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

from gradbounds.progress import progress
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from gradbounds.units import duration, format_bytes
from simulate import Cell, Run, read_windows
from simulate.free_memory import free_memory
from simulate.runs.execution import ONE_PROCESS, Execution
from simulate.runs.planning import plan
from simulate.runs.sweep import begin, check_sweep, sample_into


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


def dry_run(out: Path | None, recipe: Recipe, execution: Execution) -> Result:
    """Estimate the time, memory and disk space of a sweep by a short measurement, and write nothing."""
    cells = cells_of(recipe)
    check_sweep(cells, draws=recipe.draws, seed=recipe.seed, execution=execution)
    workers = execution.workers
    estimate = plan(cells, draws=recipe.draws, workers=workers, limits=execution.limits)
    path = Path.cwd() if out is None else out.resolve()
    there = next(folder for folder in (path, *path.parents) if folder.is_dir())
    memory, disk = free_memory(), shutil.disk_usage(there).free
    lines = [
        f"cells   {estimate.cells}",
        f"draws   {estimate.draws} in {estimate.blocks} blocks",
        f"time    about {duration(estimate.seconds)} with {workers} worker{'s' if workers > 1 else ''}",
        f"memory  about {format_bytes(estimate.memory)}{_beyond(estimate.memory, memory)}",
        f"disk    about {format_bytes(estimate.disk)}{_beyond(estimate.disk, disk)}",
    ]
    if out is not None and (out / "manifest.toml").exists():
        lines.append(f"saved   {len(Run.open(out).landed())} blocks are already in {out}")
    return Result(about="cost of a sweep", values=asdict(estimate), lines=lines)


def _beyond(count: float, there: float) -> str:
    return f", more than this machine has free ({format_bytes(there)})" if count > there else ""
