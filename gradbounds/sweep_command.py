"""The command `sweep` as the dataclass of its flags."""

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from gradbounds.flags import Flag, optional
from gradbounds.grid import FIELDS, TIED
from gradbounds.recipe import PRESETS, Recipe, preset, read_recipe
from theory import Stack

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
    dask: Annotated[str, Flag(help="address of a Dask scheduler whose workers sample", metavar="tcp://HOST:PORT")] = ""
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
        to_target = self.target_sem is not None or self.target_exponent is not None
        if self.max_time and not to_target:
            raise ValueError(f"max_time must stand with target_sem or target_exponent, got {self.max_time!r}.")
        with self.pool() as (pool, workers):
            how: dict[str, Any] = {"workers": workers, "land_every": self.land_every, "resume": self.resume}
            how["pool"] = pool
            if not to_target:
                return sweep_into(self.out, recipe, **how)
            from gradbounds.targets import sweep_to_target

            targets: dict[str, Any] = {"sem": self.target_sem, "exponent": self.target_exponent}
            limits: dict[str, Any] = {"max_draws": self.max_draws, "max_time": self.max_time}
            return sweep_to_target(self.out, recipe, **targets, **limits, **how)

    def pool(self) -> AbstractContextManager[tuple[Executor | None, int]]:
        """Where blocks are sampled, and by how many at a time: in processes of a sweep's own, or by a cluster."""
        if not self.dask:
            return nullcontext((None, self.workers))
        from gradbounds.cluster import dask_pool

        return dask_pool(self.dask)

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
