"""`python -m studies training`: networks that are trained, every quantity at each step, and verdicts."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from matplotlib.figure import Figure

from gradbounds.actions.sweep import cells_of
from gradbounds.grid import FIELDS
from gradbounds.progress import progress
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from simulate import Run
from simulate.counts import check_count
from simulate.runs.execution import ONE_PROCESS, Execution
from simulate.runs.provenance import manifest
from simulate.runs.sweep import check_sweep, sample_into
from studies.training.figure import coordinate_check, placement_losses, training_steps
from studies.training.plan import Plan
from studies.training.tables import Findings, findings, format_findings
from studies.training.train import train_task, trainings


def train_into(out: Path | None, recipe: Recipe, plan: Plan, execution: Execution = ONE_PROCESS) -> Result:
    """Train the networks of a recipe in a run folder, or continue that, and say what changes.

    Args:
        out: the folder; None for one that is thrown away.
        recipe: which networks, how many of each at least, and the root seed.
        plan: how they are trained.
        execution: by whom.

    Raises:
        ValueError: an argument is outside its range, training does not cover a network, or the folder holds something
            else or cannot be written.
    """
    check_count("draws", recipe.draws, 2)  # one draw has no error
    cells = [plan.cell(cell.stack, device=cell.device, dtype=cell.dtype, text=cell.text) for cell in cells_of(recipe)]
    # Blocks go one by one: each is a batch of tensors, whose steps take a while.
    execution = replace(execution, work=train_task, at_once=1)
    check_sweep(cells, draws=recipe.draws, seed=recipe.seed, execution=execution)
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory()))
        about = manifest("train", cells, draws=recipe.draws, seed=recipe.seed)
        run = Run.create(folder, about | {"recipe": recipe.to_dict()})
        with progress() as on_block:
            sample_into(cells, draws=recipe.draws, seed=recipe.seed, run=run, execution=execution, on_block=on_block)
        counts = {cell.name: cell.blocks(recipe.draws) * cell.draws_per_block for cell in cells}
        tables = findings(trainings(run, cells, seed=recipe.seed, draws=counts), mup=plan.mup)
    drawn, left_out = _without_other_fields(tables.steps)
    return Result(
        about=f"training of {len(cells)} networks",
        tables={
            "training": tables.steps, "exponents": tables.exponents, "limits": tables.limits,
            "meetings": tables.meetings,
        },
        lines=format_findings(tables),
        below=[] if out is None else left_out,
        figures=_figures(drawn, tables, plan),
    )  # fmt: skip


def _figures(drawn: pd.DataFrame, tables: Findings, plan: Plan) -> dict[str, Callable[[], Figure]]:
    """What the tables can show."""
    figures: dict[str, Callable[[], Figure]] = {}
    changes = "logit_change_sq" in set(drawn["quantity"])
    moved = drawn[drawn["quantity"] == "feature_change_sq"]["mean"].gt(0).any()  # not where branches add nothing
    if changes:
        figures["training"] = partial(training_steps, drawn, tables.limits)
    if changes and moved and drawn["width"].nunique() > 1:
        figures["coordinate_check"] = partial(coordinate_check, drawn, tables.exponents)
    if drawn["placement"].nunique() > 1:
        figures["losses"] = partial(placement_losses, drawn, plan.rates)
    return figures


def _without_other_fields(steps: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """What figures have a line for: of networks with the same placement, width and depth the first; and what to say."""
    same = ["placement", "width", "depth"]
    measured = ["quantity", "step", "layer"]
    kept = ~steps.duplicated([*same, *measured])
    varied = [name for name in FIELDS if name in steps and steps.groupby(same)[name].nunique(dropna=False).gt(1).any()]
    note = [] if kept.all() else [f"Figures have the first value alone of what else varies: {', '.join(varied)}."]
    return steps[kept], note
