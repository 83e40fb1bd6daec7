"""The flags of `gradbounds verify` and `gradbounds check`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gradbounds.flags import Flag, Positional, WithJson, check_together, optional
from simulate.runs.files import write_whole
from simulate.runs.manifests import check_sampled

if TYPE_CHECKING:
    from gradbounds.result import Result


_BY_CLAIM = ", which every statement has of its own."
_OF_STATEMENTS = {
    "source": (("draws", "seed", "text", "claims"), _BY_CLAIM),
    "claims": (("draws", "seed", "text"), _BY_CLAIM),
}
"""Which flags of `verify` do not go together."""


@dataclass(frozen=True, kw_only=True)
class Verify(WithJson):
    """Predict, sample and judge the default experiment; write a run folder with verdicts, figures and a report.

    With --source or --claims it judges the statements of another paper, or those of a file of your own.
    """

    out: Annotated[
        Path | None, optional("folder of the run; an earlier run there is replaced", "PATH", default="runs/verify")
    ] = None
    source: Annotated[
        str | None, optional("judge the statements of this paper; gradbounds claims lists them, and all is all", "NAME")
    ] = None
    claims: Annotated[Path | None, optional("judge the statements of this file", "FILE")] = None
    max_time: Annotated[
        str | None, optional("longest that sampling statements may take by its estimate", "TIME", default="20m")
    ] = None
    draws: Annotated[int | None, Flag(help="networks per cell; the default is the committed run's")] = None
    seed: Annotated[int | None, Flag(help="root seed; the default is the committed run's")] = None
    text: Annotated[
        Path | None, Flag(help="text file for the networks with real input; default: an included story")
    ] = None
    workers: Annotated[int | None, Flag(help="processes; the default is one per core")] = None

    def run(self) -> "Result":
        """What was found.

        Raises:
            ValueError: flags exclude each other, or a file is ill-formed.
        """
        check_together(self, excludes=_OF_STATEMENTS)
        if self.source is not None or self.claims is not None:
            from gradbounds.actions.statements import verify_claims, verify_source

            how: dict[str, Any] = {"workers": self.workers or 1, "max_time": self.max_time}
            if self.claims is not None:
                return verify_claims(self.claims, self.out or Path("runs/claims"), **how)
            return verify_source(str(self.source), self.out, **how)
        if self.max_time is not None:
            raise ValueError(f"max_time requires source or claims, got {self.max_time!r} without them.")
        from gradbounds.actions.verify import verify

        return verify(self.out or Path("runs/verify"), self.draws, self.seed, self.text, self.workers)


_EXCLUDES = {"against": (("csv", "layers"), ", which are about one run.")}
"""Which flags of `check` do not go together."""


@dataclass(frozen=True, kw_only=True)
class Check(WithJson):
    """Compare a run with theory and print every verdict that it can give; or compare two runs with each other.

    Two runs are compared in every quantity and layer of the networks that both have, in standard errors. Fields that
    have one value in each run, and not the same one, are left out of the match. Of two folders or files that
    `probe --out` wrote it is said where the second module is not like the first.
    """

    folder: Annotated[Path, Positional, Flag(name="run", help="run folder, or with --against a saved probe")]
    against: Annotated[Path | None, optional("other run folder, or saved probe, to compare with", "RUN")] = None
    csv: Annotated[Path | None, Flag(help="file for the whole comparison: every quantity, layer and network")] = None
    layers: Annotated[bool, Flag(help="print every network's gradients layer by layer, samples and theory")] = False
    strict: Annotated[
        bool,
        Flag(
            help="exit with 1 if a verdict differs from the committed one, theory from samples, or a run from another"
        ),
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
