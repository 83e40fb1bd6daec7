"""`gradbounds probe`: what the report on a module prints and writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from checks.models.coordinate_report import CoordinateReport
from checks.models.module_report import FILE, ModuleReport, probe
from checks.models.one_report import OneReport
from figures.coordinates import coordinates
from figures.probe import probe as drawn
from gradbounds.actions.log_line import read_log
from gradbounds.actions.logged_as import LoggedAs, Reading, reading
from gradbounds.actions.logged_layers import beside_module, layer_lines
from gradbounds.progress import counted
from gradbounds.result import Result
from gradbounds.table_cache import write_frame

__all__ = ["probed"]


def probed(
    factory: str, given: dict[str, Any], out: Path | None, logged: Path | None, logged_as: Sequence[str]
) -> Result:
    """Measure and judge what a factory makes, and write what was measured into the folder.

    Args:
        factory: its name.
        given: further arguments of `checks.models.module_report.probe`.
        out: the folder.
        logged: a log whose norms stand beside those of one module.
        logged_as: what its numbers are.

    Raises:
        ValueError: as `probe`, the log cannot be read, or the folder cannot be written.
    """
    # A log that cannot be read is said before the module is measured.
    norms = None if logged is None else logged_norms(logged, logged_as)
    with counted("probing" if given.get("steps") is None else "stepping") as on_module:
        answer = probe(factory, **given, on_module=on_module)
    if isinstance(answer, OneReport):
        return one_result(answer, out, norms)
    return steps_result(answer, out) if isinstance(answer, CoordinateReport) else report(answer, out)


def logged_norms(logged: Path, logged_as: Sequence[str]) -> Reading:
    """Norms of single gradients in a training log or an export.

    Args:
        logged: its path.
        logged_as: what its numbers are, as `LoggedAs.of` has it.

    Raises:
        ValueError: the log cannot be read, or has none; it is said to be of a mean or of a sum.
    """
    words = LoggedAs.of(logged_as)
    if words.is_sum is not None:
        raise ValueError(
            "logged_as must be without mean and sum in a probe, whose own loss is what it is: one factor in all norms "
            "is printed as the median."
        )
    line = read_log(logged)
    if not line.parameters:
        raise ValueError(f"logged must have norms of single gradients, as layers.3.up.weight: 0.12, got {logged}.")
    return reading(line, words)


def one_result(single: OneReport, out: Path | None, norms: Reading | None = None) -> Result:
    """The report on one module, with its layers and first updates as tables; all that was measured into the folder.

    Args:
        single: the report.
        out: the folder.
        norms: of single gradients, which are set beside the module's own.

    Raises:
        ValueError: the folder cannot be written, or norms are longer than what they are said to be clipped to.
    """
    tables, lines = {"layers": single.layers, "updates": single.updates}, single.lines()
    if norms is not None:
        tables["logged"], unmatched = beside_module(norms.line.parameters, single.measured)
        norms.check(tables["logged"])
        lines[-1:-1] = [*norms.lines, *layer_lines(tables["logged"], unmatched, "the module")]
    if single.step is not None:
        tables["step"] = single.step.moves
    below = _kept_table(single.to_frame(), out, "probe.parquet")
    return Result(
        about=f"probe of {single.name}", tables=tables,
        values={"name": single.name, "judgement": single.judgement(), "alarms": single.alarms, "notes": single.notes},
        lines=lines, below=below, alarm=bool(single.alarms),
    )  # fmt: skip


def _kept_table(frame: pd.DataFrame, out: Path | None, name: str) -> list[str]:
    """Write a table into the folder, if there is one, and say where it is."""
    if out is None:
        return []
    write_frame(out / name, frame)
    return [f"Table   {out / name}"]


def steps_result(check: CoordinateReport, out: Path | None) -> Result:
    """The report on steps with its exponents and the picture; all that was measured into the folder.

    Raises:
        ValueError: the folder cannot be written.
    """
    below = _kept_table(check.to_frame(), out, "steps.parquet")
    values: dict[str, Any] = {
        "name": check.name,
        "optimizer": check.optimizer,
        "parametrization": check.parametrization,
    }
    values |= {"judgement": check.judgement(), "alarms": check.alarms, "notes": check.notes}
    return Result(
        about=f"steps from {check.name}", tables={"exponents": check.table},
        values=values, lines=check.lines(), below=below,
        figures={"coordinates": lambda: coordinates(check.coordinates())}, alarm=bool(check.alarms),
    )  # fmt: skip


def report(found: ModuleReport, out: Path | None) -> Result:
    """A report with its tables and figure; what is measured and what `--against` reads goes into the folder.

    Raises:
        ValueError: the folder cannot be written.
    """
    values = {"name": found.name, "exponents": found.exponents, "alarms": found.alarms}
    tables = {} if found.theory is None else {"theory": found.theory}
    below = _kept_table(found.to_frame(), out, "probe.parquet")
    if out is not None:
        found.reference().save(out / FILE)
        below += [f"Kept    {out / FILE}, for --against"]
    return Result(
        about=f"probe of {found.name}", tables=tables, values=values, lines=found.lines(), below=below,
        figures={"probe": lambda: drawn(found.profile())}, alarm=bool(found.alarms),
    )  # fmt: skip
