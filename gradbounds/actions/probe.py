"""The command `gradbounds probe`: a printed report on a module, and the files that it writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checks.models.judge import probe
from checks.models.layer_tables import profile_table
from checks.models.reference import FILE
from checks.models.report import ProbeReport
from figures.probe import coordinates, probe as drawn
from gradbounds.actions.log_line import read_log
from gradbounds.actions.logged_as import LoggedAs, Reading, reading
from gradbounds.actions.logged_layers import compare_with_module, layer_lines
from gradbounds.progress import counted
from gradbounds.result import Result
from simulate.runs.files import write_whole

__all__ = ["probed"]


def probed(
    factory: str, given: dict[str, Any], out: Path | None, logged: Path | None, logged_as: Sequence[str]
) -> Result:
    """Probe the modules that a function makes, report their faults, and write the measurements into a folder.

    Args:
        factory: name of the factory.
        given: further arguments of `checks.models.judge.probe`.
        out: the folder.
        logged: path of a log whose norms are compared with one module's.
        logged_as: how the log's numbers were computed, in the words of `LoggedAs.of`.

    Raises:
        ValueError: the log cannot be read, the folder cannot be written, or as in `checks.models.judge.probe`.
    """
    # A log that cannot be read is said before the module is measured.
    norms = None if logged is None else logged_norms(logged, logged_as)
    with counted("probing" if given.get("steps") is None else "stepping") as on_module:
        report = probe(factory, **given, on_module=on_module)
    return report_result(report, out, norms)


def logged_norms(logged: Path, logged_as: Sequence[str]) -> Reading:
    """Read the gradient norms of single parameters from a training log or from an exported table.

    Args:
        logged: path of the log.
        logged_as: how the log's numbers were computed, in the words of `LoggedAs.of`.

    Raises:
        ValueError: the log cannot be read, or has none; it is said to be of a mean or of a sum.
    """
    words = LoggedAs.of(logged_as)
    if words.is_sum is not None:
        raise ValueError(
            "logged_as cannot be mean or sum in a probe, which uses its own loss; a common factor of all norms "
            "appears as the median."
        )
    line = read_log(logged)
    if not line.parameters:
        raise ValueError(f"logged must have norms of single gradients, as layers.3.up.weight: 0.12, got {logged}.")
    return reading(line, words)


def report_result(found: ProbeReport, out: Path | None, norms: Reading | None = None) -> Result:
    """Return the report of a probe with tables and a figure, and write its measurements into a folder.

    Args:
        found: report of the probe.
        out: the folder.
        norms: logged norms of single parameters, which are compared with one module's.

    Raises:
        ValueError: the folder cannot be written, or norms are longer than what they are said to be clipped to.
    """
    tables, lines, below = dict(found.tables), found.lines(), list[str]()
    values: dict[str, Any] = {"name": found.name, "judgement": found.judgement()}
    values |= {"alarms": found.alarms, "notes": found.notes}
    figures: dict[str, Any] = {}
    if norms is not None and found.probed is not None:
        tables["logged"], unmatched = compare_with_module(norms.line.parameters, found.probed)
        norms.check(tables["logged"])
        lines += [*norms.lines, *layer_lines(tables["logged"], unmatched, "the module")]
    if out is not None:
        path = out / ("probe.parquet" if found.stepped is None else "steps.parquet")
        write_whole(path, found.to_frame().to_parquet(index=False, write_page_checksum=True))
        below.append(f"Table   {path}")
    if found.stepped is not None:
        values |= {"optimizer": found.optimizer, "parametrization": found.parametrization}
        figures["coordinates"] = lambda: coordinates(found.stepped.coordinates())
    elif "exponents" in tables:
        figures["probe"] = lambda: drawn(profile_table(found.to_frame()))
        if out is not None:
            found.reference().save(out / FILE)
            below.append(f"Kept    {out / FILE}, for --against")
    return Result(
        about=f"probe of {found.name}", tables=tables, values=values, lines=lines, below=below, figures=figures,
        alarm=bool(found.alarms),
    )  # fmt: skip
