"""Sweeps to a precision: which errors are asked for, and what is said of them in the end."""

import re
import shlex
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from math import log
from pathlib import Path
from typing import Any

from checks.fits import LEAST_POINTS
from gradbounds.manifest import manifest
from gradbounds.progress import progress
from gradbounds.recipe import Recipe
from gradbounds.sampling import cells_of
from simulate import Cell, Run
from simulate.precision import LEAST_DRAWS, Goal, sweep_to
from simulate.sweep import check_sweep

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """A duration in seconds.

    Raises:
        ValueError: it is none.

    >>> seconds_of("90"), seconds_of("1.5h")
    (90.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"max_time must be a positive duration such as 90s, 10m, 2h or 1d, got {text!r}.")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def goals_of(cells: Sequence[Cell], *, sem: float | None, exponent: float | None) -> list[Goal]:
    """What a sweep to a precision is to know.

    Args:
        cells: of the sweep.
        sem: relative standard error of the last layer's gradient norm in every cell, or None.
        exponent: standard error of that norm's exponents in the width and the depth, or None: of every series of cells
            that differ in one of them alone, or in the width with the vocabulary in proportion.

    Raises:
        ValueError: a target is not positive, or there is no series.
    """
    for name, target in (("target_sem", sem), ("target_exponent", exponent)):
        if target is not None and not 0 < target < float("inf"):
            raise ValueError(f"{name} must be a positive number, got {target!r}.")
    goals = [] if sem is None else [Goal(_name(cell), (i,), (), sem) for i, cell in enumerate(cells)]
    if exponent is None:
        return goals
    series: dict[tuple[Any, ...], dict[int, int]] = {}
    for i, cell in enumerate(cells):
        fields = asdict(cell.stack)
        for axis, vocab in (("width", 0), ("width", 1), ("depth", 0)):
            # A vocabulary in proportion to the width stands for itself in a series.
            fixed = fields | {axis: None} | ({"vocab": cell.stack.vocab / cell.stack.width} if vocab else {})
            key = (axis, vocab, *(tuple(sorted((k, str(v)) for k, v in fixed.items()))))
            series.setdefault(key, {})[fields[axis]] = i
    long = {key: found for key, found in series.items() if len(found) >= LEAST_POINTS}
    if not long:
        raise ValueError(
            f"target_exponent must have {LEAST_POINTS} cells that differ in width or depth alone, got none; give more "
            "widths or depths."
        )
    for (against, *_), found in long.items():
        values = sorted(found)
        first = cells[found[values[0]]]
        name = f"exponent in {against}, {_name(first)} to {against} = {values[-1]}"
        goals.append(Goal(name, tuple(found[v] for v in values), tuple(log(v) for v in values), exponent))
    return goals


def sweep_to_target(
    out: Path, recipe: Recipe, *, sem: float | None, exponent: float | None, max_draws: int, max_time: str,
    workers: int, land_every: float, resume: bool, pool: Executor | None = None,
) -> int:  # fmt: skip
    """Sample a recipe into a folder until its errors are as small as asked, and say which are not.

    Returns:
        0, or 1 where a target was not met.

    Raises:
        ValueError: an argument is outside its range, or the folder holds another run.
    """
    cells = list({cell.name: cell for cell in cells_of(recipe)}.values())
    check_sweep(cells, draws=recipe.draws, seed=recipe.seed, workers=workers, land_every=land_every)
    if max_draws < (least := max(recipe.draws, LEAST_DRAWS)):
        raise ValueError(f"max_draws must be at least {least}, with which every cell begins, got {max_draws}.")
    goals = goals_of(cells, sem=sem, exponent=exponent)
    seconds = seconds_of(max_time) if max_time else float("inf")
    about = manifest("sweep", cells, draws=recipe.draws, seed=recipe.seed, recipe=recipe.to_dict())
    run = Run.create(out, about, resume=resume)
    with progress(out) as on_block:
        outcome = sweep_to(
            cells, goals, draws=recipe.draws, most=max_draws, seconds=seconds, seed=recipe.seed, run=run,
            workers=workers, land_every=land_every, on_block=on_block, pool=pool,
        )  # fmt: skip
    print(f"{len(goals) - len(outcome.missed)} of {len(goals)} targets met with {outcome.counts.sum()} draws in {out}")
    for goal, error in outcome.missed:
        print(f"not met: {goal.name}: standard error {error:.3g} instead of {goal.target:g}")
    if outcome.missed:
        print("More --max-draws or --max-time continue it.")
    print(f"Judge them with: gradbounds check {shlex.quote(str(out))}")
    return 1 if outcome.missed else 0


def _name(cell: Cell) -> str:
    sizes = {"width": cell.stack.width, "depth": cell.stack.depth}
    named = {"placement": cell.stack.placement} | sizes | cell.stack.non_default()
    return ", ".join(f"{name} = {value}" for name, value in named.items())
