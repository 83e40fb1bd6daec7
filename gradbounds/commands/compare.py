"""`gradbounds compare`: its flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from gradbounds.commands.sweep import Fields
from gradbounds.flags import Flag, WithJson, optional
from gradbounds.grid import FIELDS
from gradbounds.recipe import Recipe
from theory.stack.placements import COMPOSITIONS

_GRID: dict[str, Any] = {
    "placement": tuple(name for name, composition in COMPOSITIONS.items() if composition.branch(1) > 0),
    "width": ("512",),
    "depth": ("2:16:x2",),
}
"""What is compared where a flag is not given."""


@dataclass(frozen=True, kw_only=True)
class Compare(WithJson):
    """Predict, sample and draw several placements of LayerNorm side by side: exponents in the depth, and profiles.

    Without flags all placements that are not the identity, at d = 512 and L = 2, 4, 8, 16, with the paper's other
    fields. Every field but placement and depth has one value.
    """

    out: Annotated[
        Path | None, optional("folder of the run and the figure; the same command continues it", "PATH", "none is kept")
    ] = None
    grid: Annotated[Fields, Flag(name="", help="")] = field(default_factory=Fields)  # type: ignore[valid-type]
    draws: Annotated[int, Flag(help="least number of networks per cell")] = 128
    seed: Annotated[int, Flag(help="root seed")] = 0
    workers: Annotated[int, Flag(help="processes, each with one thread")] = 1

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.compare import compare

        grid = _GRID | {name: value for name in FIELDS if (value := getattr(self.grid, name)) is not None}
        return compare(self.out, Recipe().changed(grid, draws=self.draws, seed=self.seed), workers=self.workers)
