"""`gradbounds sweep --preset compare`: placements of LayerNorm, predicted, sampled and drawn side by side."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from checks.fits import LEAST_POINTS
from checks.report import agreement_counts
from checks.stacks.placements import depth_exponents, exponent_lines, layer_norms, layer_spreads, spread_lines
from checks.theory_and_samples import comparison
from figures.placements import placements
from gradbounds.actions.sweep import dry_run, sweep_into
from gradbounds.grid import FIELDS
from gradbounds.progress import working
from gradbounds.recipe import Recipe
from gradbounds.result import Result
from simulate import Run
from simulate.counts import check_count
from simulate.runs.execution import Execution
from theory.stack.placements import COMPOSITIONS

_GRID: dict[str, Any] = {
    "placement": tuple(name for name, composition in COMPOSITIONS.items() if composition.branch(1) > 0),
    "width": ("512",),
    "depth": ("2:16:x2",),
}
"""What is compared where a field is not given."""


def compare(
    grid: Mapping[str, Any] | None = None, *, draws: int = 128, seed: int = 0, workers: int = 1,
    out: Path | None = None, plan: bool = False,
) -> Result:  # fmt: skip
    """Sample placements of LayerNorm side by side: exponents in the depth, and profiles over the layers.

    Args:
        grid: values of fields, as in a sweep's file: several placements and depths, and one value of any other field;
            by default all placements with branches, at d = 512 and L = 2, 4, 8, 16.
        draws: least number of networks per cell.
        seed: root seed.
        workers: processes.
        out: folder of the run, which the same call continues; None keeps nothing.
        plan: whether to say what sampling takes, and stop.

    Returns:
        Tables `norms` (of every layer), `exponents` (in the depth, where there are three) and `spreads` (largest over
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
            raise ValueError(f"{name} must have one value, for placements and depths are compared, got {values}.")
    if idle := [stack for stack in stacks if stack.is_idle]:
        raise ValueError(
            f"branch_scale must be above 0 to compare gradients, which are 0 where branches add nothing, got {idle[0]}."
        )
    depths = sorted({stack.depth for stack in stacks})
    check_count("draws", draws, 2)  # one draw has no error
    order = [stack.placement for stack in stacks]
    if plan:
        return dry_run(out, recipe, Execution(workers=workers))
    with TemporaryDirectory() if out is None else nullcontext(out) as folder:
        sampled = sweep_into(Path(folder), recipe, Execution(workers=workers))
        samples = Run.open(folder).samples()
    cells = sorted(samples, key=lambda s: (order.index(s.stack.placement), s.stack.depth))
    norms = layer_norms(cells)
    slopes, spreads = depth_exponents(norms) if len(depths) >= LEAST_POINTS else None, layer_spreads(norms)
    with working("predicting"):
        agreement = comparison(cells)
    none = [f"No exponents in L, which take {LEAST_POINTS} depths or more; here is L = {', '.join(map(str, depths))}."]
    return Result(
        about=f"{len(dict.fromkeys(order))} placements side by side",
        tables={"norms": norms} | ({} if slopes is None else {"exponents": slopes}) | {"spreads": spreads},
        values={"agreement": agreement["agreement"].value_counts().to_dict()},
        lines=[
            *([] if out is None else sampled.lines),
            *(none if slopes is None else exponent_lines(slopes)),
            *spread_lines(spreads),
            f"Theory against samples, every quantity and layer: {agreement_counts(agreement)}.",
        ],
        figures={"placements": partial(placements, norms)},
    )
