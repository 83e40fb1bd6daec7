"""The command-line flags of `gradbounds runs` and `gradbounds figures`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import Flag, Folder, Positional, WithJson, optional
from simulate.runs.manifests import check_sampled

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


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Draw the figures of a run as SVG, PNG and PDF."""

    folder: Folder
    out: Annotated[Path | None, optional("folder for the figures", "DIR", default="RUN/figures")] = None

    def run(self) -> int:
        """Draw the figures of a run, and return the exit code of the program."""
        check_sampled(self.folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.figures import draw

        return draw(self.folder, self.out or self.folder / "figures")
