"""Every command as the dataclass of its flags, in a module named by the word that is typed; none loads torch."""

from typing import Annotated

import tyro

from gradbounds.commands.claims import Claims
from gradbounds.commands.explore import Explore
from gradbounds.commands.figures import Figures
from gradbounds.commands.hessian import Hessian
from gradbounds.commands.predict import Predict
from gradbounds.commands.probe import Probe
from gradbounds.commands.reproduce import Reproduce
from gradbounds.commands.runs import Runs
from gradbounds.commands.sweep import Sweep
from gradbounds.commands.train import Train
from gradbounds.commands.verify import Check, Verify

Command = (
    Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Explore, tyro.conf.subcommand("explore")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Figures, tyro.conf.subcommand("figures")]
    | Annotated[Probe, tyro.conf.subcommand("probe")]
    | Annotated[Hessian, tyro.conf.subcommand("hessian")]
    | Annotated[Claims, tyro.conf.subcommand("claims")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
)

HESSIANS = ("stack", "module", "texts")
"""Words behind the command hessian."""

MOVED = {
    "bound": "predict --bound", "first-step": "predict --first-step", "compare": "sweep --preset compare",
    "relax": "sweep --preset relax", "explain": "claims CLAIM", "diff": "check RUN --against RUN",
    "hessian-stack": "hessian stack", "hessian-module": "hessian module", "runs show": "runs RUN",
}  # fmt: skip
"""Commands of earlier versions, and what is typed now."""

REMOVED = {
    "runs watch": "`gradbounds runs RUN` shows the draws that have landed, `RUN/sweep.log` when",
    "runs merge": "`pandas.concat` joins the frames of `gb.Run.open(RUN).frames()` of several runs",
    "runs export": "`pandas.read_parquet('RUN/blocks')` and polars read the draws, one row each",
}
"""Commands of earlier versions, and what does their work now."""

REMOVED_FLAGS = {
    "probe --first-step": "`gradbounds predict --first-step` predicts a Stack's rates, and `gradbounds probe "
    "MODULE:FACTORY --optimizer adamw` judges the first step of one module",
    "probe --dry-run": "`--seeds 2 --steps 1` is the shortest run of steps, and a bar shows how far it is",
    "probe --max-time": "`--seeds 2 --steps 1` is the shortest run of steps, and a bar shows how far it is",
}
"""Flags of earlier versions, and what does their work now."""
