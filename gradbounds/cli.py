"""Flags and exit codes: 0 fine, 1 a verdict changed or theory and samples differ, 2 bad input, 130 interrupted."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import gradbounds
from gradbounds.grid import Grid, stacks
from theory import Stack

FINE, BAD_INPUT, INTERRUPTED = 0, 2, 130

Flag = tyro.conf.arg


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Predict, sample and judge the default experiment; write a run folder with verdicts, figures and a report."""

    out: Annotated[Path, Flag(help="folder of the run; an earlier run there is replaced")] = Path("runs/verify")
    draws: Annotated[int | None, Flag(help="networks per cell; the default is the committed run's")] = None
    seed: Annotated[int | None, Flag(help="root seed; the default is the committed run's")] = None
    text: Annotated[
        Path | None, Flag(help="text file for the cells of real input; the default is a story of our own")
    ] = None
    workers: Annotated[int | None, Flag(help="processes; the default is one per core")] = None
    accept: Annotated[
        bool, Flag(help="commit the verdicts: write checks/data/paper_checks.json and paper_checks.md here")
    ] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.runs import verify

        return verify(self.out, self.draws, self.seed, self.text, self.workers, accept=self.accept)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Print Theorem 1's bound for one network, what large-width theory predicts, and their ratio."""

    stack: Annotated[Stack, Flag(name="")] = field(default_factory=Stack)
    latex: Annotated[bool, Flag(help="print the bound as LaTeX")] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.bound import bound_latex, bound_text

        print(bound_latex(self.stack) if self.latex else bound_text(self.stack))
        return FINE


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Sample every combination of the given fields into a run folder; the same command continues it."""

    grid: Annotated[Grid, Flag(name="")] = field(default_factory=Grid)  # type: ignore[valid-type]
    out: Annotated[Path, Flag(help="folder of the run, new or of the same command")]
    draws: Annotated[int, Flag(help="least number of networks per cell")] = 64
    seed: Annotated[int, Flag(help="root seed")] = 0
    engine: Annotated[Literal["dense"], Flag(help="how weights are sampled")] = "dense"
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    dtype: Annotated[Literal["float32", "float64"], Flag(help="of weights and tokens")] = "float32"
    text: Annotated[Path | None, Flag(help="text file for inputs and labels instead of Gaussian tokens")] = None
    workers: Annotated[int, Flag(help="processes")] = 1

    def run(self) -> int:
        """Exit code."""
        from gradbounds.runs import sweep_into

        return sweep_into(
            self.out,
            list(stacks(self.grid)),
            draws=self.draws,
            seed=self.seed,
            engine=self.engine,
            device=self.device,
            dtype=self.dtype,
            text=self.text,
            workers=self.workers,
        )


@dataclass(frozen=True, kw_only=True)
class Check:
    """Compare a run with theory and print every verdict that it can give."""

    folder: Annotated[Path, tyro.conf.Positional, Flag(name="run", help="run folder")]
    csv: Annotated[Path | None, Flag(help="file for the whole comparison: every quantity, layer and network")] = None

    def run(self) -> int:
        """Exit code."""
        from gradbounds.runs import check

        return check(self.folder, self.csv)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Draw the figures of a run as SVG and PNG."""

    folder: Annotated[Path, tyro.conf.Positional, Flag(name="run", help="run folder")]
    out: Annotated[Path, Flag(help="folder for the figures")]

    def run(self) -> int:
        """Exit code."""
        from gradbounds.runs import draw

        return draw(self.folder, self.out)


Command = (
    Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Bound, tyro.conf.subcommand("bound")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Figures, tyro.conf.subcommand("figures")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; bad input is one line on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["version"]):
        print(f"gradbounds {gradbounds.__version__}")
        return FINE
    try:
        command = _parsed(given)
        code = FINE if command is None else command.run()
        sys.stdout.flush()  # so that a closed pipe shows here and not at the interpreter's end
        return code
    except ValueError as error:
        print(f"gradbounds: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("gradbounds: interrupted; draws that had landed stay in the run folder.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe, `head` say, has seen enough; the interpreter's own flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def _parsed(arguments: list[str]) -> Any:
    """The command that the arguments name; None after help was printed.

    Raises:
        ValueError: they name none; tyro's box of several lines becomes one.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Command,
                prog="gradbounds",
                description="Is a mean-field statement about Transformers at initialization true, tight, and why?",
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            return None
        raise ValueError(_one_line(said.getvalue())) from None


def _one_line(box: str) -> str:
    """The message of a box drawn with lines, up to its first rule, as one sentence."""
    body: list[str] = []
    for line in box.splitlines():
        text = line.strip("│╭╮╰╯ \n")
        if not text or line.startswith(("╭", "╰")):
            continue
        if set(text) <= {"─"}:
            break
        body.append(text)
    return " ".join(body).rstrip(".") + ". See gradbounds --help."
