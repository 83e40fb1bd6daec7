"""`gradbounds probe`: its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import LOGGED_AS, Flag, Positional, WithJson
from theory.stack.optimizers import ModuleOptimizer
from theory.stack.parametrizations import Parametrization

if TYPE_CHECKING:
    from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Probe(WithJson):
    """Measure any torch module, as it is or over sizes: is it initialized well, and which layer is broken?"""

    factory: Annotated[
        str,
        Positional,
        Flag(
            name="factory",
            help="MODULE:FACTORY, FILE.py:FACTORY, or a built-in name such as encoder-post; one that takes no width "
            "and depth gives one module and its batch; docs/probe.md",
        ),
    ]
    width: Annotated[tuple[str, ...], Flag(help="widths", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ("64:256:x2",)
    depth: Annotated[tuple[str, ...], Flag(help="depths", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ("4:16:x2",)
    seeds: Annotated[int, Flag(help="modules per width and depth")] = 8
    seed: Annotated[int, Flag(help="root seed")] = 0
    layers: Annotated[
        tuple[str, ...], Flag(help="globs of the layers; found by themselves if left out", metavar="GLOB [...]")
    ] = ()
    against: Annotated[
        str | None,
        Flag(
            help="a factory as above, of one module where the first is, or a probe.json that --out wrote: what it is "
            "to be like"
        ),
    ] = None
    first_step: Annotated[
        tuple[ModuleOptimizer, ...],
        Flag(help="optimizers whose first step is measured, and which learning rates it takes", metavar="NAME [...]"),
    ] = ()
    learning_rate: Annotated[
        float | None, Flag(help="rate to hold against those of --first-step, or of an --optimizer by name")
    ] = None
    steps: Annotated[
        int | None,
        Flag(help="steps to take: how coordinates and updates go with the width is held against --parametrization"),
    ] = None
    optimizer: Annotated[
        str | None,
        Flag(
            metavar="NAME|FILE.py:FUNCTION",
            help="of --steps (adamw if left out), or of one module, whose first step is judged: sgd, adam, adamw, "
            "muon, or a function of the module (and its `width` and `depth`)",
        ),
    ] = None
    dry_run: Annotated[bool, Flag(help="with --steps: say what they take, and stop")] = False
    max_time: Annotated[
        str | None,
        Flag(help="with --steps: what they may take, by an estimate; else an error", metavar="90s|10m|2h"),
    ] = None
    parametrization: Annotated[Parametrization, Flag(help="of --steps: what coordinates and updates are to be")] = "mup"
    trained: Annotated[
        bool, Flag(help="of one module: its weights are trained, and thresholds of initialization do not apply")
    ] = False
    logged: Annotated[
        Path | None,
        Flag(help="of one module: a log whose norms of single gradients stand beside its own", metavar="FILE"),
    ] = None
    logged_as: Annotated[tuple[str, ...], LOGGED_AS] = ()
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    out: Annotated[Path | None, Flag(help="folder for the table and the figure")] = None
    strict: Annotated[bool, Flag(help="exit with 1 when there is an alarm")] = False

    def run(self) -> "Result":
        """What was found.

        Raises:
            ValueError: a flag of one module stands with a factory of a width and a depth, or the other way round.
        """
        from checks.models.coordinate_report import coordinate_check
        from checks.models.module_report import probe
        from gradbounds.actions.probe import (
            OnlyPricedError,
            Priced,
            counted,
            logged_norms,
            one_result,
            report,
            steps_result,
        )
        from gradbounds.grid import field_values
        from gradbounds.units import seconds_of
        from simulate.modules.catalogue import makes_one

        if self.steps is None and (self.dry_run or self.max_time):
            raise ValueError("--dry-run and --max-time must stand with --steps.")
        if self.logged_as and self.logged is None:
            raise ValueError(f"logged_as must stand with logged, got {' '.join(self.logged_as)!r} without.")
        if makes_one(self.factory):
            self._check_for_one()
            # A log that cannot be read is said before the module is measured.
            norms = None if self.logged is None else logged_norms(self.logged, self.logged_as)
            with counted("measuring") as on_module:
                single = probe(
                    self.factory,
                    trained=self.trained,
                    seed=self.seed,
                    layers=self.layers,
                    device=self.device,
                    against=self.against,
                    seeds=self.seeds,
                    optimizer=self.optimizer,
                    learning_rate=self.learning_rate,
                    on_module=on_module,
                )
            return one_result(single, self.out, norms)
        if self.trained or self.logged:
            raise ValueError(
                "--trained and --logged must stand with a factory of one module, which takes no width and depth."
            )
        widths, depths = field_values("width", self.width), field_values("depth", self.depth)
        if self.steps is not None:
            # The depth is none of the question, but for CompleteP.
            if self.layers or self.against or self.first_step:
                raise ValueError("--steps must stand without --layers, --against and --first-step.")
            limit = seconds_of(self.max_time) if self.max_time else None
            alone = self.parametrization != "completep" and self.depth == type(self).depth
            try:
                with counted("stepping") as on_module:
                    check = coordinate_check(
                        self.factory,
                        self.optimizer or "adamw",
                        widths=widths,
                        depths=depths[:1] if alone else depths,
                        seeds=self.seeds,
                        seed=self.seed,
                        steps=self.steps,
                        parametrization=self.parametrization,
                        learning_rate=self.learning_rate,
                        device=self.device,
                        on_module=on_module,
                        on_price=Priced(limit, plan=self.dry_run),
                    )
            except OnlyPricedError as plan:
                return plan.result
            return steps_result(check, self.out)
        if self.optimizer is not None or self.parametrization != type(self).parametrization:
            raise ValueError("--optimizer must stand with --steps or one module, and --parametrization with --steps.")

        with counted("probing") as on_module:
            outcome = probe(
                self.factory,
                widths=widths,
                depths=depths,
                seeds=self.seeds,
                seed=self.seed,
                layers=self.layers,
                against=self.against,
                first_step=self.first_step,
                learning_rate=self.learning_rate,
                device=self.device,
                on_module=on_module,
            )
        return report(outcome, self.out)

    def _check_for_one(self) -> None:
        """One module has no grid.

        Raises:
            ValueError: a flag of one is given.
        """
        names = ["width", "depth", "first_step", "steps", "parametrization"]
        names += [] if self.against else ["seeds"]
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) != getattr(type(self), name)]
        if given:
            raise ValueError(
                f"{', '.join(given)} must stand with a factory of a width and a depth, and {self.factory!r} takes none."
            )
