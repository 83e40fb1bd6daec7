"""`gradbounds probe`: what the report on a module prints and writes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from checks.models.coordinate_report import CoordinateReport
from checks.models.module_report import FILE, ModuleReport
from checks.models.one_report import OneReport
from figures.coordinates import coordinates
from figures.probe import probe as drawn
from gradbounds.actions.log_line import read_log
from gradbounds.actions.logged_as import LoggedAs, Reading, reading
from gradbounds.actions.logged_layers import beside_module, layer_lines
from gradbounds.budget import SOON
from gradbounds.progress import counted
from gradbounds.result import Result
from gradbounds.table_cache import write_frame
from gradbounds.units import duration
from simulate.modules.step_price import StepPrice

__all__ = ["OnlyPricedError", "Priced", "counted", "logged_norms", "one_result", "report", "steps_result"]


class OnlyPricedError(Exception):
    """Nothing more was asked for than what steps take."""

    def __init__(self, result: Result) -> None:
        super().__init__(str(result))
        self.result = result


@dataclass(frozen=True, slots=True)
class Priced:
    """Says what steps take before they begin, and lets them begin or not.

    Attributes:
        limit: seconds that they may take; None where there is none.
        plan: whether that is all that was asked for.
    """

    limit: float | None
    plan: bool

    def __call__(self, price: StepPrice) -> None:
        """With what they take.

        Raises:
            OnlyPricedError: that is all.
            ValueError: they may not take so long.
        """
        takes = f"about {duration(price.seconds)}"
        line = f"{price.modules} modules of up to {price.parameters} parameters take {takes}"
        if self.plan:
            raise OnlyPricedError(Result(
                about="steps", tables={}, lines=[f"{line}, by one step at the smallest width and by parameters."],
                values={"modules": price.modules, "parameters": price.parameters, "seconds": price.seconds},
            ))  # fmt: skip
        if self.limit is not None and price.seconds > self.limit:
            raise ValueError(
                f"max_time must be at least what steps take, got {duration(self.limit)}, and {line}; fewer --seeds, "
                "--steps or widths take less."
            )
        if price.seconds > SOON:
            print(line, file=sys.stderr, flush=True)


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
        about=f"steps from {check.name}", tables={"exponents": check.table, "first_step": check.first_step},
        values=values, lines=check.lines(), below=below,
        figures={"coordinates": lambda: coordinates(check.coordinates())}, alarm=bool(check.alarms),
    )  # fmt: skip


def report(found: ModuleReport, out: Path | None) -> Result:
    """A report with its tables and figure; what is measured and what `--against` reads goes into the folder.

    Raises:
        ValueError: the folder cannot be written.
    """
    values = {"name": found.name, "classes": found.classes, "exponents": found.exponents, "alarms": found.alarms}
    tables = {} if found.theory is None else {"theory": found.theory}
    if found.rates is not None:
        tables |= {"first_step": found.rates.table, "first_step_seeds": found.rates.steps}
        values["first_step_exponents"] = found.rates.exponents
    below = _kept_table(found.to_frame(), out, "probe.parquet")
    if out is not None:
        found.reference().save(out / FILE)
        below += [f"Kept    {out / FILE}, for --against"]
    return Result(
        about=f"probe of {found.name}", tables=tables, values=values, lines=found.lines(), below=below,
        figures={"probe": lambda: drawn(found.profile())}, alarm=bool(found.alarms),
    )  # fmt: skip
