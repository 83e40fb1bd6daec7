"""Results of commands: printed on the terminal, as JSON, or written into a folder."""

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradbounds.help_text import folded
from gradbounds.json_output import json_text
from simulate.runs.files import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from checks.stacks.gradients_by_layer import Columns
    from checks.verdict import Verdict

_INDENT = " " * 5


class Frames(UserDict[str, Any]):
    """Tables by name that become data frames when they are read; `data` has their columns, which need no pandas."""

    def __getitem__(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        frames = self.__dict__.setdefault("frames", {})
        return frames[name] if name in frames else frames.setdefault(name, pd.DataFrame(self.data[name]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """The result of a command or of its Python function: text, tables, figures and verdicts.

    Attributes:
        about: the subject, in one line.
        tables: data frames by name, the main one first.
        values: single values by name.
        lines: the printed text.
        verdicts: verdicts on the paper's claims and on registered claims.
        below: lines that a terminal shows below the verdicts.
        figures: functions that draw the figures, by name.
        differences: one line for every difference between theory and samples, or from a saved verdict.
        alarm: whether something else is wrong, which the lines describe.
        is_open: whether the asked question has no answer yet, as for an undecided log.
        not_finite: whether numbers of a run are infinite or NaN, which is always an error.
    """

    about: str
    tables: Mapping[str, "pd.DataFrame"] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    verdicts: Sequence["Verdict"] = ()
    below: Sequence[str] = ()
    figures: Mapping[str, Callable[..., "Figure"]] = field(default_factory=dict)
    differences: Sequence[str] = ()
    alarm: bool = False
    is_open: bool = False
    not_finite: bool = False

    def __repr__(self) -> str:
        parts = [
            *(f"{name} of {len(table)} rows" for name, table in self.tables.items()),
            *[f"{len(self.verdicts)} verdicts"] * bool(self.verdicts), *(f"figure {name}" for name in self.figures),
        ]  # fmt: skip
        return f"<{self.about}: {', '.join(parts)}>"

    def __str__(self) -> str:
        return "\n".join([*self.lines, *_verdict_lines(self.verdicts), *self.below, *self.differences])

    def _repr_html_(self) -> str:
        tables = (
            table.to_html(index=False, float_format="%.4g", na_rep="", max_rows=40) for table in self.tables.values()
        )
        return f"<p>{self.about}</p>" + "".join(tables)

    def to_frame(self, name: str = "") -> "pd.DataFrame":
        """Return a table of the result as a data frame, by its name; without a name, the main table.

        Raises:
            ValueError: the result lacks this table.
        """
        return _named(self.tables, name, "table")

    def columns(self, name: str = "") -> "Columns":
        """Return the columns of a table by name, without pandas if the table does not need it yet.

        Raises:
            ValueError: the result lacks this table.
        """
        return _named(self.tables.data if isinstance(self.tables, Frames) else self.tables, name, "table")

    def plot(self, name: str = "", **options: Any) -> "Figure":
        """Draw a figure of the result, by its name; without a name, the first figure.

        Raises:
            ValueError: there is no such figure.
        """
        return _named(self.figures, name, "figure")(**options)


def _named(entries: Mapping[str, Any], name: str, kind: str) -> Any:
    if not entries or (name and name not in entries):
        raise ValueError(f"{kind} must be one of {', '.join(entries) or 'none, for there is none'}, got {name!r}.")
    return entries[name or next(iter(entries))]


def _verdict_lines(verdicts: "Sequence[Verdict]") -> list[str]:
    return [line if k == 0 else _INDENT + line for v in verdicts for k, line in enumerate(v.lines())]


def deliver(
    result: Result, *, command: str = "", out: Path | None = None, as_json: bool = False, strict: bool = True
) -> int:
    """Print a result as text or as one JSON object, and write its tables and figures into a folder.

    Args:
        result: result to print and save.
        command: name of the command, for the JSON object.
        out: folder for tables and figures; None writes nothing.
        as_json: whether one JSON object is printed instead of text.
        strict: whether differences and alarms count as an error.

    Returns:
        Exit code: 1 for numbers that are not finite; with `strict`, 1 for differences or alarms, and 3 for an open
        question; 0 otherwise.

    Raises:
        ValueError: the folder cannot be written.
    """
    written = [] if out is None else _written(result, out)
    if as_json:
        verdicts = {"verdicts": list(result.verdicts)} if result.verdicts else {}
        print(json_text({"command": command, **result.values, **result.tables, **verdicts}))
    else:
        for line in (
            *result.lines,
            *_verdict_lines(result.verdicts),
            *result.below,
            *written,
        ):  # rows of tables stay whole
            print(line if line.startswith("  ") and not line.startswith(_INDENT) else folded(line, indent=_INDENT))
        for line in result.differences:
            print(line)
    if result.not_finite or (strict and (result.alarm or bool(result.differences))):
        return 1
    return 3 * (strict and result.is_open)  # 2 is the code of invalid input


def _written(result: Result, out: Path) -> list[str]:
    """Write tables, verdicts and figures as files, and return a line for each."""
    lines = []
    for name, table in result.tables.items():
        write_whole(out / f"{name}.csv", table.to_csv(index=False).encode())
        lines.append(f"Table   {out / f'{name}.csv'}")
    if result.verdicts:
        from checks.results import results  # late: a list of runs needs none of what these load
        from simulate.runs.provenance import session

        write_whole(out / "verdicts.json", results(result.verdicts, [], session()["command"]).encode())
        lines.append(f"Kept    {out / 'verdicts.json'}, the verdicts as data")
    for name, draw in result.figures.items():
        from gradbounds.figure_files import save  # late: it loads matplotlib

        lines.append(f"Figure  {save(draw(), out, name)[-1]}")
    return lines
