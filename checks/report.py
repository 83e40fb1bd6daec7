"""The HTML report of a run, with its verdicts and figures."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from checks.results import Results
from checks.verdict import DECIDING, Verdict, Word, deciding, number_or_dash
from theory import CLAIMS

_DATA = Path(__file__).parent / "data"
_PAGE = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_DATA),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_PAGE.filters["number"] = number_or_dash
_PAGE.filters["address"] = lambda svg: "data:image/svg+xml;base64," + b64encode(svg).decode("ascii")
_PAGE.filters["norms"] = lambda text: str(text).replace("||", "‖")


def html(
    verdicts: Sequence[Verdict],
    table: pd.DataFrame,
    figures: Sequence[tuple[Any, bytes]],
    *,
    command: str,
    networks: str,
    committed: Sequence[Results] = (),
) -> str:
    """Return the HTML report of a run as one page that needs no other files.

    Args:
        verdicts: the run's verdicts.
        table: the run's `comparison` of theory and samples.
        figures: the run's figures, each a `figures.registry.RunFigure` with its SVG. Pictures are embedded in the page,
            so that ids of different pictures cannot collide.
        command: the command that reproduces the run.
        networks: a text on how many networks with how many draws were sampled.
        committed: saved results of other commands, for claims that the run does not test.
    """
    judged = table[table["agreement"].isin(["agrees", "undecided", "differs"])].copy()
    judged["deviation"] = judged["mean"] / judged["predicted"] - 1
    order = judged["deviation"].abs().where(judged["agreement"] != "differs", 1e9).sort_values(ascending=False)
    rows = judged.loc[order.index[:12]].assign(cell=lambda t: t.apply(_cell_name, axis=1))
    by_claim = {name: [v for v in verdicts if v.claim == name] for name in CLAIMS}
    claims = [(CLAIMS[name], deciding(these), these) for name, these in by_claim.items() if these]
    claims.sort(key=lambda claim: DECIDING.index(claim[1].verdict))
    return _PAGE.get_template("report.html.jinja").render(
        command=command,
        networks=networks,
        claims=claims,
        tally=_tally([decides for _, decides, _ in claims]),
        others=[(CLAIMS[name], _elsewhere(name, committed)) for name, these in by_claim.items() if not these],
        counts=agreement_counts(table),
        deviations=rows.to_dict("records"),
        figures=sorted(figures, key=lambda pair: (*_LEADING, pair[0].name).index(pair[0].name)),
        leading=sum(figure.name in _LEADING for figure, _ in figures),
    )


# Names of the figures between the summary and the tables.
_LEADING = ("gradient_over_layers", "gradient_against_width", "gradient_against_depth")


def _tally(decides: Sequence[Verdict]) -> list[tuple[Word, str, list[Verdict]]]:
    """Group the deciding rows of claims by verdict: the verdict, the number of claims in words, and the rows."""
    by_word = [(word, [v for v in decides if v.verdict == word]) for word in DECIDING]
    return [(word, f"{len(these)} {_SAID[word][len(these) > 1]}", these) for word, these in by_word if these]


# The verb of each verdict, for one claim and for several.
_SAID: dict[Word, tuple[str, str]] = {
    "fails": ("fails", "fail"),
    "holds with a correction": ("holds with a correction", "hold with a correction"),
    "holds, loose": ("holds, loose", "hold, loose"),
    "holds": ("holds", "hold"),
    "undecided": ("is undecided", "are undecided"),
    "premise fails": ("rests on a premise that fails", "rest on a premise that fails"),
}


def _elsewhere(name: str, committed: Sequence[Results]) -> tuple[Verdict, str] | None:
    """Return the row of other commands' results that decides a claim, with its command; None if no result has one.

    Args:
        name: the id of the claim.
        committed: the results of other commands.
    """
    rows = [(v, results.command) for results in committed for v in results.verdicts if v.claim == name]
    if not rows:
        return None
    decides = deciding([v for v, _ in rows])
    return next((v, command) for v, command in rows if v is decides)


def agreement_counts(table: pd.DataFrame) -> str:
    """Describe in words how many predicted numbers agree with samples, are undecided, differ, or are not judged.

    The text ends with the power of the test: the median over judged numbers of the standard error divided by the
    prediction.

    Args:
        table: a table from `comparison`.
    """
    count = table["agreement"].value_counts()
    parts = ", ".join(f"{count.get(word, 0)} {words}" for word, words in _COUNTED.items())
    judged = table[table["agreement"].isin(["agrees", "undecided", "differs"]) & (table["predicted"] != 0)]
    if judged.empty:
        return parts
    errors = judged["sem"] / judged["predicted"].abs()
    return f"{parts}; the median standard error of the judged is {errors.median():.2%}"


_COUNTED = {
    "agrees": "agree within 3%",
    "undecided": "are consistent but need more networks for a decision",
    "differs": "differ",
    "beyond": "are not judged",
}


def agreement_lines(table: pd.DataFrame, of: str) -> list[str]:
    """List how many predicted numbers agree with samples, then the most frequent reasons why numbers are not judged.

    Args:
        table: a table from `comparison`.
        of: the name of the compared numbers, as "all layers".
    """
    reasons = table.loc[table["reason"] != "", "reason"].value_counts()
    lines = [f"Theory compared with samples, {of}: {agreement_counts(table)}."]
    if not table["agreement"].isin(["agrees", "undecided", "differs"]).any():
        lines.append(
            "No number is judged. docs/verdicts.md explains the rules." if len(reasons) else "Nothing is predicted."
        )
    lines += [
        f"     not judged, {number} number{'s' * (number > 1)}: {why}" for why, number in reasons[:_REASONS].items()
    ]
    if (hidden := len(reasons) - _REASONS) > 0:
        lines.append(
            f"     and {hidden} more reason{'s' * (hidden > 1)}, in `comparison` of `gradbounds check PATH --json`"
        )
    return lines


# The largest number of printed reasons why numbers are not judged.
_REASONS = 5


def _cell_name(row: pd.Series) -> str:
    name = f"{row['placement']}, d = {row['width']}, L = {row['depth']}, n = {row['tokens']}, V = {row['vocab']}"
    return name + (f", {row['text']}" if row["text"] else "")
