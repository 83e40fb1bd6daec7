"""The command `gradbounds runs`: list the runs in a folder, or describe one run."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from gradbounds.grid import FIELDS, said, with_words
from gradbounds.result import Result
from gradbounds.units import format_bytes
from simulate.runs.manifests import MANIFEST, check_no_study
from simulate.runs.store import Run

_SHOWN = 30


def show(folder: Path) -> Result:
    """Describe one run, or list all runs in a folder.

    Raises:
        ValueError: the folder is not a run and holds none, or a study wrote it.
    """
    check_no_study(folder)
    if (folder / MANIFEST).exists():
        return _inspection(Run.open(folder))
    folders = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if not folders:
        raise ValueError(f"run must be a run folder or a folder of run folders, but {str(folder)!r} holds none.")
    table = pd.DataFrame([_line(path) for path in folders])
    return Result(about=f"runs in {folder}", tables={"runs": table}, lines=table.to_string(index=False).splitlines())


def _line(folder: Path) -> dict[str, Any]:
    try:
        run = Run.open(folder)
        landed, about, request = len(run.landed()), run.manifest, run.request
    except ValueError as error:
        return {"run": folder.name, "command": f"unreadable: {error}"}
    return {
        "run": folder.name,
        "command": request.get("command", ""),
        "seed": request.get("seed", ""),
        "cells": about.get("cells", ""),
        "draws": about.get("draws", ""),
        "blocks": landed,
        "size": _size(folder),
        "started": (about.get("sessions") or [{}])[0].get("started", ""),
    }


def _inspection(run: Run) -> Result:
    about = run.manifest
    values: dict[str, Any] = {"run": str(run.folder), "manifest": about}
    asked = {name: value for name, value in run.request.items() if name not in ("command", "cells")}
    words = ", ".join(f"{name} {value}" for name, value in asked.items())
    command = run.request.get("command", "no command")
    lines = [f"{run.folder}: {_size(run.folder)}, by {command}{' with ' if words else ''}{words}"]
    for at in about.get("sessions", []):
        started, called, version, processor = (
            at.get(name, "unknown") for name in ("started", "command", "gradbounds", "processor")
        )
        lines.append(f"{started}  {called}  (gradbounds {version}, {processor})")
    tables = list(run.tables([*FIELDS, "cell", "engine", "device", "dtype", "text", "seed", "draw"]))
    if not tables:
        return Result(
            about=f"run {run.folder}", values=values, lines=[*lines, "No random networks have been saved yet."]
        )
    rows = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    fields = [name for name in rows if name not in ("cell", "draw")]
    constant = {name: rows[name].iloc[0] for name in fields if rows[name].nunique(dropna=False) == 1}
    varying = [name for name in fields if name not in constant]
    cells = (
        rows.groupby(["cell", *varying], sort=False, dropna=False)
        .size()
        .rename("draws")
        .reset_index()
        .drop(columns="cell")
    )
    cells = cells.sort_values(varying, ignore_index=True)
    defaults = {name: "" for name in constant} | {name: field.default for name, field in FIELDS.items()}
    special = {
        name: value for name, value in constant.items()
        if not (pd.isna(value) if defaults[name] is None else value == defaults[name])
    }  # fmt: skip
    lines.append(
        "all cells: "
        + (", ".join(f"{name} {said(name, value)}" for name, value in special.items()) or "default fields")
    )
    lines += with_words(cells.head(_SHOWN)).to_string(index=False).splitlines()
    if len(cells) > _SHOWN:
        lines.append(f"... and {len(cells) - _SHOWN} more cells; gradbounds runs {run.folder} --json lists all")
    return Result(about=f"run {run.folder}", tables={"cells": cells}, values=values | {"same": constant}, lines=lines)


def _size(folder: Path) -> str:
    return format_bytes(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
