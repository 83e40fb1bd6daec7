"""`gradbounds figures`: its flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gradbounds.commands.flags import Flag, Folder


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Draw the figures of a run as SVG and PNG."""

    folder: Folder
    out: Annotated[Path, Flag(help="folder for the figures")]

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.figures import draw

        return draw(self.folder, self.out)
