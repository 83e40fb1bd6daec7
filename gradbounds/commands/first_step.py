"""`gradbounds first-step`: its flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from gradbounds.commands.sweep import Fields
from gradbounds.flags import Flag, optional
from gradbounds.grid import FIELDS
from gradbounds.recipe import Recipe
from theory.stack.optimizers import OPTIMIZERS, Optimizer


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """Print the critical rate of the first step of training: where the loss, to second order, is back at its start.

    Every field takes several values, which make a product; one that is not given has the paper's value, and placement
    has both. Adam is its first step as eps goes to 0; muon is torch.optim.Muon, Newton-Schulz steps included, and polar
    the exact polar factor in their place.
    """

    grid: Annotated[Fields, Flag(name="", help="")] = field(default_factory=Fields)  # type: ignore[valid-type]
    optimizer: Annotated[
        tuple[Optimizer, ...],
        Flag(help="optimizers whose first step is predicted", metavar=f"{'|'.join(OPTIMIZERS)} [...]"),
    ] = ("sgd", "adam")
    draws: Annotated[int | None, optional("networks to step beside theory", "N", default="none")] = None
    seed: Annotated[int, Flag(help="seed of the first network; the others follow")] = 0
    out: Annotated[
        Path | None, optional("folder for the table and the figure", "FOLDER", default="none are written")
    ] = None
    json: Annotated[bool, Flag(help="print one JSON object instead")] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.first_step import first_steps

        grid = {name: value for name in FIELDS if (value := getattr(self.grid, name)) is not None}
        stacks = Recipe().changed(grid).stacks()
        return first_steps(stacks, self.optimizer, draws=self.draws, seed=self.seed, out=self.out, as_json=self.json)
