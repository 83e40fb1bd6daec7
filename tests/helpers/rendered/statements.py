"""The table of statements of other papers, made of committed results."""

from textwrap import fill

from checks.results import field_results
from checks.verdict import number_or_dash
from theory.paper.claims import sources


def statements_of_the_field() -> str:
    """A row for every statement that is judged, and what the others lack."""
    lines = ["| | statement | verdict | claimed | theory | samples |", "|---|---|---|---|---|---|"]
    without: dict[str, list[str]] = {}
    results = field_results()
    for name, claims in sources().items():
        judged = [claim for claim in claims.values() if not claim.unjudged]
        for claim in claims.values():
            if claim.unjudged:
                without.setdefault(claim.unjudged, []).append(claim.id)
        lines += [f"| | **{judged[0].paper}**: `gradbounds verify --source {name}` | | | | |"] if judged else []
        for claim in judged:
            rows = [v for v in results[name].verdicts if v.claim == claim.id] if name in results else []
            for k, v in enumerate(rows):
                words = claim.statement if k == 0 else f"the same with {v.relaxed}"
                low, high = map(number_or_dash, v.interval)
                cells = [v.words, str(v.claimed), number_or_dash(v.predicted)]
                sampled = f"{number_or_dash(v.measured)} [{low}, {high}]"
                shown = words.replace("|", "\\|")
                lines.append(f"| {claim.id if k == 0 else ''} | {shown} | {' | '.join(cells)} | {sampled} |")
    listed = [fill(f"- {', '.join(names)}: {why}", 120, subsequent_indent="  ") for why, names in without.items()]
    return "\n".join([*lines, "", "Listed without a verdict:", "", *listed])
