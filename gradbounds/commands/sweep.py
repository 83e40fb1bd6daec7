"""The command-line flags of `gradbounds sweep`."""

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

_OF_RUNS = (
    "file", "zip", "engine", "device", "dtype", "text", "dask", "task_seconds", "memory", "land_every",
)  # fmt: skip
# For a flag, the flags that it cannot be combined with, and the reason.
_EXCLUDES: dict[str, tuple[tuple[str, ...], str]] = {
    "workers": (("dask",), ", whose cluster has its own workers."),
    "file": (("preset",), ": give one of them."),
    "--config and --like": (("file", *(f"--preset {name}" for name in PRESETS)), ", which define their own networks."),
    **{
        f"--preset {name}": (
            _OF_RUNS,
            "; it accepts fields, a model, draws, seed, workers and out.",
        )
        for name in WITH_TABLE
    },
}


def _flag(of: Field) -> Any:
    name = of.name
    words = f"; {' or '.join(map(repr, TIED[name]))} makes it follow the width" if name in TIED else ""
    choices, number = of.metadata.get("choices"), not isinstance(of.default, str)
    metavar = f"{'|'.join(choices)} [...]" if choices else "VALUE|A:B:xF|A:B:+S [...]" if number else "TEXT [...]"
    metavar = f"{OWN_WORD}|{metavar}" if name in OWN else metavar
    about = Flag(help=of.metadata["help"] + words, metavar=metavar, help_behavior_hint="")
    return Annotated[tuple[str, ...] | None, about]


Fields = in_groups(_flag)
"""The values of every field of the Stack; the grid is their product."""


@dataclass(frozen=True, kw_only=True)
class Sweep(ModelFlags):
    """Sample networks over a grid of fields and save them in a run folder. Run the same command again to continue.

    The grid comes from flags, from a TOML file, from a preset, or from one model (--config or --like). Flags override
    the fields of a file, a preset or a model. A field that is not given has the paper's value; placement has both of
    the paper's values. Without flags, the preset "quick" is swept.

    Two presets end with a table. "compare" compares placements of LayerNorm and draws a figure, by default at d = 512
    and L = 2, 4, 8, 16. It accepts one value for every other field. "relax" drops the paper's assumptions one by one
    and together, over the given widths and depths.
    """

    out: Annotated[Path | None, optional("folder of the run; required except with compare and relax", "PATH")] = None
    file: Annotated[Path | None, optional("TOML file of the sweep, or the manifest.toml of a run", "PATH")] = None
    preset: Annotated[Preset | None, optional("name of a built-in sweep", "|".join(_PRESETS))] = None
    grid: Annotated[Fields, Flag(name="", help="")] = field(default_factory=Fields)  # type: ignore[valid-type]
    zip: Annotated[tuple[str, ...], optional("fields that vary together, such as width,vocab", "NAME,NAME [...]")] = ()
    draws: Annotated[
        int | None, optional("number of random networks per cell, rounded up to full blocks", "INT", "64")
    ] = None
    seed: Annotated[int | None, optional("root seed", "INT", "0")] = None
    engine: Annotated[
        Literal["auto", "conditioned", "dense", "gram"] | None,
        optional(
            "sampling method: whole matrices (dense), needed products (conditioned) or hidden units only (gram)",
            "auto|conditioned|dense|gram",
            "auto",
        ),
    ] = None
    device: Annotated[str | None, optional("cpu, cuda or cuda:N", "NAME", "cpu")] = None
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        optional("precision of weights and activations", "float32|float64", "float32"),
    ] = None
    text: Annotated[
        Path | None, optional("text file for inputs and labels, or lighthouse, a built-in text", "PATH")
    ] = None
    workers: Annotated[
        int | None, optional("number of processes, each with one thread; on cuda spread over all GPUs", "INT", "1")
    ] = None
    dask: Annotated[
        str | None, optional("address of a Dask scheduler, whose workers sample instead", "tcp://HOST:PORT")
    ] = None
    task_seconds: Annotated[
        float | None, optional("seconds of work in one task of a worker", "FLOAT", "0, in a cluster 0.2")
    ] = None
    memory: Annotated[
        str | None,
        optional(
            "RAM for batches: of all workers together, or of each worker in a cluster",
            "500MB|4GB",
            "half of the free RAM, at most 6 GiB each",
        ),
    ] = None
    land_every: Annotated[float, Flag(help="seconds between saved files; work after the last file can be lost")] = 5.0

    def run(self) -> "Result":
        """Run the sweep that the flags describe.

        Raises:
            ValueError: no output folder, flags that cannot be combined, or an invalid recipe.
        """
        also = {f"--preset {self.preset}": self.preset is not None, "--config and --like": self.description.is_model}
        check_together(self, excludes=_EXCLUDES, also=also)
        if self.preset in WITH_TABLE:
            return self._with_table()
        recipe = self.recipe()
        for grid in recipe.grid:  # what is wrong with a value is said before torch is loaded
            deque(islice(stacks(grid), _CHECKED), maxlen=0)
        if self.out is None:
            raise ValueError("out must be given: --out FOLDER saves the draws.")
        from gradbounds.actions.sweep import sweep_into

        with self._execution(recipe.device) as execution:
            return sweep_into(self.out, recipe, execution)

    def _with_table(self) -> "Result":
        """Run a preset that ends with a table.

        Raises:
            ValueError: as in `gradbounds.actions.sweep_tables`.
        """
        grid = self.description.grid(given(self.grid))
        if "placement" not in given(self.grid):  # a model's own is one of those that are compared
            grid.pop("placement", None)
        options: dict[str, Any] = {"draws": self.draws, "seed": self.seed, "workers": self.workers, "out": self.out}
        options = {name: value for name, value in options.items() if value is not None}
        from gradbounds.actions.sweep_tables import compare, relax

        if self.preset == "compare":
            return compare(grid, **options)
        return relax(grid, **options)

    def _execution(self, device: str) -> "AbstractContextManager[Execution]":
        # Return where blocks are sampled: by own processes, or by a cluster.
        from gradbounds.clusters import executing
        from gradbounds.units import byte_count
        from simulate.runs.execution import Execution

        ours = Execution(
            workers=1 if self.workers is None else self.workers,
            land_every=self.land_every,
            memory=None if self.memory is None else byte_count(self.memory),
        )
        return executing(ours, device=device, dask=self.dask, task_seconds=self.task_seconds)

    def recipe(self) -> Recipe:
        """Return the sweep that a file, a preset and the flags describe together.

        Raises:
            ValueError: they contradict each other, or a value is invalid.
        """
        grid = given(self.grid)
        groups = [[field_name(name) for name in group.split(",")] for group in self.zip]
        grid = self.description.grid(grid, zipped=any({"width", "depth"} <= {*group} for group in groups))
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
