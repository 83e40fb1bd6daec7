"""`gradbounds probe`: what the report on a module prints and writes."""

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.models.coordinate_report import CoordinateReport
from checks.models.module_report import FILE, ModuleReport
from checks.models.one_report import OneReport
from figures.coordinates import coordinates
from figures.probe import probe as drawn
from gradbounds.budget import SOON
from gradbounds.progress import counted
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.modules.step_price import StepPrice
from simulate.runs.files import write_whole

__all__ = ["OnlyPricedError", "Priced", "counted", "one_result", "report", "steps_result"]


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


def one_result(single: OneReport, out: Path | None) -> Result:
    """The report on one module, with its layers and first updates as tables; all that was measured into the folder.

    Raises:
        ValueError: the folder cannot be written.
    """
    below = []
    if out is not None:
        table = io.BytesIO()
        single.to_frame().to_parquet(table, index=False)
        write_whole(out / "probe.parquet", table.getvalue())
        below = [f"Table   {out / 'probe.parquet'}"]
    return Result(
        about=f"probe of {single.name}", tables={"layers": single.layers, "updates": single.updates},
        values={"name": single.name, "judgement": single.judgement(), "alarms": single.alarms, "notes": single.notes},
        lines=single.lines(), below=below, alarm=bool(single.alarms),
    )  # fmt: skip


def steps_result(check: CoordinateReport, out: Path | None) -> Result:
    """The report on steps with its exponents and the picture; all that was measured into the folder.

    Raises:
        ValueError: the folder cannot be written.
    """
    below = []
    if out is not None:
        table = io.BytesIO()
        check.to_frame().to_parquet(table, index=False)
        write_whole(out / "steps.parquet", table.getvalue())
        below = [f"Table   {out / 'steps.parquet'}"]
    values: dict[str, Any] = {
        "name": check.name,
        "optimizer": check.optimizer,
        "parametrization": check.parametrization,
    }
    values |= {"judgement": check.judgement(), "alarms": check.alarms, "notes": check.stepped.notes}
    return Result(
        about=f"steps from {check.name}", tables={"exponents": check.table}, values=values, lines=check.lines(),
        below=below, figures={"coordinates": lambda: coordinates(check.coordinates())}, alarm=bool(check.alarms),
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
    below = []
    if out is not None:
        table = io.BytesIO()
        found.to_frame().to_parquet(table, index=False)
        write_whole(out / "probe.parquet", table.getvalue())
        found.reference().save(out / FILE)
        below = [f"Table   {out / 'probe.parquet'}", f"Kept    {out / FILE}, for --against"]
    return Result(
        about=f"probe of {found.name}", tables=tables, values=values, lines=found.lines(), below=below,
        figures={"probe": lambda: drawn(found.profile())}, alarm=bool(found.alarms),
    )  # fmt: skip
