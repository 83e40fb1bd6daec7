"""The command-line flags of `gradbounds runs`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import Flag, Positional, WithJson

if TYPE_CHECKING:
    from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Runs(WithJson):
    """List the runs in a folder, or show one run: its command, its machine, and the random networks of every cell."""

    folder: Annotated[Path, Positional, Flag(name="folder", help="run folder, or folder of runs")] = Path("runs")

    def run(self) -> "Result":
        """List the runs of a folder, or list the configurations of one run."""
        from gradbounds.run_inspection import show

        return show(self.folder)
