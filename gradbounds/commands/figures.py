"""`gradbounds figures`: its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gradbounds.flags import Flag, Folder
from simulate.runs.manifests import check_sampled


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Draw the figures of a run as SVG and PNG."""

    folder: Folder
    out: Annotated[Path, Flag(help="folder for the figures")]

    def run(self) -> int:
        """Draw the figures and return the exit code."""
        check_sampled(self.folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.figures import draw

        return draw(self.folder, self.out)
