"""The commands that touch a run folder: sample into it, judge it, draw it, report it."""

import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import gradbounds
from checks import Verdict, comparison, verdicts
from checks.experiment import DRAWS, SEED, TEXT, verify_cells
from checks.judge import MINIMUM_DRAWS
from checks.report import COMMITTED, agreement_counts, changed, html, load_verdicts, markdown, missing, results
from gradbounds.drawing import draw_figures
from simulate import Cell, Run, read_windows, sweep
from simulate.cell import DtypeName, EngineName
from simulate.sample import check_count
from simulate.store import write_whole
from simulate.sweep import check_sweep
from theory import Stack


def verify(
    out: Path, draws: int | None, seed: int | None, text: Path | None, workers: int | None, *, accept: bool
) -> int:
    """Sample the default experiment, judge it, and leave data, figures and a report; 1 if anything changed.

    Raises:
        ValueError: an argument is outside its range, or `accept` outside a checkout.
    """
    checks_folder = Path("checks/data")
    if accept and not checks_folder.is_dir():
        raise ValueError("accept must be given in a checkout of gradbounds, but there is no checks/data here.")
    if accept and (draws, seed, text) != (None, None, None):
        raise ValueError(
            "accept must be given without draws, seed and text: what is committed is the default experiment."
        )
    draws, seed = DRAWS if draws is None else draws, SEED if seed is None else seed
    workers = _cores() if workers is None else workers
    check_count("draws", draws, MINIMUM_DRAWS)
    cells = verify_cells(text or TEXT)
    check_sweep(cells, draws=draws, seed=seed, workers=workers)
    request = {"command": "verify", "seed": seed, "cells": [cell.key for cell in cells]}
    run = Run.create(out, _manifest(request, draws), replace=True)
    (out / "report.html").unlink(missing_ok=True)  # it would show what is being replaced
    with _progress("sampling") as on_block:
        sweep(cells, draws=draws, seed=seed, run=run, workers=workers, on_block=on_block)
    sampled = run.samples()
    found, table = verdicts(sampled), comparison(sampled)
    drawn = draw_figures(sampled, out / "figures")
    # What is accepted is judged against theory, not against what it replaces.
    committed = [] if accept else load_verdicts()
    code = _judge(found, table, committed)
    for before in missing(found, committed):
        print(f"MISSING {before.claim}, {before.part}: was {before.verdict!r}, and this run gives no verdict")
        code = 1
    summary = (
        f"{len(cells)} cells of {draws} draws each, seed {seed}. Theory against samples: {agreement_counts(table)}."
    )
    names = [str(path.relative_to(out)) for path in drawn if path.suffix == ".svg"]
    write_whole(out / "comparison.csv", table.to_csv(index=False).encode())
    write_whole(out / "report.html", html(found, table, names, title="gradbounds: verify", summary=summary).encode())
    print(f"\nReport   {out / 'report.html'}\nFigures  {out / 'figures'}\nData     {out / 'blocks'} (Parquet)")
    if accept and code:
        print("Not accepted: theory and samples differ.")
    elif accept:
        write_whole(checks_folder / COMMITTED.name, results(found, sampled, "gradbounds verify").encode())
        write_whole(Path("paper_checks.md"), markdown(found, "gradbounds verify").encode())
        print(f"Accepted {checks_folder / COMMITTED.name} and paper_checks.md")
    return code


def sweep_into(
    out: Path,
    chosen: Sequence[Stack],
    *,
    draws: int,
    seed: int,
    engine: EngineName,
    device: str,
    dtype: DtypeName,
    text: Path | None,
    workers: int,
) -> int:
    """Sample Stacks into a run folder, or continue it."""
    windows = {
        (s.tokens, s.vocab): read_windows(text, tokens=s.tokens, vocab=s.vocab) if text else None for s in chosen
    }
    cells = [Cell(s, engine, device, dtype, windows[s.tokens, s.vocab]) for s in dict.fromkeys(chosen)]
    check_sweep(cells, draws=draws, seed=seed, workers=workers)
    keys = sorted(cell.key for cell in cells)
    # The number of draws is not part of the request: a larger one continues the folder.
    run = Run.create(out, _manifest({"command": "sweep", "seed": seed, "cells": keys}, draws))
    with _progress("sampling") as on_block:
        sweep(cells, draws=draws, seed=seed, run=run, workers=workers, on_block=on_block)
    counts = sorted({s.draws for s in run.samples()})
    print(f"{len(cells)} cells of {' to '.join(map(str, {counts[0]: 0, counts[-1]: 0}))} draws (whole blocks) in {out}")
    print(f"Judge them with: gradbounds check {shlex.quote(str(out))}")
    return 0


def check(folder: Path, csv: Path | None) -> int:
    """Print every verdict a run can give and how theory and samples compare; 1 if a verdict changed or they differ."""
    sampled = Run.open(folder).samples()
    table = comparison(sampled)
    if csv is not None:
        write_whole(csv, table.to_csv(index=False).encode())
    return _judge(verdicts(sampled), table, load_verdicts())


def draw(folder: Path, out: Path) -> int:
    """Draw every figure a run can give."""
    for path in draw_figures(Run.open(folder).samples(), out):
        print(path)
    return 0


def _judge(found: Sequence[Verdict], table: pd.DataFrame, committed: Sequence[Verdict]) -> int:
    """Print verdicts and agreement; the exit code."""
    for v in found:
        low, high = v.interval
        print(f"{v.claim:4} {v.part:55} {v.words}")
        print(f"     paper {v.claimed}, theory {v.predicted:.4g}, samples {v.measured:.4g} [{low:.4g}, {high:.4g}]")
        if v.verdict == "undecided":
            print(f"     {v.note}")
    print(f"\nTheory against samples, every layer: {agreement_counts(table)}.")
    if not table["agreement"].isin(["agrees", "undecided", "differs"]).any():
        print("Nothing was wide enough to be judged: docs/verdicts.md says what width it takes.")
    code = 0
    for row in table[table["agreement"] == "differs"].itertuples():
        print(
            f"DIFFERS {row.quantity} layer {row.layer} at {row.placement}, d = {row.width}, L = {row.depth}: "
            f"samples {row.mean:.4g} +- {row.sem:.2g}, theory {row.predicted:.4g}"
        )
        code = 1
    for v in found:
        if v.agreement == "differs":
            print(f"DIFFERS {v.claim}, {v.part}: samples {v.measured:.4g}, theory {v.predicted:.4g}")
            code = 1
    for now, before in changed(found, committed):
        print(f"CHANGED {now.claim}, {now.part}: was {before.verdict!r}, is {now.verdict!r}")
        code = 1
    return code


def _cores() -> int:
    """Cores that this process may use; macOS and Windows do not say which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _manifest(request: dict[str, Any], draws: int) -> dict[str, Any]:
    """What was asked, and with what it was done."""
    return {
        "request": request,
        "draws": draws,
        "command": shlex.join(["gradbounds", *sys.argv[1:]]),
        "environment": {
            "gradbounds": gradbounds.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "system": platform.platform(),
            "processor": torch.backends.cpu.get_cpu_capability(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        },
    }


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; one line per tenth of the blocks elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = -1

        def line(done: int, total: int) -> None:
            nonlocal last
            if (tenth := 10 * done // total) != last:
                last = tenth
                print(f"{title}: {done} of {total} blocks", file=sys.stderr, flush=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("blocks"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
