"""The command-line flags of `gradbounds figures`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gradbounds.flags import Folder, optional
from simulate.runs.manifests import check_sampled


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
