"""`gradbounds runs`: what can be done with run folders, and their flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gradbounds.flags import Flag, Folder, Group, Positional, WithJson
from simulate.runs.manifests import check_sampled

if TYPE_CHECKING:
    from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Show(WithJson):
    """List the runs in a folder, or look into one: what was asked, where, and which cells have how many draws."""

    folder: Annotated[Path, Positional, Flag(name="folder", help="run folder, or a folder of them")] = Path("runs")

    def run(self) -> "Result":
        """What is there."""
        from gradbounds.run_inspection import show

        return show(self.folder)


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Put the draws of several runs into a new one; a block that several hold is taken once."""

    folders: Annotated[tuple[Path, ...], Positional, Flag(name="runs", help="run folders")]
    out: Annotated[Path, Flag(help="folder of the merged run")]

    def run(self) -> int:
        """Exit code."""
        for folder in self.folders:
            check_sampled(folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.runs import merge

        return merge(self.folders, self.out)


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the draws of a run as one CSV file: a row per draw and layer, a column per field and quantity."""

    folder: Folder
    csv: Annotated[Path, Flag(help="file to write")]

    def run(self) -> int:
        """Exit code."""
        check_sampled(self.folder)
        from gradbounds.actions.runs import export

        return export(self.folder, self.csv)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Show how far a sweep is, from its folder: cells, draws, errors, time left; on a terminal until it is finished."""

    folder: Folder
    every: Annotated[float, Flag(help="seconds between looks, on a terminal")] = 5.0

    def run(self) -> int:
        """Exit code."""
        check_sampled(self.folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.watch import watch

        return watch(self.folder, every=self.every)


@dataclass(frozen=True, kw_only=True)
class Runs(Group):
    """Look at run folders: list them or look into one, watch one grow, merge several, export the draws of one."""

    what: (
        Annotated[Show, tyro.conf.subcommand("show")]
        | Annotated[Watch, tyro.conf.subcommand("watch")]
        | Annotated[Merge, tyro.conf.subcommand("merge")]
        | Annotated[Export, tyro.conf.subcommand("export")]
    ) = field(default_factory=Show)
