"""`python -m studies warmup`: train the runs of a grid, judge the paper's statements on training, and draw them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isclose
from pathlib import Path
from typing import Any

from checks.experiment import PAPER_WIDTH
from checks.verdict import Setting
from gradbounds.clusters import executing
from gradbounds.progress import counted
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from simulate.runs.cell import check_device
from simulate.runs.execution import Execution
from simulate.runs.files import write_whole
from simulate.runs.sample import one_thread
from studies.comparisons import TrainingRow
from studies.kept_rows import rows_by_name, rows_file
from studies.parallel_text import ParallelText, read_pairs
from studies.presets import named
from studies.trainer import train
from studies.translation_model import parameter_count
from studies.warmup.claims import judge
from studies.warmup.figures import warmup_ends, warmup_gradients, warmup_losses, warmup_rates
from studies.warmup.grid import Grid, Planned, read_grid
from studies.warmup.lines import outcome_lines
from studies.warmup.outcomes import measured_row, unigram_loss
from studies.warmup.prefixes import arms, judge_prefixes
from studies.warmup.runs import finished, name_of, run_all

# Updates from which a dry run tells the time.
_TRIED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRequest:
    """What is run.

    Attributes:
        preset: a name in the folder presets, or a TOML file of the same form.
        source: text to translate from.
        target: text to translate to.
        out: folder of finished runs, table and figures.
        known: a file of rows, as `rows.json` of another folder, or a folder of such files; not run again.
        seeds: only the first so many of the grid; None for all.
        workers: processes.
        dask: address of a Dask scheduler whose workers train instead, into the same folder.
        device: of every run.
    """

    preset: str
    source: Path
    target: Path
    out: Path
    known: Path | None = None
    seeds: int | None = None
    workers: int = 1
    dask: str | None = None
    device: str = "cpu"


def grid_named(preset: str) -> Grid:
    """The grid of a preset or a file.

    Raises:
        ValueError: there is none of that name, or it is no grid.
    """
    return named(preset, "studies.warmup", read_grid, "grid")


def reproduce_warmup(request: WarmupRequest, *, dry_run: bool) -> Result:
    """Train, judge and draw; what the folder holds already is not trained again.

    Returns:
        0: a statement that fails is a result.

    Raises:
        ValueError: an argument is outside its range, or a text or a file is not what it must be.
    """
    check_count("workers", request.workers, 1)
    if request.dask is not None and request.workers > 1:
        raise ValueError(f"workers and dask must not be given together, got {request.workers} and {request.dask!r}.")
    check_device(request.device)
    grid = grid_named(request.preset)
    runs = list(grid.runs)
    if request.seeds is not None:
        check_count("seeds", request.seeds, 1)
        runs = [run for run in runs if run.training.seed < request.seeds]
    known = rows_by_name(request.known)
    text = read_pairs(request.source, request.target, vocab=grid.translation.vocab, units=grid.units)
    texts = grid.texts(text)
    names = [name_of(run, texts) for run in runs]
    left = [run for run, name in zip(runs, names, strict=True) if name not in known]
    done = finished(left, texts, request.out)
    if dry_run:
        words = _dry(grid, runs, done.count(False), texts, request)
        return Result(about="what warm-up takes", values={"takes": words}, lines=words)
    unigram = unigram_loss(*texts)
    ours = Execution(workers=request.workers)
    with (
        executing(ours, device=request.device, dask=request.dask) as execution,
        _shown(done, len(runs)) as on_run,
    ):
        tables = run_all(left, texts, request.out, execution=execution, device=request.device, on_run=on_run)
    described = (run.described() | {"name": name_of(run, texts)} for run in left)
    rows = [about | measured_row(table, unigram, grid.start) for about, table in zip(described, tables, strict=True)]
    # In the grid's order, wherever a run was done.
    by_name = known | {row["name"]: row for row in rows}
    rows = [by_name[name] for name in names]
    setting = setting_of(grid, text, rows)
    verdicts = judge_prefixes(rows, setting) if grid.prefix else judge(rows, grid.paper, setting, size_of(grid))
    others = [line for v in verdicts if v.relaxed for line in v.lines()]
    result = Result(
        about="training with and without warm-up",
        values={"runs": [_flat(row) for row in rows]},
        lines=[*outcome_lines(rows), "", *(map(str, arms(rows)) if grid.prefix else ())],
        verdicts=[v for v in verdicts if not v.relaxed],
        below=["", "At rates that stand for none of the paper's:", *others] if others else [],
        figures=_figures(grid, rows),
    )
    write_whole(request.out / "rows.json", rows_file(rows, _command(request)))
    print(f"Rows    {request.out / 'rows.json'}")
    return result


def _figures(grid: Grid, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The pictures of the runs, at the middle one of the paper's rates for every optimizer."""
    scaled = {name: _scaled(rows, name, grid.paper.scaled(name)) for name in ("adam", "sgd")}
    adam, sgd = (rates[len(rates) // 2] for rates in scaled.values())
    of_adam = [row for row in rows if row["optimizer"] == "adam"]
    return {
        "losses": partial(warmup_losses, rows, adam, sgd),
        "losses_least": partial(warmup_losses, of_adam, min(scaled["adam"]), sgd),
        "ends": partial(warmup_ends, rows),
        "gradients": partial(warmup_gradients, rows, adam),
        "rates": partial(warmup_rates, rows, adam),
    }


def _command(request: WarmupRequest) -> str:
    """The command that gives the same rows, with folders of the project for those of this machine."""
    names = f"--source {request.source.name} --target {request.target.name}"
    seeds = "" if request.seeds is None else f" --seeds {request.seeds}"
    where = f"--out runs/warmup-{Path(request.preset).stem}"
    return f"python -m studies warmup --preset {request.preset} {names}{seeds} {where}"


def _scaled(rows: Sequence[TrainingRow], optimizer: str, scaled: Sequence[float]) -> list[float]:
    """The rates that stand for the paper's and that an optimizer's runs have; 0 if there is none."""
    peaks = {row["peak"] for row in rows if row["optimizer"] == optimizer}
    return [rate for rate in scaled if any(isclose(rate, peak) for peak in peaks)] or [0.0]


def setting_of(grid: Grid, text: ParallelText, rows: Sequence[TrainingRow]) -> Setting:
    """The models and the text."""
    t, training = grid.translation, grid.runs[0].training
    return Setting(
        networks=f"{t.depth}-{t.depth}",
        ranges=(("d", t.width, t.width), ("V", t.vocab, t.vocab)),
        more=f"{text.names[0]}, {text.names[1]}, {training.updates} updates of {training.batch_tokens} tokens, "
        f"{len({row['seed'] for row in rows})} seeds",
    )


def size_of(grid: Grid) -> str:
    """The width of a grid's models, where it is not the paper's."""
    width = grid.translation.width
    return "" if width == PAPER_WIDTH else f"d = {width}"


def _dry(
    grid: Grid, runs: Sequence[Planned], left: int, texts: tuple[ParallelText, ParallelText], request: WarmupRequest
) -> list[str]:
    """How many runs, how large, and about how long, from a few updates of one of them."""
    training, times = grid.runs[0].training, list[float]()
    few = replace(training, updates=_TRIED, every=_TRIED)
    with one_thread():
        train(few, *texts, device=request.device, on_update=lambda *_: times.append(time.perf_counter()))
    # The first update has what starts up, the last is measured. Measuring costs about a third of training.
    seconds = (times[-2] - times[0]) / (_TRIED - 2) * training.updates * 4 / 3
    size = parameter_count(training.translation)
    whole = duration(seconds * left / request.workers)
    return [
        f"{len(runs)} runs of {training.updates} updates of {training.batch_tokens} target tokens; {left} are left.",
        f"A model has {size / 1e6:.2g} million parameters, and a checkpoint at most {12 * size / 2**20:.3g} MiB.",
        f"About {duration(seconds)} a run, and {whole} for all with workers = {request.workers}.",
    ]


@contextmanager
def _shown(done: Sequence[bool], count: int) -> Iterator[Callable[[int], None]]:
    """Runs that are done, and how long those that are trained still take.

    Args:
        done: whether the folder has the run, for those that are not known from elsewhere.
        count: of all runs.
    """
    ready, left = count - len(done), done.count(False)
    with counted("training", lines=True) as show:

        def on_run(place: int) -> None:
            nonlocal ready, left
            ready, left = ready + 1, left - (not done[place])
            show(ready, count, 1 - left / max(1, done.count(False)))

        yield on_run


def _flat(row: TrainingRow) -> dict[str, Any]:
    """A row without its lists, as a table has it."""
    return {name: value for name, value in row.items() if not isinstance(value, list | dict)}
