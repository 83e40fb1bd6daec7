"""`gradbounds compare`: placements of LayerNorm, predicted, sampled and drawn side by side."""

from pathlib import Path

from checks.fits import LEAST_POINTS
from checks.report import agreement_counts
from checks.stacks.placements import depth_exponents, exponent_lines, layer_norms, layer_spreads, spread_lines
from checks.theory_and_samples import comparison
from figures import placements
from gradbounds.actions.figures import save
from gradbounds.actions.sweep import sweep_into
from gradbounds.grid import FIELDS
from gradbounds.json_output import tell
from gradbounds.progress import working
from gradbounds.recipe import Recipe
from simulate import Run
from simulate.counts import check_count
from simulate.runs.execution import Execution


def compare(out: Path, recipe: Recipe, *, workers: int) -> int:
    """Sample the recipe into a folder, print the exponents, and leave `placements.png` and `.svg` in it.

    Raises:
        ValueError: an argument is outside its range, or the folder holds another run.
    """
    for name in FIELDS:
        values = list(dict.fromkeys(getattr(stack, name) for stack in recipe.stacks()))
        if name not in ("placement", "depth") and len(values) > 1:
            raise ValueError(f"{name} must have one value, for placements and depths are compared, got {values}.")
    if idle := [stack for stack in recipe.stacks() if stack.is_idle]:
        raise ValueError(
            f"branch_scale must be above 0 to compare gradients, which are 0 where branches add nothing, got {idle[0]}."
        )
    depths = sorted({stack.depth for stack in recipe.stacks()})
    check_count("draws", recipe.draws, 2)  # one draw has no error
    code = sweep_into(out, recipe, Execution(workers=workers))
    order = [stack.placement for stack in recipe.stacks()]
    cells = sorted(Run.open(out).samples(), key=lambda s: (order.index(s.stack.placement), s.stack.depth))
    norms = layer_norms(cells)
    slopes, spreads = depth_exponents(norms) if len(depths) >= LEAST_POINTS else None, layer_spreads(norms)
    with working("predicting"):
        agreement = comparison(cells)
    tell(norms=norms, exponents=slopes, spreads=spreads, agreement=agreement["agreement"].value_counts().to_dict())
    none = [f"No exponents in L, which take {LEAST_POINTS} depths or more; here is L = {', '.join(map(str, depths))}."]
    for line in (*(none if slopes is None else exponent_lines(slopes)), *spread_lines(spreads)):
        print(line)
    print(f"Theory against samples, every quantity and layer: {agreement_counts(agreement)}.")
    print(f"Figure  {save(placements(norms), out, 'placements')[-1]}")
    return code
