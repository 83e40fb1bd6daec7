"""`gradbounds probe`: its flags."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import LOGGED_AS, Flag, Positional, WithJson
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
    learning_rate: Annotated[float | None, Flag(help="rate of an --optimizer by name")] = None
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
        """The report.

        Raises:
            ValueError: a flag does not belong to the question that is asked.
        """
        from checks.models.questions import BELONGS, Question, check_question
        from gradbounds.actions.probe import probed
        from gradbounds.grid import field_values
        from simulate.modules.catalogue import makes_one

        if self.logged_as and self.logged is None:
            raise ValueError(f"logged_as must stand with logged, got {' '.join(self.logged_as)!r} without.")
        question: Question = "one" if makes_one(self.factory) else "grid" if self.steps is None else "steps"
        changed = [
            flag.name for flag in fields(self) if getattr(self, flag.name) != getattr(type(self), flag.name, None)
        ]
        check_question(question, changed)
        if question == "one" and "seeds" in changed and not self.against:
            raise ValueError("seeds must stand with against or a factory of a width and a depth, got one module.")
        kept = {"seeds", "seed", "device"} | {*changed} & {*BELONGS} - {"width", "depth", "logged"}
        given = {flag: getattr(self, flag) for flag in kept}
        if question != "one":
            depths = field_values("depth", self.depth)
            # The depth is none of the question, but for CompleteP.
            alone = question == "steps" and self.parametrization != "completep" and "depth" not in changed
            given |= {"widths": field_values("width", self.width), "depths": depths[:1] if alone else depths}
        return probed(self.factory, given, self.out, self.logged, self.logged_as)
