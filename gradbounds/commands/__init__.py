"""The definitions of the commands: one dataclass for each command, with its flags as fields."""

from typing import Annotated

import tyro

from gradbounds.commands.claims import Claims
from gradbounds.commands.explore import Explore
from gradbounds.commands.predict import Predict
from gradbounds.commands.probe import Probe
from gradbounds.commands.runs import Figures, Runs
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
