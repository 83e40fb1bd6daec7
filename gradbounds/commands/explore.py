"""The command-line flags of `gradbounds explore`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gradbounds.flags import Flag, Positional, optional


@dataclass(frozen=True, kw_only=True)
class Explore:
    """Serve an interactive page of the theory on this machine: change any field of a network and see its predictions.

    The command prints the address and opens no browser. With --out, the page becomes one file of 3 MB, which needs no
    server and no network. The file contains answers for published models and for networks near the paper's; for other
    networks it shows the command to type.
    """

    folder: Annotated[
        Path | None,
        Positional,
        Flag(
            name="run",
            help="run folder with samples to draw over the curves",
            metavar="[RUN]",
            help_behavior_hint="(default: none)",
        ),
    ] = None
    port: Annotated[int | None, optional("port on 127.0.0.1", "PORT", default="a free one")] = None
    page: Annotated[
        Path | None,
        Flag(name="out", help="write the page as one file", metavar="FILE", help_behavior_hint="(default: serve it)"),
    ] = None

    lectures: Annotated[
        Path | None,
        Flag(
            help="write two lectures with exercises and answers as notebooks",
            metavar="DIR",
            help_behavior_hint="(default: none)",
        ),
    ] = None

    def run(self) -> int:
        """Serve the interactive page until Ctrl-C is pressed, or write the page or the notebooks into files.

        Raises:
            ValueError: the port is not to be had, the folder holds no samples, or the file cannot be written.
        """
        from gradbounds.explore.server import serve, write

        if self.lectures is not None:
            from gradbounds.explore.lectures import write_lectures

            for name, value in (("run", self.folder), ("port", self.port), ("--out", self.page)):
                if value is not None:
                    raise ValueError(f"{name} cannot be combined with --lectures, got {str(value)!r}.")
            return write_lectures(self.lectures)
        if self.page is None:
            return serve(self.port, self.folder)
        for name, value in (("run", self.folder), ("port", self.port)):
            if value is not None:
                raise ValueError(f"{name} cannot be combined with --out, got {str(value)!r}.")
        return write(self.page)
