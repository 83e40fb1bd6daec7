"""`gradbounds probe`: what the report on a module prints and writes."""

import io
from pathlib import Path

from checks.models.module_report import FILE, ModuleReport
from figures.probe import probe as drawn
from gradbounds.figure_files import save
from gradbounds.json_output import tell
from gradbounds.progress import counted
from simulate.runs.files import write_whole

__all__ = ["counted", "report"]


def report(found: ModuleReport, out: Path | None, *, strict: bool) -> int:
    """Print a report and write its table and figure into a folder.

    Returns:
        1 where there is an alarm and `strict` asks for that, else 0.
    """
    tell(name=found.name, classes=found.classes, exponents=found.exponents, theory=found.theory, alarms=found.alarms)
    if found.rates is not None:
        tell(first_step=found.rates.table, first_step_exponents=found.rates.exponents)
    for line in found.lines():
        print(line)
    if out is not None:
        table = io.BytesIO()
        found.to_frame().to_parquet(table, index=False)
        write_whole(out / "probe.parquet", table.getvalue())
        found.reference().save(out / FILE)
        if found.theory is not None:
            write_whole(out / "theory.csv", found.theory.to_csv(index=False).encode())
        if found.rates is not None:
            write_whole(out / "first_step.csv", found.rates.table.to_csv(index=False).encode())
            write_whole(out / "first_step_seeds.csv", found.rates.steps.to_csv(index=False).encode())
        print(f"Table   {out / 'probe.parquet'}\nKept    {out / FILE}, for --against")
        print(f"Figure  {save(drawn(found.profile()), out, 'probe')[-1]}")
    return 1 if strict and found.alarms else 0
