"""The commands on the draws of run folders: say where two differ, merge several, export one."""

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from checks.stacks.two_runs import RATE, can_differ, only_in_one, run_differences, set_apart
from gradbounds.grid import FIELDS, said, with_words
from gradbounds.recipe import recipe_in
from gradbounds.result import Result
from simulate import Run, Samples
from simulate.runs.files import whole_file, write_whole
from simulate.runs.provenance import session

if TYPE_CHECKING:
    from checks.models.reference import Reference

_SHOWN = 30


def judged_samples(run: Run) -> list[Samples]:
    """The cells of a run that have the two draws that an error takes; those of a run being written may not yet.

    Raises:
        ValueError: none has.
    """
    samples = run.samples()
    enough = [s for s in samples if s.draws >= 2]
    if not enough:
        raise ValueError(f"run must have cells of at least 2 draws, to give errors, but {str(run.folder)!r} has none.")
    if len(enough) < len(samples):
        print(f"left out: {len(samples) - len(enough)} of {len(samples)} cells, which have one draw so far")
    return enough


def diff(first: Path, second: Path) -> Result:
    """Where two runs, or two kept probes, differ.

    Returns:
        Of runs the table `numbers`: a row for every quantity and layer of the networks that both have.

    Raises:
        ValueError: one of them is neither, or they have nothing in common.
    """
    about, kept = f"{first} against {second}", [_kept_probe(path) for path in (first, second)]
    if kept[0] is not None and kept[1] is not None:
        from checks.models.reference import against_reference  # late: runs need no libraries of modules

        alarms = against_reference(kept[1], kept[0])
        differences = [str(alarm) for alarm in alarms]
        none = [] if differences else [f"No difference between {first} and {second}."]
        return Result(about=about, values={"differences": alarms}, lines=none, differences=differences)
    runs = [judged_samples(Run.open(path)) for path in (first, second)]
    table, alone = run_differences(*runs), only_in_one(*runs)
    if table.empty:
        raise ValueError(f"runs must have a network in common, but {str(first)!r} and {str(second)!r} have none.")
    differs = table[table["differs"]]
    lines = [
        f"{name} is {said(name, ours)} in {first} and {said(name, other)} in {second}; networks are matched without it."
        for name, (ours, other) in set_apart(*runs).items()
    ]
    networks = table.drop_duplicates([name for name in FIELDS if name in table])
    few = sum(not can_differ(*draws) for draws in zip(networks["first_draws"], networks["second_draws"], strict=True))
    lines += [
        f"{len(networks)} networks in both runs, {alone[0]} only in {first}, {alone[1]} only in {second}.",
        f"{len(table)} numbers compared: {len(differs)} differ; chance alone has one in {RATE:.0%} of such pairs.",
    ]
    if few:
        lines.append(
            f"{few} networks have too few draws for any difference to show, as 4 against 4 are; give them more."
        )
    shown: list[str] = []
    if len(differs):
        varying = [name for name in FIELDS if name in table and table[name].nunique(dropna=False) > 1]
        worst = differs.sort_values("errors", key=abs, ascending=False).head(_SHOWN)
        columns = [*varying, "quantity", "layer", "first", "second", "errors"]
        shown = with_words(worst)[columns].to_string(index=False).splitlines()
        shown += [f"... and {len(differs) - _SHOWN} more: --json has all"] if len(differs) > _SHOWN else []
    values = {"only_in_first": alone[0], "only_in_second": alone[1], "differing": len(differs)}
    return Result(about=about, tables={"numbers": table}, values=values, lines=lines, differences=shown)


def _kept_probe(path: Path) -> "Reference | None":
    """What `probe --out` kept, of a folder or a file; None where it is no such."""
    from checks.models.module_report import FILE
    from checks.models.reference import Reference

    file = path / FILE if path.is_dir() else path
    return Reference.read(file) if file.is_file() and file.suffix == ".json" else None


def merge(folders: Sequence[Path], out: Path) -> int:
    """Put the draws of several runs into a new one; a block that several hold is taken once.

    Runs of one request stay one that its command continues. Giving the same command again continues a merge.

    Raises:
        ValueError: fewer than two runs, one of them twice, one that cannot be read, or a folder that cannot be written.
    """
    if len(folders) < 2:
        raise ValueError(f"runs must be at least two folders to merge, got {len(folders)}.")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("runs must be different folders to merge, got one of them twice.")
    runs = [Run.open(folder) for folder in folders]
    requests = [run.request for run in runs]
    digest = hashlib.sha256("\n".join(sorted(map(repr, requests))).encode()).hexdigest()
    same = bool(requests[0]) and all(request == requests[0] for request in requests)
    about = {
        "request": requests[0] if same else {"command": "merge", "of": digest},
        "draws": max(run.manifest.get("draws", 0) for run in runs),
        "recipe": recipe_in(runs[0].manifest).to_dict() if same and "recipe" in runs[0].manifest else {},
        "own": "null",
        "sessions": [*(at for run in runs for at in run.manifest.get("sessions", [])), session()],
    }
    there = [run.landed() for run in runs]
    about["cells"] = len({cell for blocks in there for cell, _, _ in blocks})
    merged = Run.create(out, about)
    with merged.hold():
        landed = merged.landed()
        for run in runs:
            for file in sorted((run.folder / "windows").glob("*.parquet")):
                if not (copy := out / "windows" / file.name).exists():
                    write_whole(copy, file.read_bytes())
            for rows in run.tables():
                keys = list(zip(*(rows[name].to_pylist() for name in ("cell", "seed", "block")), strict=True))
                fresh = [key not in landed for key in keys]
                if any(fresh):
                    merged.append_rows(rows.filter(pa.array(fresh)))
                    landed.update(keys)
    print(f"{about['cells']} cells in {len(landed)} blocks of {len(runs)} runs in {out}")
    for run in runs:
        for line in run.without_checksums():
            print(f"{run.folder}: {line}")
    print(f"Judge them with: gradbounds check {shlex.quote(str(out))}")
    return 0


def export(folder: Path, csv: Path) -> int:
    """Write all draws as one CSV file: a row per draw and layer, a column per field and quantity.

    Raises:
        ValueError: the run cannot be read or has no draws, or the file cannot be written.
    """
    run = Run.open(folder)
    names: dict[str, None] = {}
    for frame in run.frames():
        names |= dict.fromkeys(frame.columns)
    if not names:
        raise ValueError(f"run must hold draws, but {str(folder)!r} has none; sweep into it first.")
    rows = 0
    with whole_file(csv) as file:
        for frame in run.frames():
            # Files of different versions may differ in columns.
            frame.reindex(columns=list(names)).to_csv(file, index=False, header=rows == 0)
            rows += len(frame)
    print(f"{rows} rows in {csv}")
    return 0
