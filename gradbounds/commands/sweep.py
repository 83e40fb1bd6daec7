"""The command `sweep` as the dataclass of its flags."""

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import Field, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gradbounds.flags import Flag, ModelFlags, check_together, given, in_groups, optional
from gradbounds.grid import OWN_WORD, TIED, field_name, stacks
from gradbounds.recipe import PRESETS, Recipe, preset, read_recipe
from theory.stack.stack import OWN

if TYPE_CHECKING:
    from gradbounds.result import Result
    from simulate.runs.execution import Execution

# Networks of a grid that are looked at before anything is loaded: some hundredths of a second.
_CHECKED = 1000

WITH_TABLE = ("compare", "relax")
_PRESETS = (*PRESETS, *WITH_TABLE)
Preset = Literal[_PRESETS]  # type: ignore[valid-type]

_NEEDS = {"along": "preset relax", "values": "preset relax"}
_OF_RUNS = (
    "file", "zip", "engine", "device", "dtype", "text", "dask", "task_seconds", "blocks_at_once", "memory",
    "land_every", "resume",
)  # fmt: skip
_EXCLUDES: dict[str, tuple[tuple[str, ...], str]] = {
    "dry_run": (("dask",), ", whose machines are others."),
    "workers": (("the address of a scheduler",), ", whose workers sample."),
    "file": (("preset",), ", which is another recipe."),
    "config and like": (("file", *(f"preset {name}" for name in PRESETS)), ", which have networks of their own."),
    **{
        f"preset {name}": (
            _OF_RUNS,
            "; it takes fields, a model, draws, seed, workers, out, along, values and dry_run.",
        )
        for name in WITH_TABLE
    },
}
"""Which flag goes with which other alone, and which ones do not go together."""


def _flag(of: Field) -> Any:
    name = of.name
    words = f"; {' or '.join(map(repr, TIED[name]))} follows the width" if name in TIED else ""
    choices, number = of.metadata.get("choices"), not isinstance(of.default, str)
    metavar = f"{'|'.join(choices)} [...]" if choices else "VALUE|A:B:xF|A:B:+S [...]" if number else "TEXT [...]"
    metavar = f"{OWN_WORD}|{metavar}" if name in OWN else metavar
    about = Flag(help=of.metadata["help"] + words, metavar=metavar, help_behavior_hint="")
    return Annotated[tuple[str, ...] | None, about]


Fields = in_groups(_flag)
"""The values of every field of the Stack; they make a product."""


