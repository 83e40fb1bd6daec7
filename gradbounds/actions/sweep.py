"""The command `sweep`: from a recipe to a run folder, or to an estimate of what that takes."""

import shlex
import shutil
from pathlib import Path

from gradbounds.progress import progress
from gradbounds.recipe import Recipe
from gradbounds.units import duration, size
from simulate import Cell, Run, read_windows
from simulate.runs.execution import ONE_PROCESS, Execution
from simulate.runs.memory import free_memory
from simulate.runs.planning import plan
from simulate.runs.sweep import begin, check_sweep, sample_into


def cells_of(recipe: Recipe) -> list[Cell]:
    """The cells that a recipe describes.

    Raises:
        ValueError: a grid, the text, or how to sample makes no sense.
    """
    stacks = recipe.stacks()
    shapes = {(s.tokens, s.vocab) for s in stacks} if recipe.text else ()
    windows = {(n, vocab): read_windows(recipe.text, tokens=n, vocab=vocab) for n, vocab in shapes}
    return [
        Cell(s, recipe.engine, recipe.device, recipe.dtype, windows.get((s.tokens, s.vocab)))  # type: ignore[arg-type]
        for s in stacks
    ]


def sweep_into(out: Path, recipe: Recipe, execution: Execution = ONE_PROCESS, *, resume: bool = True) -> list[str]:
    """Sample a recipe into a run folder, or continue it; what is to be said of it."""
    cells = cells_of(recipe)
    run = begin(
        cells, draws=recipe.draws, seed=recipe.seed, out=out, execution=execution, resume=resume,
        recipe=recipe.to_dict(),
    )  # fmt: skip
    with progress() as on_block:
        sample_into(cells, draws=recipe.draws, seed=recipe.seed, run=run, execution=execution, on_block=on_block)
    return [
        f"{len(cells)} cells of at least {recipe.draws} draws (whole blocks) in {out}",
        f"Judge them with: gradbounds check {shlex.quote(str(out))}",
    ]


def dry_run(out: Path | None, recipe: Recipe, execution: Execution) -> int:
    """Print what a sweep would take, by a calibration on this machine; nothing is written."""
    cells = cells_of(recipe)
    check_sweep(cells, draws=recipe.draws, seed=recipe.seed, execution=execution)
    workers = execution.workers
    estimate = plan(cells, draws=recipe.draws, workers=workers, limits=execution.limits)
    print(f"cells   {estimate.cells}")
    print(f"draws   {estimate.draws} in {estimate.blocks} blocks")
    print(f"time    about {duration(estimate.seconds)} with {workers} worker{'s' if workers > 1 else ''}")
    memory, disk = free_memory(), shutil.disk_usage(_nearest_folder(out)).free
    print(f"memory  about {size(estimate.memory)}{_beyond(estimate.memory, memory)}")
    print(f"disk    about {size(estimate.disk)}{_beyond(estimate.disk, disk)}")
    if out is not None and (out / "manifest.toml").exists():
        print(f"landed  {len(Run.open(out).landed())} blocks are in {out} already")
    return 0


def _beyond(count: float, there: float) -> str:
    return f", more than this machine has free ({size(there)})" if count > there else ""


def _nearest_folder(out: Path | None) -> Path:
    """The folder that is there, where one is to be."""
    path = Path.cwd() if out is None else out.resolve()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
