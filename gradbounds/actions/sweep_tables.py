"""The presets `compare` and `relax` of `gradbounds sweep`, which print a table at the end."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from checks.fits import LEAST_POINTS
from checks.report import agreement_lines
from checks.stacks.placements import FLAT, depth_exponents, layer_norms, layer_spreads
from checks.stacks.relaxations import RELAXATIONS, UNRELAXED, relaxation_table
from checks.theory_and_samples import comparison
from figures.sweeps import placements
from gradbounds.actions.sweep import sweep_into
from gradbounds.grid import FIELDS, field_values
from gradbounds.plain_text import table_lines
from gradbounds.progress import working
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from simulate import Execution, Run, Samples
from simulate.counts import check_count
from theory import Stack, predict
from theory.stack import PAPER, TITLES
from theory.stack.placements import COMPOSITIONS

# The default grid of `compare`.
_GRID: dict[str, Any] = {
    "placement": tuple(name for name, composition in COMPOSITIONS.items() if composition.branch(1) > 0),
    "width": ("512",),
    "depth": ("2:16:x2",),
}

# The default widths and depths of `relax`.
_SIZES: dict[str, tuple[str, ...]] = {"width": ("128:1024:x2",), "depth": ("2:16:x2",)}

Steps = Mapping[str, Mapping[str, Any]]


def compare(
    grid: Mapping[str, Any] | None = None, *, draws: int = 128, seed: int = 0, workers: int = 1,
    out: Path | None = None,
) -> Result:  # fmt: skip
    """Compare placements of LayerNorm by sampling networks: exponents in the depth, and gradient norms over the layers.

    Args:
        grid: values of fields, as in a sweep's file: several placements and depths, and one value of any other field;
            by default all placements with branches, at d = 512 and L = 2, 4, 8, 16.
        draws: smallest number of random networks per cell.
        seed: root seed.
        workers: number of processes.
        out: folder of the run, which the same call continues; None saves nothing.

    Returns:
        Tables `norms` (of every layer), `exponents` (in the depth, for at least three depths) and `spreads` (largest /
        smallest norm); figure `placements`.

    Raises:
        ValueError: an argument is outside its range, or the folder holds another run.
    """
    if not (grid is None or isinstance(grid, Mapping)):
        raise ValueError(f"grid must be values by field, such as {{'depth': [2, 4, 8]}}, got {grid!r}.")
    recipe = Recipe().changed(_GRID | dict(grid or {}), draws=draws, seed=seed)
    stacks = recipe.stacks()
    for name in FIELDS:
        values = list(dict.fromkeys(getattr(stack, name) for stack in stacks))
        if name not in ("placement", "depth") and len(values) > 1:
            raise ValueError(f"{name} must have one value, because placements and depths are compared, got {values}.")
    if idle := [stack for stack in stacks if stack.is_idle]:
        raise ValueError(
            f"branch_scale must be above 0, because branches without output have gradient 0, got {idle[0]}."
        )
    depths = sorted({stack.depth for stack in stacks})
    check_count("draws", draws, 2)  # one draw has no error
    order = [stack.placement for stack in stacks]
    samples, landed = _sampled(recipe, workers, out)
    cells = sorted(samples, key=lambda s: (order.index(s.stack.placement), s.stack.depth))
    norms = layer_norms(cells)
    slopes, spreads = depth_exponents(norms) if len(depths) >= LEAST_POINTS else None, layer_spreads(norms)
    counts, agreement = _agreement(cells)
    none = [f"No exponents in L: they require at least {LEAST_POINTS} depths, got L = {', '.join(map(str, depths))}."]
    return Result(
        about=f"{len(dict.fromkeys(order))} placements compared",
        tables={"norms": norms} | ({} if slopes is None else {"exponents": slopes}) | {"spreads": spreads},
        values=counts,
        lines=[
            *landed,
            *(none if slopes is None else _exponent_lines(slopes)),
            *_spread_lines(spreads),
            *agreement,
        ],
        figures={"placements": partial(placements, norms)},
    )


def _spread_lines(spreads: pd.DataFrame) -> list[str]:
    # Report how uneven the layers of every placement are, and which count as flat.
    rows = [
        [
            TITLES[str(row.placement)],
            f"{row.spread:.3f} +- {row.sem:.3f} {_theory(row.predicted, '.3f')}",
            "flat" * bool(row.flat),
        ]
        for row in spreads.itertuples()
    ]
    head = f"Largest / smallest ||dL/dW2|| over the layers at L = {spreads['depth'].iloc[0]}; flat: below {FLAT}"
    return ["", head, *table_lines(["", "samples (theory)", ""], rows)]


def _exponent_lines(exponents: pd.DataFrame) -> list[str]:
    # Report the exponents of every placement in the last and the first layer.
    rows = [
        [TITLES[str(placement)], *(
            f"{row.exponent:+.3f} [{row.low:+.3f}, {row.high:+.3f}] {_theory(row.predicted, '+.3f')}"
            for row in layers.itertuples()
        )]
        for placement, layers in exponents.groupby("placement", sort=False)
    ]  # fmt: skip
    legend = "  samples [95% interval] (large-width theory over the same depths)"
    return [*table_lines(["exponent in L of ||dL/dW2||", "last layer", "first layer"], rows), legend]


def _theory(value: float, form: str) -> str:
    return "(no rule)" if pd.isna(value) else f"({value:{form}})"


def relax(
    grid: Mapping[str, Sequence[Any]] | None = None, *, out: Path | None = None, draws: int = 64,
    seed: int = 0, workers: int = 1,
) -> Result:  # fmt: skip
    """Sample networks at several widths and depths, each without one of the paper's assumptions.

    Args:
        grid: several widths and depths, and at most one value of every other field, of the base network; the base has
            the middle width and depth.
        out: folder of the run, which the same call continues; None saves nothing.
        draws: smallest number of random networks per cell.
        seed: root seed.
        workers: number of processes.

    Returns:
        Table `relaxations`.

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
    grids, left_out = relaxation_grids(base, sizes, {UNRELAXED: {}, **RELAXATIONS})
    recipe = Recipe(grid=tuple(grids), draws=draws, seed=seed)
    cells, landed = _sampled(recipe, workers, out)
    table, (counts, agreement) = relaxation_table(cells, base), _agreement(cells)
    return Result(
        about=f"{1 + len(RELAXATIONS)} relaxations",
        tables={"relaxations": table},
        values={"left_out": left_out} | counts,
        lines=[*left_out, *landed, *relaxation_lines(table), *agreement],
    )


