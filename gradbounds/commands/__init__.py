"""The definitions of the commands: one dataclass for each command, with its flags as fields."""

from typing import Annotated

import tyro

from gradbounds.commands.claims import Claims
from gradbounds.commands.explore import Explore
from gradbounds.commands.figures import Figures
from gradbounds.commands.predict import Predict
from gradbounds.commands.probe import Probe
from gradbounds.commands.runs import Runs
from gradbounds.commands.sweep import Sweep
from gradbounds.commands.verify import Check, Verify

Command = (
    Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Explore, tyro.conf.subcommand("explore")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Figures, tyro.conf.subcommand("figures")]
    | Annotated[Probe, tyro.conf.subcommand("probe")]
    | Annotated[Claims, tyro.conf.subcommand("claims")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
)


MOVED = {
    "bound": "predict --bound", "first-step": "predict --first-step", "compare": "sweep --preset compare",
    "relax": "sweep --preset relax", "explain": "claims CLAIM", "diff": "check RUN --against RUN",
    "runs show": "runs RUN",
}  # fmt: skip
"""The commands of earlier versions, and the command to type now."""

_STUDY = "use `python -m studies {}` in a checkout of gradbounds instead"
_MODULE = "use examples/curvature_of_my_own_module.py, which needs curvlinops, instead"
REMOVED = {
    "runs watch": "use `gradbounds runs RUN` for the saved draws, and `RUN/sweep.log` for their times",
    "runs merge": "`pandas.concat` joins the frames of `gb.Run.open(RUN).frames()` of several runs",
    "runs export": "`pandas.read_parquet('RUN/blocks')` and polars read the draws, one row each",
    "train": _STUDY.format("training"),
    "hessian module": _MODULE,
    "hessian-module": _MODULE,
    "hessian-stack": _STUDY.format("hessian stack"),
    "hessian": _STUDY.format("hessian"),
    "reproduce": _STUDY.format("fig3, warmup or bert"),
}
"""The removed commands of earlier versions, and their replacements."""

_TARGET = "continue the run with more --draws until `gradbounds check RUN` prints a small enough error"
_SHORTEST = "use `--seeds 2 --steps 1` for the shortest run; a bar shows its progress"
REMOVED_FLAGS = {
    "probe --first-step": "`gradbounds predict --first-step` predicts a Stack's rates, and `gradbounds probe "
    "MODULE:FACTORY --optimizer adamw` judges the first step of one module, whose FACTORY takes no arguments",
    "probe --dry-run": _SHORTEST,
    "probe --max-time": _SHORTEST,
    "sweep --cluster": "--dask slurm --workers 20 starts jobs of a queue",
    "sweep --target-sem": _TARGET,
    "sweep --target-exponent": _TARGET,
}
"""The removed flags of earlier versions, with their command, and their replacements."""
