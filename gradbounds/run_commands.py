"""The commands that read run folders, as dataclasses of their flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gradbounds.flags import Flag, Folder, Positional


@dataclass(frozen=True, kw_only=True)
class Check:
    """Compare a run with theory and print every verdict that it can give."""

    folder: Folder
    csv: Annotated[Path | None, Flag(help="file for the whole comparison: every quantity, layer and network")] = None
    strict: Annotated[
        bool, Flag(help="exit with 1 when a verdict is another than the committed one, or theory and samples differ")
    ] = False
    accept: Annotated[
        bool, Flag(help="commit the verdicts: write checks/data/RUN.json, by the run's name, and paper_checks.md here")
    ] = False

    def run(self) -> int:
        """Exit code.

        Raises:
            ValueError: there is no run, or `accept` outside a checkout.
        """
        from gradbounds.judging import check

        return check(self.folder, self.csv, strict=self.strict, accept=self.accept)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Draw the figures of a run as SVG and PNG."""

    folder: Folder
    out: Annotated[Path, Flag(help="folder for the figures")]

    def run(self) -> int:
        """Exit code."""
        from gradbounds.drawing import draw

        return draw(self.folder, self.out)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measure any torch module at initialization, and say which placement it behaves like and which layer is broken."""

    factory: Annotated[
        str,
        Positional,
        Flag(name="factory", help="MODULE:FACTORY, or a built-in name such as encoder-post; docs/probe.md"),
    ]
    width: Annotated[tuple[str, ...], Flag(help="widths", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ("64:256:x2",)
    depth: Annotated[tuple[str, ...], Flag(help="depths", metavar="VALUE|A:B:xF|A:B:+S [...]")] = ("4:16:x2",)
    seeds: Annotated[int, Flag(help="modules per width and depth")] = 8
    seed: Annotated[int, Flag(help="root seed")] = 0
    layers: Annotated[
        tuple[str, ...], Flag(help="globs of the layers; found by themselves if left out", metavar="GLOB [...]")
    ] = ()
    device: Annotated[str, Flag(help="cpu, cuda or cuda:N")] = "cpu"
    out: Annotated[Path | None, Flag(help="folder for the table and the figure")] = None
    strict: Annotated[bool, Flag(help="exit with 1 when there is an alarm")] = False

    def run(self) -> int:
        """Exit code."""
        from gradbounds.grid import field_values
        from gradbounds.probing import probe, report

        found = probe(
            self.factory,
            widths=field_values("width", self.width),
            depths=field_values("depth", self.depth),
            seeds=self.seeds,
            seed=self.seed,
            layers=self.layers,
            device=self.device,
        )
        return report(found, self.out, strict=self.strict)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """List the runs in a folder, or look into one: what was asked, where, and which cells have how many draws."""

    folder: Annotated[Path, Positional, Flag(name="folder", help="run folder, or a folder of them")] = Path("runs")

    def run(self) -> int:
        """Exit code."""
        from gradbounds.runs import show

        return show(self.folder)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Show how far a sweep is, from its folder: cells, draws, errors, time left; on a terminal until it is finished."""

    folder: Folder
    every: Annotated[float, Flag(help="seconds between looks, on a terminal")] = 5.0

    def run(self) -> int:
        """Exit code."""
        from gradbounds.watching import watch

        return watch(self.folder, every=self.every)


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Put the draws of several runs into a new one; a block that several hold is taken once."""

    folders: Annotated[tuple[Path, ...], Positional, Flag(name="runs", help="run folders")]
    out: Annotated[Path, Flag(help="folder of the merged run")]

    def run(self) -> int:
        """Exit code."""
        from gradbounds.runs import merge

        return merge(self.folders, self.out)


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the draws of a run as one CSV file: a row per draw and layer, a column per field and quantity."""

    folder: Folder
    csv: Annotated[Path, Flag(help="file to write")]

    def run(self) -> int:
        """Exit code."""
        from gradbounds.runs import export

        return export(self.folder, self.csv)