def _words(entries: Sequence[Any]) -> list[str]:
    return [str(entry) for entry in entries]


def _base(grid: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> Stack:
    """Return the base network, whose assumptions are dropped.

    Raises:
        ValueError: the grid has a placement, although both are used, or several values of a field.
    """
    given = {name: field_values(name, words) for name, words in grid.items()}
    for name, values in given.items():
        if name == "placement" or len(values) > 1:
            allowed = (
                "be omitted, because both placements of the paper are used" if name == "placement" else "have one value"
            )
            raise ValueError(f"{name} must {allowed}, got {values}.")
    return Stack(**{"vocab": 64} | {name: values[0] for name, values in given.items()} | dict(sizes))


def relaxation_grids(
    base: Stack, sizes: Mapping[str, Sequence[int]], steps: Steps
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return two grids for every changed network, over widths and over depths.

    Networks that theory cannot predict are left out. The second result has one line of text for each of them, with the
    reason.
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


# Measured, its standard error, and predicted.
_ENDS = ("", "_sem", "_predicted")


def relaxation_lines(table: pd.DataFrame) -> list[str]:
    """Return the table of dropped assumptions as text: measured value ± standard error, prediction in parentheses."""
    numbers = {"effect": "last dL/dW2, times", "width": "exponent in d", "depth": "exponent in L"}
    numbers |= {"profile": "first / last layer"}
    lines = []
    for placement, rows in table.groupby("placement", sort=False):
        cells = [
            [
                row["relaxation"],
                *("{:.3f} +- {:.3f} ({:.3f})".format(*(row[name + end] for end in _ENDS)) for name in numbers),
            ]
            for row in rows.to_dict("records")
        ]
        lines += table_lines([f"{TITLES[str(placement)]}, relaxed:", *numbers.values()], cells)
    return [*lines, "  samples +- standard error (large-width theory for the same networks)"]


def _sampled(recipe: Recipe, workers: int, out: Path | None) -> tuple[list[Samples], Sequence[str]]:
    # Sample a recipe; return the samples, and lines about the folder that holds them, if any.
    with TemporaryDirectory() if out is None else nullcontext(out) as folder:
        sampled = sweep_into(Path(folder), recipe, Execution(workers=workers))
        return Run.open(folder).samples(), () if out is None else sampled.lines


def _agreement(cells: Sequence[Samples]) -> tuple[dict[str, Any], list[str]]:
    # Count how many numbers agree with theory, as a value of the result and in lines.
    with working("predicting"):
        table = comparison(cells)
    counts = table["agreement"].value_counts().to_dict()
    return {"agreement": counts}, agreement_lines(table, "all quantities and layers")
