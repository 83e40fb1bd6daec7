"""Verdicts of a fresh run beside the committed ones."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from checks.results import DATA, load_results
from checks.verdict import Verdict
from gradbounds.flags import Flag
from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A study's command, with the flag that compares its verdicts with the committed ones."""

    check: Annotated[
        bool, Flag(help="compare the verdicts with the committed ones; exit with 1 where one contradicts the other")
    ] = False

    def run(self) -> Any:
        """What was found, or an exit code."""
        result = self.found()
        return beside_committed(result) if self.check and isinstance(result, Result) else result

    def found(self) -> Any:
        """What was found, or an exit code.

        Raises:
            NotImplementedError: a command has none.
        """
        raise NotImplementedError


def beside_committed(result: Result) -> Result:
    """A result with a line for every committed verdict that one of its own repeats.

    Sizes may differ: verdicts are matched by claim and subject without sizes. "undecided" contradicts nothing.
    """
    lines, differences = list[str](), list(result.differences)
    for path in sorted(DATA.glob("*.json")):
        before = load_results(path)
        for now in result.verdicts:
            for then in (v for v in before.verdicts if _subject(v) == _subject(now)):
                contradicts = {now.verdict, then.verdict} == {"holds", "fails"}
                where = f"{path.name}{f', {before.date} at {before.commit}' if before.date else ''}"
                line = f"{now.claim}, {now.part}: {now.verdict} here, {then.verdict} at {then.setting} ({where})"
                (differences if contradicts else lines).append(f"CONTRADICTS {line}" if contradicts else line)
    if not lines and len(differences) == len(result.differences):
        lines = ["No committed verdict is of the same claim and subject."]
    return replace(result, below=[*result.below, "", "Committed verdicts", *lines], differences=differences)


def _subject(verdict: Verdict) -> tuple[object, ...]:
    return verdict.claim, replace(verdict.subject, held=()), verdict.relaxed
