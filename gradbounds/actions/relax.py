"""`gradbounds sweep --preset relax`: the paper's assumptions switched off in turn, and what that does."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from checks.fits import LEAST_POINTS
from checks.report import agreement_counts
from checks.stacks.relaxations import RELAXATIONS, UNRELAXED, relaxation_name, relaxation_table
from checks.theory_and_samples import comparison
from figures.relaxations import relaxation_path, relaxations
from gradbounds.actions.sweep import dry_run, sweep_into
from gradbounds.grid import FIELDS, OWN_WORD, field_values
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from simulate import Run
from simulate.counts import check_count
from simulate.runs.execution import Execution
from theory import Stack, predict
from theory.stack import PAPER, SIZES, TITLES
from theory.stack.registry import nearest

_SIZES: dict[str, tuple[str, ...]] = {"width": ("128:1024:x2",), "depth": ("2:16:x2",)}
"""What is swept where the grid has no widths or depths."""

Steps = Mapping[str, Mapping[str, Any]]


def relax(
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    out: Path | None,
    along: str = "",
    values: Sequence[Any] = (),
    draws: int = 64,
    seed: int = 0,
    workers: int = 1,
    plan: bool = False,
) -> Result:
    """Sample every relaxation of the paper's assumptions over widths and depths.

    Args:
        grid: several widths and depths, and one value of any other field, of the base that is relaxed; its own are the
            middle width and depth.
        out: folder of the run, which the same call continues; None for a plan alone.
        along: a field of numbers to go along instead; the figure is drawn against it.
        values: of that field.
        draws: least number of networks per cell.
        seed: root seed.
        workers: processes.
        plan: whether to say what sampling takes, and stop.

    Returns:
        Table and figure `relaxations`.

    Raises:
        ValueError: an argument is outside its range, or the folder holds another run.
    """
    given = {name: _words(entries) for name, entries in (grid or {}).items()}
    sizes = {name: field_values(name, given.get(name, entries)) for name, entries in _SIZES.items()}
    # Wide and shallow, where theory is near: what is said of one network is said of this one.
    middle = {"width": sorted(sizes["width"])[len(sizes["width"]) // 2]}
    middle["depth"] = sorted(sizes["depth"])[(len(sizes["depth"]) - 1) // 2]
    base = _base({name: words for name, words in given.items() if name not in sizes}, middle)
    for name, numbers in sizes.items():
        if len(numbers) < LEAST_POINTS:
            raise ValueError(f"{name} must have at least {LEAST_POINTS} values to give an exponent, got {numbers}.")
    check_count("draws", draws, 2)  # one draw has no error
    steps = _values_of(base, along, _words(values)) if along else {UNRELAXED: {}, **RELAXATIONS}
    grids, left_out = relaxation_grids(base, sizes, steps)
    recipe = Recipe(grid=tuple(grids), draws=draws, seed=seed)
    if plan:
        return dry_run(out, recipe, Execution(workers=workers))
    if out is None:
        raise ValueError("out must be given: it says where the draws go.")
    sampled = sweep_into(out, recipe, Execution(workers=workers))
    cells = Run.open(out).samples()
    table, agreement = relaxation_table(cells, base), comparison(cells)
    lines = table_lines(table)
    if along:
        value_of = {relaxation_name(replace(base, **fields), base): fields[along] for fields in steps.values()}
        table["value"] = table["relaxation"].map(value_of)
    counts = f"Theory against samples, every quantity and layer: {agreement_counts(agreement)}."
    return Result(
        about=f"{len(steps)} relaxations",
        tables={"relaxations": table},
        values={"left_out": left_out, "agreement": agreement["agreement"].value_counts().to_dict()},
        lines=[*left_out, *sampled.lines, *lines, counts],
        figures={"relaxations": partial(relaxation_path, table, along) if along else partial(relaxations, table)},
    )


def _words(entries: Sequence[Any]) -> list[str]:
    """Values as a command line has them."""
    return [str(entry) for entry in entries]


def _base(grid: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> Stack:
    """The network that is relaxed.

    Raises:
        ValueError: the grid has a placement, for both are relaxed, or several values of a field.
    """
    given = {name: field_values(name, words) for name, words in grid.items()}
    for name, values in given.items():
        if name == "placement" or len(values) > 1:
            allowed = (
                "be left out, for both of the paper's are relaxed" if name == "placement" else "have one value here"
            )
            raise ValueError(f"{name} must {allowed}, got {values}.")
    return Stack(**{"vocab": 64} | {name: values[0] for name, values in given.items()} | dict(sizes))


def _values_of(base: Stack, field: str, values: Sequence[str]) -> Steps:
    """A step per value of a number field.

    Raises:
        ValueError: there is no such field, or a value is none.
    """
    numbers = [name for name, f in FIELDS.items() if not isinstance(f.default, str) and name not in SIZES]
    if field not in numbers:
        raise ValueError(f"along must be one of {', '.join(numbers)}, got {field!r}.{nearest([field], numbers)}")
    converted = field_values(field, values)
    if None in converted:
        raise ValueError(f"values must be numbers along {field}, got {OWN_WORD!r}, which is a placement's.")
    return {f"{field} = {value}": {field: getattr(replace(base, **{field: value}), field)} for value in converted}


def relaxation_grids(
    base: Stack, sizes: Mapping[str, Sequence[int]], steps: Steps
) -> tuple[list[dict[str, Any]], list[str]]:
    """A grid over the widths and one over the depths for every step from the base, and what is left out.

    Left out, with the reason, is what theory cannot predict.
    """
    grids, left_out = [], []
    for name, fields in steps.items():
        try:
            for placement in PAPER:
                largest: dict[str, Any] = {"placement": placement} | {key: max(v) for key, v in sizes.items()}
                predict(replace(base, **largest, **fields), patterns=1)
        except ValueError as reason:
            left_out.append(f"left out: {name}: {reason}")
            continue
        relaxed = {key: value for key, value in (asdict(base) | dict(fields)).items() if value != getattr(Stack(), key)}
        common = {key: value for key, value in relaxed.items() if key not in ("placement", "width", "depth")}
        for against, values in sizes.items():
            fixed = {key: getattr(base, key) for key in ("width", "depth") if key != against}
            grids.append({"placement": list(PAPER), against: list(values), **fixed, **common})
    return grids, left_out


def table_lines(table: pd.DataFrame) -> list[str]:
    """The table as text: measured ± standard error, and large-width theory in parentheses."""
    lines = []
    for placement, rows in table.groupby("placement", sort=False):
        heads = ["last dL/dW2, times", "exponent in d", "exponent in L", "first layer over last"]
        lines.append(f"{TITLES[str(placement)] + ', relaxed:':26}" + "".join(f"{head:>27}" for head in heads))
        for row in rows.itertuples():
            numbers = [
                "{:.3f} +- {:.3f} ({:.3f})".format(*(getattr(row, name + end) for end in ("", "_sem", "_predicted")))
                for name in ("effect", "width", "depth", "profile")
            ]
            lines.append(f"  {row.relaxation:24}" + "".join(f"{number:>27}" for number in numbers))
    return [*lines, "samples with their standard error, and large-width theory over the same networks in parentheses"]
