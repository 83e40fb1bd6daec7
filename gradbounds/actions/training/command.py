"""`gradbounds train`: a run folder of networks that are trained, what every quantity is at each step, and verdicts."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from matplotlib.figure import Figure

from figures.training_steps import coordinate_check, placement_losses, training_steps
from gradbounds.actions.sweep import cells_of
from gradbounds.actions.sweep_to_target import Target, goals_of, not_met
from gradbounds.actions.training.plan import Plan
from gradbounds.actions.training.precision import change_moments
from gradbounds.actions.training.tables import Findings, findings, format_findings
from gradbounds.grid import FIELDS
from gradbounds.progress import progress
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from gradbounds.units import seconds_of
from simulate import Cell, Run
from simulate.counts import check_count
from simulate.runs.execution import ONE_PROCESS, Execution
from simulate.runs.precision import LEAST_DRAWS, Goal, Outcome, sweep_to
from simulate.runs.provenance import manifest
from simulate.runs.sweep import check_sweep, sample_into
from simulate.training.cells import TrainingCell
from simulate.training.train import train_task, trainings


def train_into(
    out: Path | None, recipe: Recipe, plan: Plan, execution: Execution = ONE_PROCESS, target: Target | None = None
) -> Result:
    """Train the networks of a recipe in a run folder, or continue that, and say what changes.

    Args:
        out: the folder; None for one that is thrown away.
        recipe: which networks, how many of each at least, and the root seed.
        plan: how they are trained.
        execution: by whom.
        target: what is to be known; `Target.sem` is of the changes of logits and of the last layer's features after the
            first step and the last, and `Target.exponent` of their exponents in d.

    Raises:
        ValueError: an argument is outside its range, training does not cover a network, or the folder holds something
            else or cannot be written.
    """
    check_count("draws", recipe.draws, 2)  # one draw has no error
    given = cells_of(recipe)
    cells = [plan.cell(cell.stack, device=cell.device, dtype=cell.dtype, text=cell.text) for cell in given]
    target = target or Target()
    goals = _goals([Cell(known.stack, cell.engine) for known, cell in zip(given, cells, strict=True)], target)
    # Blocks go one by one: each is a batch of tensors, whose steps take a while.
    execution = replace(execution, work=train_task, at_once=1)
    check_sweep(cells, draws=recipe.draws, seed=recipe.seed, execution=execution)
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(TemporaryDirectory()))
        about = manifest("train", cells, draws=recipe.draws, seed=recipe.seed)
        run = Run.create(folder, about | {"recipe": recipe.to_dict()})
        outcome = _trained(run, cells, recipe, execution, target, goals)
        counts = {cell.name: cell.blocks(recipe.draws) * cell.draws_per_block for cell in cells}
        if outcome is not None:
            counts = {cell.name: int(count) for cell, count in zip(cells, outcome.counts, strict=True)}
        tables = findings(trainings(run, cells, seed=recipe.seed, draws=counts), mup=plan.mup)
    differences = [] if outcome is None else not_met(outcome)
    drawn, left_out = _without_other_fields(tables.steps)
    hint = f"More --max-draws or --max-time continue {shlex.quote(str(out))}."
    return Result(
        about=f"training of {len(cells)} networks",
        tables={
            "training": tables.steps, "exponents": tables.exponents, "limits": tables.limits,
            "meetings": tables.meetings,
        },
        lines=format_findings(tables),
        below=[] if out is None else [*left_out, *[hint] * bool(differences)],
        figures=_figures(drawn, tables, plan),
        differences=differences,
    )  # fmt: skip


def _goals(cells: Sequence[Cell], target: Target) -> list[Goal]:
    """What is to be known, of cells before a parametrization changes them.

    Raises:
        ValueError: a target is not positive, or there is no series of widths.
    """
    if target.sem is None and target.exponent is None:
        return []
    if fixed := [cell.stack for cell in cells if cell.stack.is_idle and not cell.stack.has_scalars]:
        raise ValueError(
            "branch_scale must be above 0 for training to a precision, which is that of features' changes too: none "
            f"where branches add nothing, got {fixed[0]}."
        )
    goals = goals_of(cells, sem=target.sem, exponent=target.exponent)
    # Exponents here are in the width.
    kept = [goal for goal in goals if not goal.log_x or len({cells[k].stack.width for k in goal.cells}) > 1]
    if target.exponent is not None and not any(goal.log_x for goal in kept):
        raise ValueError("target_exponent must have three widths of the same network, got none; give more widths.")
    return kept


def _trained(
    run: Run, cells: Sequence[TrainingCell], recipe: Recipe, execution: Execution, target: Target, goals: list[Goal]
) -> Outcome | None:
    """Train what has not landed; the outcome where there are goals.

    Raises:
        ValueError: there may be fewer draws than every cell begins with, or as `sample_into`.
    """
    if not goals:
        with progress() as on_block:
            sample_into(cells, draws=recipe.draws, seed=recipe.seed, run=run, execution=execution, on_block=on_block)
        return None
    if target.max_draws < (least := max(recipe.draws, LEAST_DRAWS)):
        raise ValueError(f"max_draws must be at least {least}, with which every cell begins, got {target.max_draws}.")
    seconds = seconds_of(target.max_time) if target.max_time else float("inf")
    with progress() as on_block:
        return sweep_to(
            cells, goals, draws=recipe.draws, most=target.max_draws, seconds=seconds, seed=recipe.seed, run=run,
            execution=execution, on_block=on_block, moments=change_moments,
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
