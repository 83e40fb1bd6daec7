"""The command-line flags of `gradbounds verify` and `gradbounds check`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gradbounds.flags import Flag, Positional, WithJson, check_together, optional
from simulate.runs.manifests import check_sampled

if TYPE_CHECKING:
    from gradbounds.result import Result


_BY_CLAIM = ", because every statement sets its own."
# The flags of `verify` that cannot be combined, with the reason.
_OF_STATEMENTS = {
    "source": (("draws", "seed", "text", "claims"), _BY_CLAIM),
    "claims": (("seed", "text"), _BY_CLAIM),
}


@dataclass(frozen=True, kw_only=True)
class Verify(WithJson):
    """Predict, sample and judge the default experiment; write a run folder with verdicts, figures and a report.

    With --source or --claims, the command judges the statements of another paper or of your own file.
    """

    out: Annotated[
        Path | None,
        optional(
            "folder of the run; an earlier one is replaced, or its draws reused with --source or --claims",
            "PATH",
            default="runs/verify, runs/claims-NAME or runs/claims",
        ),
    ] = None
    source: Annotated[
        str | None, optional("paper with the statements to judge, or all; `gradbounds claims` lists the names", "NAME")
    ] = None
    claims: Annotated[Path | None, optional("TOML file with the statements to judge", "FILE")] = None
    max_time: Annotated[str | None, optional("limit on the estimated time of sampling", "TIME", default="20m")] = None
    draws: Annotated[
        int | None, optional("random networks per cell, or per network of --claims", "N", "as committed, or in FILE")
    ] = None
    seed: Annotated[int | None, optional("root seed", "N", "as in the committed run")] = None
    text: Annotated[
        Path | None, optional("text file for the networks with real input", "FILE", "an included story")
    ] = None
    workers: Annotated[int | None, optional("number of processes", "N", "one per core; 1 for statements")] = None

    def run(self) -> "Result":
        """Sample the default experiment or a file's claims, and return the verdicts.

        Raises:
            ValueError: flags exclude each other, or a file is ill-formed.
        """
        check_together(self, excludes=_OF_STATEMENTS)
        if self.source is not None or self.claims is not None:
            from gradbounds.actions.statements import verify_claims, verify_source

            how: dict[str, Any] = {"workers": self.workers or 1, "max_time": self.max_time}
            if self.claims is not None:
                return verify_claims(self.claims, self.out or Path("runs/claims"), draws=self.draws, **how)
            return verify_source(str(self.source), self.out, **how)
        if self.max_time is not None:
            raise ValueError(f"max_time requires source or claims, got {self.max_time!r} without them.")
        from gradbounds.actions.verify import verify

        return verify(self.out or Path("runs/verify"), self.draws, self.seed, self.text, self.workers)


# The flags of `check` that cannot be combined, with the reason.
_EXCLUDES = {"against": (("layers",), ", which is about one run.")}


@dataclass(frozen=True, kw_only=True)
class Check(WithJson):
    """Compare a run with theory and print every verdict that it can give; or compare two runs with each other.

    Two runs are compared in every quantity and layer of the networks that both have, in standard errors. Networks are
    matched without the fields that have one value in the first run and another in the second.
    """

    folder: Annotated[Path, Positional, Flag(name="run", help="run folder")]
    against: Annotated[Path | None, optional("other run folder to compare with", "RUN")] = None
    layers: Annotated[
        bool, optional("print measured and predicted gradients of every network, layer by layer", None)
    ] = False
    strict: Annotated[
        bool,
        optional(
            "exit with code 1 if a verdict differs from the committed one, theory from samples, or the runs", None
        ),
    ] = False

    def run(self) -> "Result":
        """Judge the samples of a run and return its verdicts, or the differences between two runs.

        Raises:
            ValueError: there is no run, or flags exclude each other.
        """
        if self.against is not None:
            check_together(self, excludes=_EXCLUDES)
            from gradbounds.actions.runs import diff

            return diff(self.folder, self.against)
        check_sampled(self.folder)  # what is no run is said before libraries are loaded
        from gradbounds.actions.verify import check

        return check(self.folder, layers=self.layers)
