"""`gradbounds verify` and `gradbounds check`: their flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import Flag, Positional, WithJson, check_together, optional
from simulate.runs.files import write_whole
from simulate.runs.manifests import check_sampled

if TYPE_CHECKING:
    from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Verify(WithJson):
    """Predict, sample and judge the default experiment; write a run folder with verdicts, figures and a report."""

    out: Annotated[Path, Flag(help="folder of the run; an earlier run there is replaced")] = Path("runs/verify")
    draws: Annotated[int | None, Flag(help="networks per cell; the default is the committed run's")] = None
    seed: Annotated[int | None, Flag(help="root seed; the default is the committed run's")] = None
    text: Annotated[
        Path | None, Flag(help="text file for the cells of real input; the default is a story of our own")
    ] = None
    workers: Annotated[int | None, Flag(help="processes; the default is one per core")] = None

    def run(self) -> "Result":
        """What was found."""
        from gradbounds.actions.verify import verify

        return verify(self.out, self.draws, self.seed, self.text, self.workers)


_EXCLUDES = {"against": (("csv", "layers"), ", which are about one run.")}
"""Which flags of `check` do not go together."""


@dataclass(frozen=True, kw_only=True)
class Check(WithJson):
    """Compare a run with theory and print every verdict that it can give; or compare two runs with each other.

    Two runs are compared in every quantity and layer of the networks that both have, in standard errors. Fields that
    have one value in each run, and not the same one, are left out of the match. Of two folders or files that
    `probe --out` wrote it is said where the second module is not like the first.
    """

    folder: Annotated[Path, Positional, Flag(name="run", help="run folder, or with --against a probe that was kept")]
    against: Annotated[Path | None, optional("run folder, or kept probe, to compare it with instead", "RUN")] = None
    csv: Annotated[Path | None, Flag(help="file for the whole comparison: every quantity, layer and network")] = None
    layers: Annotated[bool, Flag(help="print every network's gradients layer by layer, samples beside theory")] = False
    strict: Annotated[
        bool,
        Flag(help="exit with 1 when a verdict is not the committed one, or theory and samples differ, or two runs"),
    ] = False

    def run(self) -> "Result":
        """What was found.

        Raises:
            ValueError: there is no run, or flags exclude each other.
        """
        if self.against is not None:
            check_together(self, excludes=_EXCLUDES)
            from gradbounds.actions.runs import diff

            return diff(self.folder, self.against)
        check_sampled(self.folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.verify import check

        result = check(self.folder, layers=self.layers)
        if self.csv is not None:
            write_whole(self.csv, result.to_frame().to_csv(index=False).encode())
        return result
