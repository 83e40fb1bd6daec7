"""The command `gradbounds claims`: statements of papers, with their derivations and measurements."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from checks.results import committed_results, field_results
from checks.verdict import Verdict, at_size
from gradbounds.help_text import prose_width
from gradbounds.progress import estimated, working
from gradbounds.result import Result
from gradbounds.units import duration
from theory import CLAIMS, Claim
from theory.paper.claims import sources
from theory.stack.placements import COMPOSITIONS
from theory.stack.registry import load_entry_points

# What fits on a screen.
_STEPS, _ROWS = 4, 4

_LEGEND = (
    "Each claim has a name, its place in the source, its kind, its statement and the result of our tests. A test "
    "compares one part of the claim with random networks of one kind, so tests of one claim can have different "
    "results. A bound holds loosely if it is more than twice the measured value. A premise fails if an assumption of "
    "the claim is false in these networks, so that its conclusion is not tested."
)
_NUMBERS = "Numbers in brackets are 95% intervals. d: width; L: layers; n: tokens; V: vocabulary size."


def list_claims() -> Result:
    """List all claims, with the verdicts that are stored in the repository."""
    verdicts = _committed()
    load_entry_points()
    width = prose_width()
    lines = [*textwrap.wrap(_LEGEND, width), ""]
    for claim in CLAIMS.values():
        words = _apart([v for v in verdicts if v.claim == claim.id])
        lines += _entry(width, f"{claim.id:4} {claim.source} ({claim.kind})", claim.statement, f"Result: {words}.")
    rows = [_row(claim, [v for v in verdicts if v.claim == claim.id]) for claim in CLAIMS.values()]
    for name, claims in sources().items():
        on_source = _of_source(name)
        lines += ["", *textwrap.wrap(f"{next(iter(claims.values())).paper}: gradbounds verify --source {name}", width)]
        for claim in claims.values():
            about = [v for v in on_source if v.claim == claim.id]
            words = f"not judged, because {claim.unjudged}" if claim.unjudged else _by_setting(about)
            lines += _entry(width, f"{claim.id:4} {claim.statement}", f"Result: {words}.")
            rows.append(_row(claim, about))
    lines += ["", "Explain one claim: gradbounds claims T1", "Judge your own claims: gradbounds verify --claims FILE"]
    return Result(about=f"{len(rows)} claims", values={"claims": rows}, lines=lines)


def _entry(width: int, *texts: str) -> list[str]:
    return [
        part
        for k, text in enumerate(texts)
        for part in textwrap.wrap(text, width, initial_indent=" " * 5 * (k > 0), subsequent_indent=" " * 5)
    ]


def draw_published(name: str, path: Path) -> Result:
    """Draw the points that a claim's source published over the prediction, and return the name of the picture's file.

    Raises:
        ValueError: the claim is unknown, none of its source's figures was read, or the file cannot be written.
    """
    from figures.published import published, published_panels, published_seconds  # late: a list needs no pictures
    from gradbounds.figure_files import save

    named = [source for source, claims in sources().items() if name.lower() in map(str.lower, claims)]
    shown = published_panels(named[0]) if named else []
    if not shown or path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"figure requires FILE.png, .svg or .pdf and a claim such as CP1, OT1 or TS1, got {name!r}.")
    with estimated(f"predicting published points: about {duration(published_seconds(named[0]))}"):
        save(published(named[0]), path.parent, path.stem, suffixes=[path.suffix[1:]])
    return Result(about=f"figure of {name}", lines=[str(path), *dict.fromkeys(panel["locator"] for panel in shown)])


def _row(claim: Claim, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    # Return a claim's text and the number of its committed rows with each verdict.
    return {name: getattr(claim, name) for name in ("id", "source", "kind", "statement")} | {
        "verdicts": dict(Counter(v.verdict for v in verdicts))
    }


def _of_source(name: str) -> list[Verdict]:
    return results.verdicts if (results := field_results().get(name)) else []


def _by_setting(verdicts: Sequence[Verdict]) -> str:
    # State the verdict in the source's own setting, and the other settings in which the verdict differs.
    if not verdicts:
        return "not tested here"
    first, *others = verdicts
    return "; ".join([first.words, *([f"{v.words} with {v.relaxed}" for v in others if v.verdict != first.verdict])])


def _explained(name: str, claim: Claim) -> Result:
    # Explain a claim of another paper: its setting, its decision rule, and its measurements.
    from checks.stacks.statements import claimed_words, subject_words  # late: a list of the claims needs none of it

    rows = [v for v in _of_source(name) if v.claim == claim.id]
    fields = ", ".join(f"{key} = {value}" for key, value in claim.network.items())
    varied = [f"{claim.against} = {', '.join(map(str, claim.at)) or claim.layers or 'all'}"] if claim.against else []
    others = [
        f"{key}: {', '.join(f'{name} = {value}' for name, value in of.items())}"
        for key, of in {**claim.networks, **claim.variants}.items()
    ]
    failed = any(v.verdict == "fails" for v in rows)
    sections = {
        "Statement": [claim.statement],
        "Networks": [fields, *varied, *others] if claim.quantity else [],
        "Claimed": [
            f"{subject_words(claim)}: {claimed_words(claim)}",
            f"{claim.draws} networks of each kind, seed {claim.seed}",
        ]
        if claim.quantity
        else [],
        "Measured": [
            *("\n    ".join([f"{v.relaxed or 'as above'}: {v.words}", *v.lines()[1:]]) for v in rows),
            _NUMBERS,
        ]
        if rows
        else [],
        "Not judged": [claim.unjudged] if claim.unjudged else [],
        "Left out": [claim.left_out] if failed and claim.left_out else [],
        "Corrected": [claim.corrected] if failed and claim.corrected else [],
        "Remark": [claim.remark] if claim.remark else [],
        "Command": [f"gradbounds verify --source {name}"] if claim.quantity else [],
    }
    lines = [f"{claim.id}  {claim.paper}: {claim.source}", ""]
    for head, paragraphs in sections.items():
        lines += [head, *_folded(paragraphs), ""] if paragraphs else []
    return Result(about=f"claim {claim.id}", values={"claim": claim, "verdicts": rows}, lines=lines)


def _counted(verdicts: Sequence[Verdict]) -> str:
    # Count the tests with each verdict, as in "holds in 3 tests; undecided in 1 test".
    counts = Counter((v.verdict, at_size(v)) for v in verdicts)
    words = (
        f"{word.replace(', loose', ' loosely')} in {count} test{'s' * (count > 1)}{at}"
        for (word, at), count in counts.most_common()
    )
    return "; ".join(words) or "not tested here"


def _apart(verdicts: Sequence[Verdict]) -> str:
    # Count the rows with each verdict, in the paper's setting first and then with dropped assumptions.
    of_paper, relaxed = [v for v in verdicts if not v.relaxed], [v for v in verdicts if v.relaxed]
    parts = [_counted(of_paper)] * bool(of_paper or not relaxed)
    beside = [f"{'W' if parts else 'w'}ithout one of the paper's assumptions: {_counted(relaxed)}"] * bool(relaxed)
    return ". ".join([*parts, *beside])


def explain(name: str, *, everything: bool = False) -> Result:
    """Explain one claim: its statement, assumptions, derivation, cases of equality, and measurements.

    Args:
        name: id of the claim, or its place in the paper, such as "Theorem 1".
        everything: whether to show every step of the derivation and every measured row, instead of the first ones.

    Raises:
        ValueError: there is no such claim.
    """
    for source, claims in sources().items():
        for key, claim in claims.items():
            if key.lower() == name.lower():
                return _explained(source, claim)
    load_entry_points()
    # By its id, or by its place in the paper where that has one claim: "theorem 1" of "Theorem 1, App. E".
    places = {key: claim.source.replace(" (", ",").partition(",")[0] for key, claim in CLAIMS.items()}
    named = [CLAIMS[key] for key, place in places.items() if name.lower() in (key.lower(), place.lower())]
    claim = named[0] if len(named) == 1 else _claim(name)
    with working(f"deriving {claim.id}"):
        derived = _derived(claim.id, everything=everything)
    rows = [v for v in _committed() if v.claim == claim.id]
    # The paper's own setting comes first: relaxations are many.
    shown = sorted(rows, key=lambda v: bool(v.relaxed))[: None if everything else _ROWS]
    measured = ["\n    ".join([f"{v.part}: {v.words} ({v.setting})", *v.lines()[1:]]) for v in shown]
    sections = {
        "Statement": [claim.statement],
        **({"Formula, in LaTeX": [claim.latex]} if everything else {}),
        "Setting": [claim.setting],
        "Assumes": claim.assumptions or ["nothing except the setting"],
        "Derived": derived or ["nothing" + ", because the statement is an observation" * (claim.kind == "observation")],
        "Is it tight?": [claim.tight],
        **({"Not tested": [f"{claim.id} {claim.untested}."]} if claim.untested else {}),
        f"Measured: {_apart(rows)}": [*measured, *_more(len(rows) - len(shown), "rows", claim.id), _NUMBERS],
    }
    lines = [f"{claim.id}  {claim.source} ({claim.kind})", ""]
    for head, paragraphs in sections.items():
        lines += [head, *_folded(paragraphs), ""]
    return Result(about=f"claim {claim.id}", values={"claim": claim, "verdicts": rows}, lines=lines)


def _claim(name: str) -> Claim:
    """Return the claim with this id.

    Raises:
        ValueError: there is no such claim; for a placement's name, the error names the page about it.
    """
    try:
        return CLAIMS[name]
    except ValueError as error:
        for key, placement in COMPOSITIONS.items():
            if name.lower() in (key.lower(), placement.title.lower()):
                raise ValueError(f"{error} docs/theory.md describes {placement.title}.") from error
        raise


def _derived(claim: str, *, everything: bool) -> list[str]:
    # Carry out the steps of a claim's derivation, or the first few, and return them as text.
    from theory.paper.derivations import DERIVATIONS  # late: sympy and scipy take a second or two

    steps = DERIVATIONS.get(claim, ())
    shown = steps if everything else steps[:_STEPS]
    derived = [f"{step.words}:\n    {_shown(step.run())}" for step in shown]
    return [*derived, *_more(len(steps) - len(shown), "steps", claim)]


def _more(left: int, what: str, claim: str) -> list[str]:
    # Return a line on the number of omitted steps or rows; empty if none is omitted.
    return [f"... and {left} {what} more: gradbounds claims {claim} --all"] if left else []


def _committed() -> list[Verdict]:
    return [v for results in committed_results() for v in results.verdicts]


def _shown(result: object) -> str:
    # Format a result of a derivation on one line; tuples and lists are separated by commas.
    if isinstance(result, list | tuple):
        return ",  ".join(map(_shown, result))
    if isinstance(result, float):
        return f"{result:.4g}"
    from sympy import sstr  # late: a list of the claims needs none of it

    return sstr(result)


def _folded(paragraphs: Iterable[str]) -> list[str]:
    # Wrap paragraphs to the printed width, with all lines after the first indented.
    lines = [line for paragraph in paragraphs for line in paragraph.splitlines()]
    how: Any = {"initial_indent": "  ", "subsequent_indent": "    ", "break_long_words": False}
    return [part for line in lines for part in textwrap.wrap(line, prose_width(), **how) or [""]]
