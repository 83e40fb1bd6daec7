"""`gradbounds compare`: placements of LayerNorm, predicted, sampled and drawn side by side."""

import io
from pathlib import Path

from checks.comparison import comparison
from checks.placements import depth_exponents, exponent_lines, layer_norms
from checks.report import agreement_counts
from figures import placements, style
from gradbounds.recipe import Recipe
from gradbounds.sampling import sweep_into
from simulate import Run
from simulate.files import write_whole


def compare(out: Path, recipe: Recipe, *, workers: int) -> int:
    """Sample the recipe into a folder, print the exponents, and leave `placements.png` and `.svg` in it.

    Raises:
        ValueError: an argument is outside its range, or the folder holds another run.
    """
    code = sweep_into(out, recipe, workers=workers, land_every=5.0, resume=True)
    order = [stack.placement for stack in recipe.stacks()]
    cells = sorted(Run.open(out).samples(), key=lambda s: (order.index(s.stack.placement), s.stack.depth))
    norms = layer_norms(cells)
    for line in exponent_lines(depth_exponents(norms)):
        print(line)
    print(f"Theory against samples, every quantity and layer: {agreement_counts(comparison(cells))}.")
    for suffix in ("svg", "png"):
        picture = io.BytesIO()
        with style():
            placements(norms).savefig(picture, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
        write_whole(out / f"placements.{suffix}", picture.getvalue())
    print(f"Figure  {out / 'placements.png'}")
    return code
