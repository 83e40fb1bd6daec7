"""`python -m studies training`: its flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from gradbounds.commands.sweep import Fields
from gradbounds.flags import Flag, ModelFlags, given, optional
from gradbounds.recipe import Recipe
from studies.training.optimizers import TRAINING_OPTIMIZERS


@dataclass(frozen=True, kw_only=True)
class Train(ModelFlags):
    """Train random networks for some steps, of any width: what every quantity is at each step, and how it grows with d.

    With --out the same command continues where it stopped, killed or not, or adds draws.

    Every field takes several values, which make a product; one that is not given has that of --config or --like, else
    the paper's, and placement has both. Wide networks never have their matrices drawn.
    """

    grid: Annotated[Fields, Flag(name="", help="")] = field(default_factory=Fields)
    steps: Annotated[int, Flag(help="steps of training")] = 10
    learning_rate: Annotated[float, Flag(help="rate of every matrix, in the unit of --rate-unit")] = 0.1
    rate_unit: Annotated[
        Literal["one", "critical"],
        Flag(help="1, or the rate at which theory has the loss of the first step back at its start"),
    ] = "one"
    parametrization: Annotated[
        Literal["standard", "mup"],
        Flag(help="mup: output_scale d^(-1/2), and a rate d times smaller for W_emb, with adam for all matrices"),
    ] = "standard"
    optimizer: Annotated[
        str, Flag(help="sgd, adam, or polar: Muon with the exact polar factor", metavar="|".join(TRAINING_OPTIMIZERS))
    ] = "sgd"
    momentum: Annotated[float, Flag(help="momentum, in [0, 1); beta_1 of adam")] = 0.0
    weight_decay: Annotated[float, Flag(help="weight decay")] = 0.0
    batch: Annotated[Literal["same", "fresh"], Flag(help="the same batch at every step, or another")] = "same"
    draws: Annotated[int, Flag(help="networks of every kind, at least 2; rounded up to whole blocks")] = 16
    seed: Annotated[int, Flag(help="root seed")] = 0
    engine: Annotated[
        Literal["auto", "dense", "conditioned"], Flag(help="matrices that are drawn, or only what they do")
    ] = "auto"
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    dtype: Annotated[Literal["float32", "float64"], Flag(help="precision of weights and tokens")] = "float32"
    text: Annotated[
        Path | None,
        optional("text file, or lighthouse: windows of it, one or with --batch fresh another before each step", "PATH"),
    ] = None
    workers: Annotated[int | None, optional("processes, each with one thread; they change no number", "INT", "1")] = (
        None
    )
    dask: Annotated[
        str | None, optional("address of a Dask scheduler whose workers train instead", "tcp://HOST:PORT")
    ] = None
    land_every: Annotated[float, Flag(help="seconds between files: what a kill can lose")] = 5.0
    out: Annotated[
        Path | None, optional("folder of the run, with tables, verdicts and figure", "FOLDER", default="none is kept")
    ] = None

    def run(self) -> Any:
        """What was found.

        Raises:
            ValueError: flags exclude each other.
        """
        from gradbounds.clusters import executing
        from simulate.runs.execution import Execution
        from studies.training.plan import Plan
        from studies.training.reproduce import train_into

        grid = self.description.grid(given(self.grid))
        plan = Plan(
            steps=self.steps,
            learning_rate=self.learning_rate,
            in_critical_rates=self.rate_unit == "critical",
            mup=self.parametrization == "mup",
            optimizer=self.optimizer,  # type: ignore[arg-type]  # which Optimizer refuses with a reason
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            batch=self.batch,
            engine=self.engine,
        )
        recipe = Recipe().changed(
            grid, draws=self.draws, seed=self.seed, device=self.device, dtype=self.dtype,
            text=None if self.text is None else str(self.text),
        )  # fmt: skip
        if self.workers is not None and self.dask is not None:
            raise ValueError(f"workers and dask must not be given together, got {self.workers} and {self.dask!r}.")
        ours = Execution(workers=1 if self.workers is None else self.workers, land_every=self.land_every)
        with executing(ours, device=self.device, dask=self.dask) as execution:
            return train_into(self.out, recipe, plan, execution)
