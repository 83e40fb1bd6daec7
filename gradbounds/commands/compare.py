"""`gradbounds compare`: its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gradbounds.commands.flags import Flag
from gradbounds.recipe import Recipe
from theory import Stack
from theory.stack.placements import COMPOSITIONS


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Predict, sample and draw several placements of LayerNorm side by side: exponents in the depth, and profiles."""

    out: Annotated[Path, Flag(help="folder of the run; the same command continues it")]
    placement: Annotated[
        tuple[str, ...], Flag(help="placements to compare", metavar=f"{'|'.join(COMPOSITIONS)}|NAME [...]")
    ] = tuple(name for name, composition in COMPOSITIONS.items() if composition.branch(1) > 0)
    width: Annotated[int, Flag(help="hidden width d")] = 512
    depth: Annotated[tuple[str, ...], Flag(help="depths L", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ("2:16:x2",)
    tokens: Annotated[int, Flag(help="sequence length n")] = Stack().tokens
    vocab: Annotated[int, Flag(help="number of output classes V")] = Stack().vocab
    draws: Annotated[int, Flag(help="least number of networks per cell")] = 128
    seed: Annotated[int, Flag(help="root seed")] = 0
    workers: Annotated[int, Flag(help="processes, each with one thread")] = 1

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.compare import compare

        grid = {"placement": self.placement, "depth": self.depth}
        grid |= {name: (str(getattr(self, name)),) for name in ("width", "tokens", "vocab")}
        return compare(self.out, Recipe().changed(grid, draws=self.draws, seed=self.seed), workers=self.workers)