@dataclass(frozen=True, kw_only=True)
class Sweep(ModelFlags):
    """Sample grids of networks into a run folder. The same command continues it where it stopped.

    A grid comes from flags, from a TOML file, from a preset, or from a model's config.json or a published model, which
    are one network; flags change all but the first. A field that is not given has the paper's value, and placement has
    both. Without any, the preset "quick" is swept.

    Two presets end with a table and a figure. "compare" sets placements of LayerNorm side by side, by default all at
    d = 512 and L = 2, 4, 8, 16, with one value for every other field. "relax" switches the paper's assumptions off in
    turn and together, or goes along one field's values, over the widths and depths that are given.
    """

    out: Annotated[Path | None, optional("folder of the run; needed unless --dry-run", "PATH")] = None
    file: Annotated[Path | None, optional("TOML file with the sweep, or a run's manifest.toml", "PATH")] = None
    preset: Annotated[Preset | None, optional("a sweep that comes with gradbounds", "|".join(_PRESETS))] = None
    along: Annotated[
        str, optional("with the preset relax: one field of numbers to go along, as query-key-scale", "FIELD")
    ] = ""
    values: Annotated[tuple[str, ...], optional("values of that field", "VALUE|A:B:xF|A:B:+S [...]")] = ()
    grid: Annotated[Fields, Flag(name="", help="")] = field(default_factory=Fields)  # type: ignore[valid-type]
    zip: Annotated[tuple[str, ...], optional("fields that move together, as in width,vocab", "NAME,NAME [...]")] = ()
    draws: Annotated[int | None, optional("least number of networks per cell", "INT", "64")] = None
    seed: Annotated[int | None, optional("root seed", "INT", "0")] = None
    engine: Annotated[
        Literal["auto", "conditioned", "dense"] | None,
        optional("how weights are sampled", "auto|conditioned|dense", "auto"),
    ] = None
    device: Annotated[str | None, optional("cpu, cuda or cuda:N", "NAME", "cpu")] = None
    dtype: Annotated[
        Literal["float32", "float64"] | None, optional("precision of weights and tokens", "float32|float64", "float32")
    ] = None
    text: Annotated[Path | None, optional("text file, or lighthouse, for inputs and labels", "PATH")] = None
    workers: Annotated[
        int | None, optional("processes, each with one thread; on cuda they take the GPUs in turn", "INT", "1")
    ] = None
    dask: Annotated[
        str | None,
        optional(
            "scheduler whose workers sample instead, or a queue whose --workers jobs do",
            "tcp://HOST:PORT|slurm|pbs|...",
        ),
    ] = None
    task_seconds: Annotated[
        float | None, optional("seconds of work sent to a worker at once, in blocks", "FLOAT", "0, in a cluster 0.2")
    ] = None
    blocks_at_once: Annotated[
        int, optional("blocks in one batch of tensors", "INT", "as many as make a draw cheaper and fit into memory")
    ] = 0
    memory: Annotated[
        str | None,
        optional(
            "memory for batches, of all workers or of each worker of a cluster",
            "500MB|4GB",
            "half of what is free, at most 6 GiB each",
        ),
    ] = None
    land_every: Annotated[float, Flag(help="seconds between files: what a kill can lose")] = 5.0
    resume: Annotated[bool, optional("refuse a folder that holds a run, instead of continuing it", None)] = True
    dry_run: Annotated[bool, optional("print cells, draws, time, memory and disk, and write nothing", None)] = False

    def run(self) -> "Result":
        """What was done.

        Raises:
            ValueError: no folder to write to, flags that exclude each other, or a recipe that makes no sense.
        """
        also = {f"preset {self.preset}": self.preset is not None, "config and like": self.description.is_model}
        also |= {"the address of a scheduler": ":" in (self.dask or "")}
        check_together(self, needs=_NEEDS, excludes=_EXCLUDES, also=also)
        if self.preset in WITH_TABLE:
            return self._with_table()
        recipe = self.recipe()
        for grid in recipe.grid:  # what is wrong with a value is said before torch is loaded
            deque(islice(stacks(grid), _CHECKED), maxlen=0)
        from gradbounds.actions.sweep import dry_run, sweep_into

        if self.dry_run:
            with self._execution(recipe.device) as execution:
                return dry_run(self.out, recipe, execution)
        if self.out is None:
            raise ValueError("out must be given: --out FOLDER says where the draws go (or --dry-run what they take).")
        with self._execution(recipe.device) as execution:
            return sweep_into(self.out, recipe, execution, resume=self.resume)

    def _with_table(self) -> "Result":
        """A preset that ends with a table.

        Raises:
            ValueError: as the action.
        """
        grid = self.description.grid(given(self.grid))
        if "placement" not in given(self.grid):  # a model's own is one of those that are compared
            grid.pop("placement", None)
        options: dict[str, Any] = {"draws": self.draws, "seed": self.seed, "workers": self.workers, "out": self.out}
        options = {name: value for name, value in options.items() if value is not None} | {"plan": self.dry_run}
        from gradbounds.actions.sweep_tables import compare, relax

        if self.preset == "compare":
            return compare(grid, **options)
        return relax(grid, along=field_name(self.along), values=self.values, **options)

    def _execution(self, device: str) -> "AbstractContextManager[Execution]":
        """By whom blocks are sampled: by processes of a sweep's own, or by a cluster."""
        from gradbounds.clusters.place import executing
        from gradbounds.units import byte_count
        from simulate.runs.execution import Execution

        ours = Execution(
            workers=1 if self.workers is None else self.workers,
            land_every=self.land_every,
            at_once=self.blocks_at_once,
            memory=None if self.memory is None else byte_count(self.memory),
        )
        return executing(ours, device=device, dask=self.dask, task_seconds=self.task_seconds)

    def recipe(self) -> Recipe:
        """The sweep that file, preset and flags describe together.

        Raises:
            ValueError: they contradict each other, or a value makes no sense.
        """
        grid = given(self.grid)
        groups = [[field_name(name) for name in group.split(",")] for group in self.zip]
        zipped = any({"width", "depth"} <= {*group} for group in groups)
        grid = self.description.grid(grid, zipped=zipped)
        if groups:
            # What follows a model's width does so beside what moves with it.
            of_width: list[str] = next(iter(grid.get("zip", [])), [])
            grid["zip"] = [
                group + [name for name in of_width if name not in group] * ("width" in group) for group in groups
            ]
            if of_width and not any("width" in group for group in groups):
                grid["zip"].append(of_width)
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
