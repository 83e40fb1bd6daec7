"""The command line of the studies: `python -m studies NAME ...`."""

import sys
from typing import Annotated

import tyro

from gradbounds.cli import main
from studies.bert.command import Bert
from studies.fig3.command import Figure3
from studies.hessian.command import Hessian
from studies.mean_hessian.command import MeanHessian
from studies.stable_rate.command import StableRates
from studies.training.command import Train
from studies.warmup.command import Warmup

Study = (
    Annotated[Figure3, tyro.conf.subcommand("fig3")]
    | Annotated[Warmup, tyro.conf.subcommand("warmup")]
    | Annotated[Bert, tyro.conf.subcommand("bert")]
    | Annotated[Hessian, tyro.conf.subcommand("hessian")]
    | Annotated[Train, tyro.conf.subcommand("training")]
    | Annotated[MeanHessian, tyro.conf.subcommand("mean_hessian")]
    | Annotated[StableRates, tyro.conf.subcommand("stable_rate")]
)


def run(arguments: list[str] | None = None) -> int:
    """Run one study; the exit codes are those of `gradbounds`."""
    return main(arguments, commands=Study, program="python -m studies")


if __name__ == "__main__":
    sys.exit(run())
