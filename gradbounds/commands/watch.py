"""`gradbounds watch`: its flags."""

from dataclasses import dataclass
from typing import Annotated

from gradbounds.flags import Flag, Folder
from simulate.runs.manifests import read_manifest


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Show how far a sweep is, from its folder: cells, draws, errors, time left; on a terminal until it is finished."""

    folder: Folder
    every: Annotated[float, Flag(help="seconds between looks, on a terminal")] = 5.0

    def run(self) -> int:
        """Exit code."""
        read_manifest(self.folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.watch import watch

        return watch(self.folder, every=self.every)
