"""Verdicts as pages: `paper_checks.md`, and a report with figures."""

from collections.abc import Sequence
from pathlib import Path

import jinja2
import pandas as pd

from checks.results import Results
from checks.verdict import Verdict
from theory import CLAIMS

_INTRODUCTION = """# Paper checks

What Xiong et al. (2020), *On Layer Normalization in the Transformer Architecture* (arXiv:2002.04745v2), states, what
exact large-width theory predicts for the same number, and what randomly initialized networks did. How to read a
verdict: [docs/verdicts.md](docs/verdicts.md). Generated from the results in `checks/data`, never edited by hand.

Intervals are 95%; norms are root mean squares over draws. What every row's numbers are is said below
the table.
"""


_RELAXATIONS = """
## Relaxations

What becomes of T1, F1 and F2 when an assumption of their setting is switched off: the measured number with its 95%
interval, large-width theory's for the same networks in parentheses, and whether the statement holds. In d that is: the
last norm grows more slowly than d sqrt(ln d) over the same widths; in L: the recursion's exponent at great depth is the
paper's, 0 for Post-LN and -1/2 for Pre-LN; over the layers: Post-LN's norm grows by ln(3/2)/2 = 0.203 a layer, Pre-LN's
does not depend on the layer. G1, of the growth over the upper half of the layers, is our own: a closed form for each
network, below 0 where gradients grow towards the input. More: [docs/relaxations.md](docs/relaxations.md),
[docs/queries.md](docs/queries.md), [docs/layer_growth.md](docs/layer_growth.md)."""


def markdown(committed: Sequence[Results]) -> str:
    """`paper_checks.md`: a table of verdicts, and the setting, command and meaning of each row's numbers below it."""
    rows = [(v, one.command) for one in committed for v in one.verdicts if not v.relaxed]
    lines = [
        _INTRODUCTION,
        "| # | claim | source | part | setting | paper | theory | samples | verdict | command |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, (v, command) in enumerate(rows, start=1):
        lines.append(
            f"| {number} | {v.claim} | {CLAIMS[v.claim].source} | {v.part} | {v.setting} | {v.claimed} "
            f"| {v.predicted:.4g} | {v.measured:.4g} {_interval(v.interval)} | **{v.words}** | `{command}` |"
        )
    judged = {v.claim for one in committed for v in one.verdicts}
    untested = [claim for claim in CLAIMS.values() if claim.id not in judged]
    lines += [
        f"|  | {claim.id} | {claim.source} | {claim.kind} | {claim.setting} |  |  |  | **not tested here** |  |"
        for claim in untested
    ]
    if any(v.relaxed for one in committed for v in one.verdicts):
        lines.append(_RELAXATIONS)
    for one in committed:
        lines += _relaxation_lines([v for v in one.verdicts if v.relaxed], one.command)
    lines.append("\n## Statements\n")
    lines += [f"- **{claim.id}** ({claim.source}): {claim.statement}. {claim.tight}" for claim in CLAIMS.values()]
    lines.append("\n## What the numbers are\n")
    for number, (v, _) in enumerate(rows, start=1):
        resampled = f" Interval by resampling draws: {_interval(v.bootstrap)}." if v.bootstrap else ""
        lines.append(
            f"{number}. **{v.claim}, {v.part}.** {_sentence(v.note)}{resampled} Theory and samples: {v.agreement}."
        )
    return "\n".join(lines).replace("||", "‖") + "\n"


def _relaxation_lines(verdicts: Sequence[Verdict], command: str) -> list[str]:
    """A table of what becomes of T1 under each relaxation: a line each, the exponents of either placement beside it."""
    if not verdicts:
        return []
    parts = list(dict.fromkeys(v.part.partition(":")[0] for v in verdicts))
    found = {(v.relaxed, v.part.partition(":")[0]): v for v in verdicts}
    lines = [
        f"\nFrom `{command}`:\n",
        "| relaxed | " + " | ".join(parts) + " |",
        "|---|" + "---|" * len(parts),
    ]
    for name in dict.fromkeys(v.relaxed for v in verdicts):
        cells = [_exponent(found.get((name, part))) for part in parts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _exponent(v: Verdict | None) -> str:
    if v is None:
        return ""
    return f"{v.measured:.3f} [{v.interval[0]:.3f}, {v.interval[1]:.3f}] ({v.predicted:.3f}) **{v.verdict}**"


def _interval(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.4g}, {interval[1]:.4g}]"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." if not text.startswith("||") else text + "."


_PAGE = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "data"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def html(verdicts: Sequence[Verdict], table: pd.DataFrame, figures: Sequence[str], *, title: str, summary: str) -> str:
    """The report: verdicts, the comparison's widest deviations, and figures by their relative paths."""
    judged = table[table["agreement"].isin(["agrees", "undecided", "differs"])].copy()
    judged["deviation"] = judged["mean"] / judged["predicted"] - 1
    order = judged["deviation"].abs().where(judged["agreement"] != "differs", 1e9).sort_values(ascending=False)
    rows = judged.loc[order.index[:12]].assign(cell=lambda t: t.apply(_cell_name, axis=1))
    return _PAGE.get_template("report.html.jinja").render(
        title=title,
        summary=summary,
        verdicts=verdicts,
        claims=CLAIMS,
        counts=agreement_counts(table),
        deviations=rows.to_dict("records"),
        figures=figures,
    )


def agreement_counts(table: pd.DataFrame) -> str:
    """In words, how many predicted numbers agree, are undecided, differ, or are not judged, and how sharp they are.

    The power stands beside the counts: the median over the judged numbers of the standard error over the prediction.
    """
    count = table["agreement"].value_counts()
    parts = ", ".join(f"{count.get(word, 0)} {said}" for word, said in _COUNTED.items())
    judged = table[table["agreement"].isin(["agrees", "undecided", "differs"]) & (table["predicted"] != 0)]
    if judged.empty:
        return parts
    errors = judged["sem"] / judged["predicted"].abs()
    return f"{parts}; the median standard error of the judged is {errors.median():.2%}"


_COUNTED = {
    "agrees": "agree within 3%",
    "undecided": "are consistent but need more draws to tell",
    "differs": "differ",
    "beyond": "are shown only",
}


def shown_only(table: pd.DataFrame) -> list[str]:
    """Why numbers are shown and not judged, a line each with their count, the commonest first."""
    return [
        f"{number} numbers: {why}" for why, number in table.loc[table["reason"] != "", "reason"].value_counts().items()
    ]


def _cell_name(row: pd.Series) -> str:
    name = f"{row['placement']}, d = {row['width']}, L = {row['depth']}, n = {row['tokens']}, V = {row['vocab']}"
    return name + (f", {row['text']}" if row["text"] else "")
