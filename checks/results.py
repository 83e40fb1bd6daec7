"""The verdicts and samples of a command, stored as a JSON file in the repository, and comparisons of two such files."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.verdict import Sentence, Setting, Subject, Verdict
from theory.stack.documents import read_document

if TYPE_CHECKING:
    from simulate import Samples

DATA = Path(__file__).parent / "data"
FIELD = DATA / "field"
"""The folder of results on statements of other papers, with one file per source."""
COMMITTED = DATA / "paper_checks.json"
"""The file with the results of the default experiment; its folder may contain other files of the same form."""

# What the committed results keep of every cell, at the last layer, so that a test can sample it again and compare.
KEPT = ("ffn_hidden_energy", "attention_energy", "hidden_energy", "grad_sq_W2")


@dataclass(frozen=True, slots=True)
class Results:
    """The stored verdicts of one command, with the configurations that it sampled.

    Attributes:
        command: the command that reproduces the results.
        date: date of the run, "" if it is not saved.
        commit: git commit of the run's sources, "" if it is not saved.
        verdicts: the command's verdicts.
        cells: for each configuration its name, the fields of its Stack that are not default, text, seed, number of
            draws, and the last layer's mean and standard error of every quantity of `KEPT`.
    """

    command: str
    verdicts: list[Verdict]
    cells: list[dict[str, Any]]
    date: str = ""
    commit: str = ""

    @property
    def made_by(self) -> str:
        """The command that computed the stored results, followed by its date and commit as a shell comment."""
        return self.command + (f"  # {self.date}, commit {self.commit}" if self.date else "")


def results(verdicts: Iterable[Verdict], cells: "Sequence[Samples]", command: str, **origin: str) -> str:
    """Return the results of a command as JSON text: all verdicts, and the last layer's numbers of every configuration.

    Numbers have 6 significant digits.

    Args:
        verdicts: all verdicts of the command.
        cells: the sampled configurations.
        command: the command that reproduces the results.
        origin: `Results.date` and `Results.commit`, if they are to be saved.
    """
    content = {
        "command": command,
        **origin,
        "verdicts": [rounded(asdict(v)) for v in verdicts],
        "cells": [rounded(_cell(s)) for s in cells],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _cell(samples: "Samples") -> dict[str, Any]:
    from checks.statistics import estimate  # late: scipy is not needed to read results

    kept = {name: estimate(samples[name][:, -1]) for name in KEPT if name in samples}
    numbers = {name: {"mean": float(e.mean), "sem": float(e.sem)} for name, e in kept.items()}
    text = "" if samples.cell.text is None else samples.cell.text.source
    named = {"name": samples.cell.name, "stack": samples.stack.non_default(), "text": text}
    return named | {"seed": int(samples.seeds[0]), "draws": samples.draws} | numbers


def rounded(value: Any, digits: int = 6) -> Any:
    """Round floats to significant digits, in nested lists and dictionaries too; None if a float is not finite."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    return [rounded(v, digits) for v in value] if isinstance(value, list | tuple) else value


def load_results(path: Path) -> Results:
    """Load the stored results of one command from a JSON file.

    Raises:
        ValueError: the file is missing or is not a results file.
    """
    try:
        content = read_document(path, "results", "JSON", finite=False)
        verdicts = [_verdict(row) for row in content["verdicts"]]
        origin = {name: content.get(name, "") for name in ("date", "commit")}
        return Results(content["command"], verdicts, content["cells"], **origin)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"results must be a file of verdicts that gradbounds wrote, got {str(path)!r}: {error}"
        ) from error


def _verdict(row: dict[str, Any]) -> Verdict:
    row = _tuples(row)
    none = {name: math.nan for name in ("predicted", "measured") if row[name] is None}
    row |= none | {"interval": tuple(math.nan if end is None else end for end in row["interval"])}
    kinds = {"subject": Subject, "claimed": Sentence, "note": Sentence, "setting": Setting}
    return Verdict(**(row | {name: kind(**row[name]) for name, kind in kinds.items()}))


def _tuples(value: Any) -> Any:
    """Convert lists to tuples in a nested value, because JSON has no tuples."""
    if isinstance(value, dict):
        return {name: _tuples(entry) for name, entry in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def committed_results(folder: Path = DATA) -> list[Results]:
    """Load the results of all commands from the JSON files in the repository; the default experiment comes first.

    Raises:
        ValueError: a file is not a results file.
    """
    others = sorted(path for path in folder.glob("*.json") if path.name != COMMITTED.name)
    return [load_results(path) for path in (folder / COMMITTED.name, *others)]


def field_results(folder: Path = FIELD) -> dict[str, Results]:
    """Load the stored results on statements of other papers, by the name of the file with the paper's statements.

    Raises:
        ValueError: a file is not a results file.
    """
    return {path.stem: load_results(path) for path in sorted(folder.glob("*.json"))}


def common(now: Iterable[Verdict], before: Iterable[Verdict]) -> list[tuple[Verdict, Verdict]]:
    """Return pairs of a new and an earlier verdict on the same part of the same claim.

    If `before` has several verdicts on a part, the first one is used, which is the default experiment's.

    Args:
        now: the new verdicts.
        before: the earlier verdicts.
    """
    known = {(v.claim, v.part): v for v in reversed([*before])}
    return [(v, known[v.claim, v.part]) for v in now if (v.claim, v.part) in known]


def changed_verdicts(now: Iterable[Verdict], before: Iterable[Verdict]) -> list[tuple[Verdict, Verdict]]:
    """Return pairs of a new and an earlier verdict on the same part of a claim that are different.

    A pair with "undecided" on either side does not count as a change, because fewer draws may not be able to decide.
    """
    return [(v, old) for v, old in common(now, before) if len({v.verdict, old.verdict} - {"undecided"}) == 2]


def difference_lines(now: Sequence[Verdict], before: Iterable[Verdict]) -> list[str]:
    """Return a line for every verdict whose samples differ from theory, and for every changed verdict."""
    return [
        f"DIFFERS {v.claim}, {v.part}: samples {v.measured:.4g}, theory {v.predicted:.4g}"
        for v in now
        if v.agreement == "differs"
    ] + [
        f"CHANGED {v.claim}, {v.part}: was {old.verdict!r}, is {v.verdict!r}"
        for v, old in changed_verdicts(now, before)
    ]


def missing(now: Iterable[Verdict], before: Iterable[Verdict]) -> list[Verdict]:
    """Return the earlier verdicts on parts of claims that have no new verdict."""
    present = {(v.claim, v.part) for v in now}
    return [v for v in before if (v.claim, v.part) not in present]
