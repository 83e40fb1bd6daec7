"""Verdicts as a report with figures, in HTML."""

from collections.abc import Sequence
from pathlib import Path

import jinja2
import pandas as pd

from checks.verdict import Verdict
from theory import CLAIMS

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
