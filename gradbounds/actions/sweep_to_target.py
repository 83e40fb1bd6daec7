"""Sweeps to a precision: which errors are asked for, and what is said of them in the end."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path

from checks.fits import LEAST_POINTS
from checks.series import Against, exponent_series
from gradbounds.actions.sweep import cells_of
from gradbounds.progress import progress
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from gradbounds.units import seconds_of
from simulate import Cell
from simulate.counts import check_count
from simulate.runs.execution import Execution
from simulate.runs.precision import LEAST_DRAWS, Goal, Outcome, sweep_to
from simulate.runs.sweep import begin, distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a sweep is to know, and what ends it before.

    Attributes:
        sem: relative standard error of the last layer's gradient norm in every cell, or None.
        exponent: standard error of that norm's exponents, or None.
        max_draws: of a cell.
        max_time: a duration such as 90s or 2h, or "".
    """

    sem: float | None = None
    exponent: float | None = None
    max_draws: int = 2**16
    max_time: str = ""


def goals_of(cells: Sequence[Cell], *, sem: float | None, exponent: float | None) -> list[Goal]:
    """What a sweep to a precision is to know.

    Args:
        cells: of the sweep.
        sem: relative standard error of the last layer's gradient norm in every cell, or None.
        exponent: standard error of that norm's exponents in the width and the depth, or None: of every series of cells
            that differ in one of them alone, or in the width with the vocabulary in proportion.

    Raises:
        ValueError: a target is not positive, there is no series, or a network has no such gradient.
    """
    if any(cell.stack.branches == "attention" for cell in cells):
        raise ValueError(
            "branches must have feed-forward units for a sweep to a precision, which is that of W2's norm."
        )
    for name, target in (("target_sem", sem), ("target_exponent", exponent)):
        if target is not None and not 0 < target < float("inf"):
            raise ValueError(f"{name} must be a positive number, got {target!r}.")
    goals = [] if sem is None else [Goal(_name(cell), (i,), (), sem) for i, cell in enumerate(cells)]
    if exponent is None:
        return goals
    place = {id(cell): i for i, cell in enumerate(cells)}
    kinds: list[tuple[Against, bool]] = [("width", False), ("width", True), ("depth", False)]
    for against, proportional in kinds:
        for series in exponent_series(cells, against, proportional=proportional):
            values = [getattr(cell.stack, against) for cell in series]
            name = f"exponent in {against}, {_name(series[0])} to {against} = {values[-1]}"
            goals.append(Goal(name, tuple(place[id(cell)] for cell in series), tuple(map(log, values)), exponent))
    if not any(goal.log_x for goal in goals):
        raise ValueError(
            f"target_exponent must have {LEAST_POINTS} cells that differ in width or depth alone, got none; give more "
            "widths or depths."
        )
    return goals


def sweep_to_target(out: Path, recipe: Recipe, target: Target, execution: Execution, *, resume: bool) -> Result:
    """Sample a recipe into a folder until its errors are as small as asked, and say which are not.

    Raises:
        ValueError: an argument is outside its range, or the folder holds another run.
    """
    cells = distinct(cells_of(recipe))
    check_count("max_draws", target.max_draws, 1)
    if target.max_draws < (least := max(recipe.draws, LEAST_DRAWS)):
        raise ValueError(f"max_draws must be at least {least}, with which every cell begins, got {target.max_draws}.")
    if idle := [cell.stack for cell in cells if cell.stack.is_idle]:
        raise ValueError(
            "branch_scale must be above 0 for a sweep to a precision, which is that of W2's norm: 0 where branches add "
            f"nothing, got {idle[0]}."
        )
    goals = goals_of(cells, sem=target.sem, exponent=target.exponent)
    seconds = seconds_of(target.max_time) if target.max_time else float("inf")
    given = {name: value for name, value in asdict(target).items() if value}
    run = begin(
        cells, draws=recipe.draws, seed=recipe.seed, out=out, execution=execution, resume=resume,
        recipe=recipe.to_dict(), target=given,
    )  # fmt: skip
    with progress() as on_block:
        outcome = sweep_to(
            cells, goals, draws=recipe.draws, most=target.max_draws, seconds=seconds, seed=recipe.seed, run=run,
            execution=execution, on_block=on_block,
        )  # fmt: skip
    met = f"{len(goals) - len(outcome.missed)} of {len(goals)} targets met with {outcome.counts.sum()} draws in {out}"
    hint = ["More --max-draws or --max-time continue it."] if outcome.missed else []
    return Result(
        about=f"sweep in {out}",
        values={"run": str(out), "targets": len(goals), "draws": int(outcome.counts.sum())},
        lines=[met, *hint, f"Judge them with: gradbounds check {shlex.quote(str(out))}"],
        differences=not_met(outcome),
    )


def not_met(outcome: Outcome) -> list[str]:
    """The targets that were not met, a line each."""
    return [
        f"not met: {goal.name}: standard error {error:.3g} instead of {goal.target:g}" for goal, error in outcome.missed
    ]


def _name(cell: Cell) -> str:
    sizes = {"width": cell.stack.width, "depth": cell.stack.depth}
    named = {"placement": cell.stack.placement} | sizes | cell.stack.non_default()
    return ", ".join(f"{name} = {value}" for name, value in named.items())
