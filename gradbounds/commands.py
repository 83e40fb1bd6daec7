"""Every command as the dataclass of its flags; `sweep` and those that read runs have modules of their own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from gradbounds.curvature_commands import Hessian, HessianModule, HessianStack
from gradbounds.flags import Flag, Positional
from gradbounds.recipe import Recipe
from gradbounds.run_commands import Check, Export, Figures, Merge, Probe, Runs, Watch
from gradbounds.sweep_command import Sweep
from gradbounds.translation_commands import Reproduce
from theory import Stack
from theory.placements import COMPOSITIONS


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
        from gradbounds.judging import verify

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
        return 0


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Predict, sample and draw several placements of LayerNorm side by side: exponents in the depth, and profiles."""

    out: Annotated[Path, Flag(help="folder of the run; the same command continues it")]
    placement: Annotated[
        tuple[str, ...], Flag(help="placements to compare", metavar=f"{'|'.join(COMPOSITIONS)} [...]")
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
        from gradbounds.comparing import compare

        grid = {"placement": self.placement, "depth": self.depth}
        grid |= {name: (str(getattr(self, name)),) for name in ("width", "tokens", "vocab")}
        return compare(self.out, Recipe().changed(grid, draws=self.draws, seed=self.seed), workers=self.workers)


@dataclass(frozen=True, kw_only=True)
class Relax:
    """Switch the paper's assumptions off in turn and together: what changes, and whether theory still predicts it."""

    out: Annotated[Path, Flag(help="folder of the run; the same command continues it")]
    base: Annotated[Stack, Flag(name="")] = field(default_factory=lambda: Stack(depth=4, vocab=64))
    widths: Annotated[tuple[str, ...], Flag(help="for the exponent in d", metavar="VALUE|A:B:xF|A:B:+S [...]")] = (
        "128:1024:x2",
    )
    depths: Annotated[tuple[str, ...], Flag(help="for the exponent in L", metavar="VALUE|A:B:xF|A:B:+S [...]")] = (
        "2:16:x2",
    )
    along: Annotated[
        str, Flag(help="one field of numbers to go along instead, as query_key_scale", metavar="FIELD")
    ] = ""
    values: Annotated[tuple[str, ...], Flag(help="its values", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ()
    draws: Annotated[int, Flag(help="least number of networks per cell")] = 64
    seed: Annotated[int, Flag(help="root seed")] = 0
    workers: Annotated[int, Flag(help="processes, each with one thread")] = 1

    def run(self) -> int:
        """Exit code."""
        from gradbounds.relaxing import relax

        steps: dict[str, Any] = {"along": self.along, "values": self.values}
        sampling: dict[str, Any] = {"draws": self.draws, "seed": self.seed, "workers": self.workers}
        return relax(self.out, self.base, self.widths, self.depths, **steps, **sampling)


@dataclass(frozen=True, kw_only=True)
class Claims:
    """List the paper's statements, with the verdicts that were committed."""

    def run(self) -> int:
        """Exit code."""
        from gradbounds.claims import list_claims

        return list_claims()


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Explain one statement: what it assumes, its derivation, where it is tight, and what was measured."""

    claim: Annotated[str, Positional, Flag(name="claim", help="its id, such as T1; `gradbounds claims` lists them")]

    def run(self) -> int:
        """Exit code."""
        from gradbounds.claims import explain

        return explain(self.claim)


Command = (
    Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Bound, tyro.conf.subcommand("bound")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Relax, tyro.conf.subcommand("relax")]
    | Annotated[Claims, tyro.conf.subcommand("claims")]
    | Annotated[Explain, tyro.conf.subcommand("explain")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Figures, tyro.conf.subcommand("figures")]
    | Annotated[Probe, tyro.conf.subcommand("probe")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Hessian, tyro.conf.subcommand("hessian")]
    | Annotated[HessianStack, tyro.conf.subcommand("hessian-stack")]
    | Annotated[HessianModule, tyro.conf.subcommand("hessian-module")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
    | Annotated[Merge, tyro.conf.subcommand("merge")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)
