"""Every command as the dataclass of its flags, in a module named by the word that is typed; none loads torch."""

from typing import Annotated

import tyro

from gradbounds.commands.bound import Bound
from gradbounds.commands.claims import Claims, Explain
from gradbounds.commands.compare import Compare
from gradbounds.commands.figures import Figures
from gradbounds.commands.first_step import FirstStep
from gradbounds.commands.hessian import Hessian, HessianModule, HessianStack
from gradbounds.commands.predict import Predict
from gradbounds.commands.probe import Probe
from gradbounds.commands.relax import Relax
from gradbounds.commands.reproduce import Reproduce
from gradbounds.commands.runs import Diff, Export, Merge, Runs
from gradbounds.commands.sweep import Sweep
from gradbounds.commands.train import Train
from gradbounds.commands.verify import Check, Verify
from gradbounds.commands.watch import Watch

Command = (
    Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Bound, tyro.conf.subcommand("bound")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[FirstStep, tyro.conf.subcommand("first-step")]
    | Annotated[Train, tyro.conf.subcommand("train")]
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
    | Annotated[Diff, tyro.conf.subcommand("diff")]
    | Annotated[Merge, tyro.conf.subcommand("merge")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)
