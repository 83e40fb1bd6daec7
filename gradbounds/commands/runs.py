"""`gradbounds runs`, `gradbounds merge` and `gradbounds export`: their flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gradbounds.flags import Flag, Folder, Positional, WithJson
from simulate.runs.manifests import read_manifest


@dataclass(frozen=True, kw_only=True)
class Runs(WithJson):
    """List the runs in a folder, or look into one: what was asked, where, and which cells have how many draws."""

    folder: Annotated[Path, Positional, Flag(name="folder", help="run folder, or a folder of them")] = Path("runs")

    def run(self) -> int:
        """Exit code."""
        from gradbounds.run_inspection import show

        return show(self.folder)


@dataclass(frozen=True, kw_only=True)
class Diff(WithJson):
    """Say where two runs differ: every quantity and layer of the networks that both have, in standard errors.

    Fields that have one value in each run, and not the same one, are left out of the match. Given two folders or files
    that `probe --out` wrote, say where the second module is not like the first.
    """

    first: Annotated[Path, Positional, Flag(name="first", help="run folder, or a probe that was kept")]
    second: Annotated[Path, Positional, Flag(name="second", help="the other one")]
    strict: Annotated[bool, Flag(help="exit with 1 when something differs")] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.runs import diff

        return diff(self.first, self.second, strict=self.strict)


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Put the draws of several runs into a new one; a block that several hold is taken once."""

    folders: Annotated[tuple[Path, ...], Positional, Flag(name="runs", help="run folders")]
    out: Annotated[Path, Flag(help="folder of the merged run")]

    def run(self) -> int:
        """Exit code."""
        for folder in self.folders:
            read_manifest(folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.runs import merge

        return merge(self.folders, self.out)


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the draws of a run as one CSV file: a row per draw and layer, a column per field and quantity."""

    folder: Folder
    csv: Annotated[Path, Flag(help="file to write")]

    def run(self) -> int:
        """Exit code."""
        read_manifest(self.folder)
        from gradbounds.actions.runs import export

        return export(self.folder, self.csv)
