"""Every command as the dataclass of its flags; those that read runs are in `gradbounds.run_commands`."""

from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gradbounds.flags import Flag, Positional, optional
from gradbounds.grid import FIELDS, TIED
from gradbounds.recipe import PRESETS, Recipe, preset, read_recipe
from gradbounds.run_commands import Check, Export, Figures, Merge, Runs
from theory import Stack
from theory.placements import COMPOSITIONS

Preset = Literal[PRESETS]  # type: ignore[valid-type]


def _flag(name: str) -> tuple[str, Any, Any]:
    words = f"; {' or '.join(map(repr, TIED[name]))} follows the width" if name in TIED else ""
    choices, number = FIELDS[name].metadata.get("choices"), not isinstance(FIELDS[name].default, str)
    metavar = f"{'|'.join(choices)} [...]" if choices else "VALUE|A:B:xF|A:B:+S [...]" if number else "TEXT [...]"
    about = Flag(help=FIELDS[name].metadata["help"] + words, metavar=metavar, help_behavior_hint="")
    return name, Annotated[tuple[str, ...] | None, about], None


Fields = make_dataclass("Fields", [_flag(f.name) for f in fields(Stack)], frozen=True, kw_only=True)
Fields.__doc__ = "The values of every field of the Stack; they make a product."


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


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Sample grids of networks into a run folder. The same command continues it where it stopped.

    A grid comes from flags, from a TOML file, or from a preset; flags change the latter two. A field that is not given
    has the paper's value, and placement has both. Without any, the preset "quick" is swept.
    """

    out: Annotated[Path | None, optional("folder of the run; needed unless --dry-run", "PATH")] = None
    file: Annotated[Path | None, optional("TOML file with the sweep, or a run's manifest.toml", "PATH")] = None
    preset: Annotated[Preset | None, optional("a sweep that comes with gradbounds", "|".join(PRESETS))] = None
    grid: Annotated[Fields, Flag(name="")] = field(default_factory=Fields)  # type: ignore[valid-type]
    zip: Annotated[tuple[str, ...], optional("fields that move together, as in width,vocab", "NAME,NAME [...]")] = ()
    draws: Annotated[int | None, optional("least number of networks per cell", "INT", "64")] = None
    seed: Annotated[int | None, optional("root seed", "INT", "0")] = None
    engine: Annotated[
        Literal["auto", "conditioned", "dense"] | None,
        optional("how weights are sampled", "auto|conditioned|dense", "auto"),
    ] = None
    device: Annotated[str | None, optional("cpu, cuda or cuda:N", "NAME", "cpu")] = None
    dtype: Annotated[
        Literal["float32", "float64"] | None, optional("of weights and tokens", "float32|float64", "float32")
    ] = None
    text: Annotated[Path | None, optional("text file for inputs and labels instead of Gaussian tokens", "PATH")] = None
    target_sem: Annotated[
        float | None, optional("add draws until the last gradient norm's relative error is this small", "FLOAT")
    ] = None
    target_exponent: Annotated[
        float | None, optional("add draws until its exponents in d and L have this standard error", "FLOAT")
    ] = None
    max_draws: Annotated[int, Flag(help="of a cell, where there is a target")] = 2**16
    max_time: Annotated[str, Flag(help="no block is begun later, where there is a target", metavar="90s|10m|2h")] = ""
    workers: Annotated[int, Flag(help="processes, each with one thread")] = 1
    land_every: Annotated[float, Flag(help="seconds between files: what a kill can lose")] = 5.0
    resume: Annotated[bool, optional("refuse a folder that holds a run, instead of continuing it", None)] = True
    dry_run: Annotated[bool, optional("print cells, draws, time, memory and disk, and write nothing", None)] = False

    def run(self) -> int:
        """Exit code.

        Raises:
            ValueError: no folder to write to, or a recipe that makes no sense.
        """
        recipe = self.recipe()
        from gradbounds.sampling import dry_run, sweep_into

        if self.dry_run:
            return dry_run(self.out, recipe, workers=self.workers)
        if self.out is None:
            raise ValueError("out must be given: --out FOLDER says where the draws go (or --dry-run what they take).")
        how: dict[str, Any] = {"workers": self.workers, "land_every": self.land_every, "resume": self.resume}
        if self.target_sem is None and self.target_exponent is None:
            if self.max_time:
                raise ValueError(f"max_time must stand with target_sem or target_exponent, got {self.max_time!r}.")
            return sweep_into(self.out, recipe, **how)
        from gradbounds.targets import sweep_to_target

        targets: dict[str, Any] = {"sem": self.target_sem, "exponent": self.target_exponent}
        limits: dict[str, Any] = {"max_draws": self.max_draws, "max_time": self.max_time}
        return sweep_to_target(self.out, recipe, **targets, **limits, **how)

    def recipe(self) -> Recipe:
        """The sweep that file, preset and flags describe together.

        Raises:
            ValueError: they contradict each other, or a value makes no sense.
        """
        grid = {name: value for name in FIELDS if (value := getattr(self.grid, name)) is not None}
        if self.zip:
            grid["zip"] = [group.split(",") for group in self.zip]
        if self.file is not None and self.preset is not None:
            raise ValueError(f"file and preset must not be given together, got {str(self.file)!r} and {self.preset!r}.")
        if self.file is not None:
            base = read_recipe(self.file)
        else:
            base = preset(self.preset or "quick") if self.preset or not grid else Recipe()
        return base.changed(
            grid,
            draws=self.draws,
            seed=self.seed,
            engine=self.engine,
            device=self.device,
            dtype=self.dtype,
            text=None if self.text is None else str(self.text),
        )


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
    | Annotated[Runs, tyro.conf.subcommand("runs")]
    | Annotated[Merge, tyro.conf.subcommand("merge")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)
