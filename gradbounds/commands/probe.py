"""The command-line flags of `gradbounds probe`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import LOGGED_AS, Flag, Positional, WithJson, optional
from theory.stack.parametrizations import Parametrization

if TYPE_CHECKING:
    from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Probe(WithJson):
    """Check a torch module before training: is it initialized well, and which layer is broken?"""

    factory: Annotated[
        str,
        Positional,
        Flag(
            name="factory",
            help="function that returns the module, or (module, batch, loss), or a built-in name such as encoder-post",
            metavar="MODULE:FUNCTION|FILE.py:FUNCTION|NAME",
        ),
    ]
    width: Annotated[tuple[str, ...], Flag(help="widths of the modules", metavar="VALUE|A:B:xF|A:B:+S [...]")] = (
        "64:256:x2",
    )
    depth: Annotated[tuple[str, ...], Flag(help="depths of the modules", metavar="VALUE|A:B:xF|A:B:+S [...]")] = (
        "4:16:x2",
    )
    seeds: Annotated[int, Flag(help="random modules per width and depth")] = 8
    seed: Annotated[int, Flag(help="root seed")] = 0
    layers: Annotated[
        tuple[str, ...],
        optional("glob patterns of layer names", "GLOB [...]", "found automatically"),
    ] = ()
    against: Annotated[
        str | None,
        optional("reference: another function of the same kind, or a probe.json from --out", "FUNCTION|FILE"),
    ] = None
    learning_rate: Annotated[float | None, optional("learning rate; requires an --optimizer by name", "R")] = None
    steps: Annotated[
        int | None,
        optional("number of optimizer steps; their scaling with the width is compared with --parametrization", "N"),
    ] = None
    optimizer: Annotated[
        str | None,
        optional(
            "optimizer of --steps, or of one module's first step: sgd, adam, adamw, muon, or a function of the module",
            "NAME|FILE.py:FUNCTION",
            "adamw with --steps",
        ),
    ] = None
    parametrization: Annotated[Parametrization, Flag(help="expected scaling; requires --steps")] = "mup"
    trained: Annotated[bool, optional("skip the thresholds for initialized weights; requires one module", None)] = False
    logged: Annotated[
        Path | None,
        optional("log of gradient norms to compare with the module's norms; requires one module", "FILE"),
    ] = None
    logged_as: Annotated[tuple[str, ...], LOGGED_AS] = ()
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    out: Annotated[Path | None, optional("folder for the tables and figures", "FOLDER", "none")] = None
    strict: Annotated[bool, optional("exit with code 1 on an alarm", None)] = False

    def run(self) -> "Result":
        """Probe a module and return the report on its faults.

        Raises:
            ValueError: a flag does not apply to this use of `probe`.
        """
        from checks.models.questions import BELONGS, Question, check_question
        from gradbounds.actions.probe import probed
        from gradbounds.grid import field_values
        from simulate.modules.catalogue import makes_one

        if self.logged_as and self.logged is None:
            raise ValueError(f"logged_as requires logged, got {' '.join(self.logged_as)!r} without a log.")
        question: Question = "one" if makes_one(self.factory) else "grid" if self.steps is None else "steps"
        changed = [
            flag.name for flag in fields(self) if getattr(self, flag.name) != getattr(type(self), flag.name, None)
        ]
        check_question(question, changed)
        if question == "one" and "seeds" in changed and not self.against:
            raise ValueError(
                "seeds requires against, or a factory of a width and a depth; got one module. Add --against, or drop "
                "--seeds."
            )
        kept = {"seeds", "seed", "device"} | {*changed} & {*BELONGS} - {"width", "depth", "logged"}
        given = {flag: getattr(self, flag) for flag in kept}
        if question != "one":
            depths = field_values("depth", self.depth)
            # The depth is none of the question, but for CompleteP.
            alone = question == "steps" and self.parametrization != "completep" and "depth" not in changed
            given |= {"widths": field_values("width", self.width), "depths": depths[:1] if alone else depths}
        return probed(self.factory, given, self.out, self.logged, self.logged_as)
