"""`gradbounds runs watch`: how far a run is, from its folder alone, while somebody else writes it or after."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gradbounds.actions.sweep import cells_of
from gradbounds.actions.sweep_to_target import goals_of
from gradbounds.grid import FIELDS, said
from gradbounds.plain_text import console
from gradbounds.recipe import recipe_in
from gradbounds.units import duration
from simulate import Cell, Run
from simulate.runs.cost import block_work
from simulate.runs.precision import Goal, final_counts, last_layer_moments
from simulate.runs.sweep import distinct

# Reading a large run takes a while: it is read at most so much of the time.
_SHARE = 0.1
_SHOWN = 30
# Seconds without news.
_QUIET = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """How far a run is.

    Attributes:
        cells: all cells of its recipe.
        draws: that have landed, of every cell.
        wanted: draws of every cell at the end; with a target as its variances now have it.
        means: of the last layer's ‖∂L/∂W2‖², NaN where nothing has landed.
        variances: relative, of that square; infinite with fewer than two draws.
        goals: errors that are asked for.
        seconds_left: at the rate since the sweep was started last, or None before anything has landed.
        last: seconds since something landed, or None.
        stopped: whether nobody writes into the folder any more.
    """

    cells: Sequence[Cell]
    draws: NDArray[np.float64]
    wanted: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]
    goals: Sequence[Goal]
    seconds_left: float | None
    last: float | None
    stopped: bool

    @property
    def done(self) -> bool:
        """Whether all draws have landed, and the targets are met."""
        return bool((self.draws >= self.wanted).all()) and not self.missed

    @property
    def missed(self) -> list[Goal]:
        """The targets that are not met yet."""
        return [goal for goal in self.goals if not goal.error(self.draws, self.variances) <= goal.target]


def watch(folder: Path, *, every: float) -> int:
    """Show how far a run is: on a terminal until it is finished, elsewhere once.

    Raises:
        ValueError: there is no run, or it was not made by `sweep`.
    """
    if not 0 < every < float("inf"):
        raise ValueError(f"every must be a positive number of seconds, got {every!r}.")
    run = Run.open(folder)
    if run.request.get("command") != "sweep":
        raise ValueError(f"run must be one of `gradbounds sweep`, which says what is to come, got {str(folder)!r}.")
    target = run.manifest.get("target") or {"max_draws": 0}
    counts = run.request.get("seed"), run.manifest.get("draws"), target.get("max_draws")
    described = "recipe" in run.manifest or "networks" in run.manifest
    if not all(type(count) is int for count in counts) or not described or _started(run) is None:
        raise ValueError(
            f"run must have its manifest.toml as `gradbounds sweep` wrote it, but {str(folder)!r} has not."
        )
    cells = run.planned() or distinct(cells_of(recipe_in(run.manifest)))
    # Commands print on what is no terminal; this one moves the cursor.
    terminal = Console(file=sys.__stdout__)
    if not terminal.is_terminal:
        console().print(view(state(run, cells)))
        return 0
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            start = time.monotonic()
            now = state(Run.open(folder), cells)
            live.update(view(now), refresh=True)
            if now.done:
                return 0
            time.sleep(max(every, (time.monotonic() - start) / _SHARE))


def state(run: Run, cells: Sequence[Cell]) -> State:
    """How far a run over these cells is."""
    about, seed = run.manifest, run.request["seed"]
    blocks = np.array([cell.draws_per_block for cell in cells])
    costs = np.array([block_work(cell).cost for cell in cells])
    draws, means, variances = last_layer_moments(run, cells, seed)
    target = about.get("target", {})
    goals = goals_of(cells, sem=target.get("sem"), exponent=target.get("exponent")) if target else []
    wanted = np.array([cell.blocks(about["draws"]) for cell in cells]) * blocks.astype(float)
    if goals:
        known = np.isfinite(variances)
        usual = float(np.median(variances[known])) if known.any() else 1.0
        wanted = final_counts(
            goals, np.maximum(draws, wanted).astype(np.int64), np.where(known, variances, usual), blocks, costs,
            most=target["max_draws"],
        ).astype(float)  # fmt: skip
    started = _started(run) or 0.0
    times = [file.stat().st_mtime for file in run.files()]
    # Of most runs that is all; of one that was continued, what landed since.
    fresh = draws if min(times, default=started) >= started else last_layer_moments(run, cells, seed, since=started)[0]
    spent, left = float(fresh @ (costs / blocks)), float(np.maximum(wanted - draws, 0.0) @ (costs / blocks))
    now = datetime.now(UTC).timestamp()
    newest = max(times, default=None)
    return State(
        cells=cells, draws=draws, wanted=wanted, means=means, variances=variances, goals=goals,
        seconds_left=left * (newest - started) / spent if spent and newest else None,
        last=now - newest if newest else None,
        # To look takes the lock for a moment, so it is done only where nothing has landed for a while.
        stopped=now - (newest or started) > _QUIET and not run.held,
    )  # fmt: skip


def _started(run: Run) -> float | None:
    """When the run was begun or continued last; None where its manifest does not say."""
    try:
        return datetime.fromisoformat(run.manifest["sessions"][-1]["started"]).timestamp()
    except (LookupError, TypeError, ValueError):
        return None


def view(now: State) -> Group:
    """A state as a table and a line."""
    rows = [{"placement": cell.stack.placement} | asdict(cell.stack) for cell in now.cells]
    varying = [name for name in FIELDS if len({repr(row[name]) for row in rows}) > 1] or ["width", "depth"]
    table = Table(*varying, "draws", "of", "|dL/dW2| of the last layer", box=None)
    # Those that are not finished stand first.
    order = sorted(range(len(rows)), key=lambda i: bool(now.draws[i] >= now.wanted[i]))
    for i in order[:_SHOWN]:
        table.add_row(
            *(str(said(name, rows[i][name])) for name in varying),
            f"{now.draws[i]:.0f}",
            f"{now.wanted[i]:.0f}",
            _norm(now, i),
        )
    if len(rows) > _SHOWN:
        table.add_row(f"... and {len(rows) - _SHOWN} more")
    total = float(now.wanted.sum())
    share = float(np.minimum(now.draws, now.wanted).sum()) / total
    finished = int((now.draws >= now.wanted).sum())
    words = [
        f"{finished} of {len(rows)} cells",
        f"{100 * share:.0f}% of {'about ' if now.goals else ''}{total:.0f} draws",
    ]
    if now.goals:
        words.append(f"{len(now.goals) - len(now.missed)} of {len(now.goals)} targets met")
    if now.done:
        words.append("finished")
    elif now.stopped:
        words.append("stopped: the command that began it continues it")
    elif now.seconds_left is not None:
        words.append(f"{duration(now.seconds_left)} left")
    if now.last is not None and not now.done:
        words.append(f"last landed {duration(max(now.last, 0.0))} ago")
    return Group(table, Text(", ".join(words)))


def _norm(now: State, cell: int) -> str:
    """The root mean square and its relative standard error."""
    if not np.isfinite(now.variances[cell]):
        return ""
    return f"{now.means[cell] ** 0.5:.4g} ± {50 * (now.variances[cell] / now.draws[cell]) ** 0.5:.2g}%"
