"""The tables of statements of other papers, made of committed results."""

from collections.abc import Iterator
from textwrap import fill

from checks.results import field_results
from checks.verdict import Verdict, number_or_dash
from theory import Claim
from theory.paper.claims import sources


def statements_of_the_field() -> str:
    """A row for every setting of a statement that is judged, and why the others are not."""
    lines = ["| | statement | verdict | claimed | theory | samples |", "|---|---|---|---|---|---|"]
    without: dict[str, list[str]] = {}
    for name, claims in sources().items():
        for claim in claims.values():
            if claim.unjudged:
                without.setdefault(claim.unjudged, []).append(claim.id)
        heads = [f"| | **{claim.paper}**: `gradbounds verify --source {name}` | | | | |" for claim in claims.values()]
        rows = list(_judged(name))
        lines += heads[: bool(rows)]
        for k, (claim, v) in enumerate(rows):
            first = k == 0 or rows[k - 1][0] != claim
            words = claim.statement.replace("|", "\\|") if first else f"the same with {v.relaxed}"
            numbers = " | ".join([v.words, str(v.claimed), number_or_dash(v.predicted), _sampled(v)])
            lines.append(f"| {claim.id if first else ''} | {words} | {numbers} |")
    listed = [fill(f"- {', '.join(names)}: {why}", 120, subsequent_indent="  ") for why, names in without.items()]
    return "\n".join([*lines, "", "Listed without a verdict:", "", *listed])


def statements_that_fail() -> str:
    """A row for every statement that fails in its source's setting, and its number there."""
    lines = ["| `--source` | | statement | claimed | samples |", "|---|---|---|---|---|"]
    for name in sources():
        first = {claim.id: (claim, v) for claim, v in reversed([*_judged(name)])}
        for claim, v in reversed([row for row in first.values() if row[1].verdict == "fails"]):
            cells = [f"`{name}`", claim.id, claim.in_words or claim.statement, f"{claim.kind} {v.claimed}"]
            lines.append(f"| {' | '.join(cells)} | {number_or_dash(v.measured)} |")
    return "\n".join(lines)


def corrections() -> str:
    """For every statement that fails somewhere the step that its derivation leaves out, and what holds instead."""
    lines = ["| | step that is left out | statement that holds instead |", "|---|---|---|"]
    for name in sources():
        failed = {claim.id: claim for claim, v in _judged(name) if v.verdict == "fails"}
        lines += [f"| {claim.id} | {claim.left_out} | {claim.corrected} |" for claim in failed.values()]
    return "\n".join(lines)


def _judged(name: str) -> Iterator[tuple[Claim, Verdict]]:
    """The statements of a source with their committed verdicts, the source's own setting first."""
    results = field_results()
    for claim in sources()[name].values():
        for v in results[name].verdicts if name in results else []:
            if v.claim == claim.id:
                yield claim, v


def _sampled(v: Verdict) -> str:
    low, high = map(number_or_dash, v.interval)
    return f"{number_or_dash(v.measured)} [{low}, {high}]"
