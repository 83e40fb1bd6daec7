"""Verdicts as files: the committed results, `paper_checks.md` rendered from them, and a report with figures."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from checks.comparison import cell_fields
from checks.statistics import estimate
from checks.verdict import Verdict
from simulate import Samples
from theory import CLAIMS

COMMITTED = Path(__file__).parent / "data" / "paper_checks.json"
"""The results behind the committed `paper_checks.md`."""

# What the committed results keep of every cell, so that a test can sample it again and compare.
_KEPT = ("hidden_energy", "grad_sq_W2")

_INTRODUCTION = """# Paper checks

What Xiong et al. (2020), *On Layer Normalization in the Transformer Architecture* (arXiv:2002.04745v2), states, what
exact large-width theory predicts for the same number, and what randomly initialized networks did. How to read a
verdict: [docs/verdicts.md](docs/verdicts.md). Generated from `checks/data/paper_checks.json`, never edited by hand.
"""


def results(verdicts: Iterable[Verdict], cells: Sequence[Samples], command: str) -> str:
    """What is committed, as JSON: every verdict, and the last layer of every cell, numbers to 6 digits."""
    content = {
        "command": command,
        "verdicts": [_rounded(asdict(v)) for v in verdicts],
        "cells": [_rounded(_cell(s)) for s in cells],
    }
    return json.dumps(content, indent=1) + "\n"


def _cell(samples: Samples) -> dict[str, Any]:
    kept = {name: estimate(samples[name][:, -1]) for name in _KEPT}
    numbers = {name: {"mean": float(e.mean), "sem": float(e.sem)} for name, e in kept.items()}
    return cell_fields(samples) | {"seed": samples.seed, "draws": samples.draws} | numbers


def _rounded(value: Any) -> Any:
    """Numbers to 6 significant digits, so that rounding on another CPU changes no file."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value


def load_verdicts(path: Path = COMMITTED) -> list[Verdict]:
    """The verdicts of a results file.

    Raises:
        ValueError: the file is missing or is not a results file.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["verdicts"]
        return [Verdict(**(row | {"interval": tuple(row["interval"])})) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"results must be a file that `gradbounds verify --accept` wrote, got {str(path)!r}: {error}"
        ) from error


def changed(now: Iterable[Verdict], before: Iterable[Verdict]) -> list[tuple[Verdict, Verdict]]:
    """Pairs (now, before) of the same claim and part whose verdicts are different words.

    "undecided" changes nothing: fewer draws than the committed run's may not be able to tell.
    """
    known = {(v.claim, v.part): v for v in before}
    pairs = [(v, known[v.claim, v.part]) for v in now if (v.claim, v.part) in known]
    return [(v, old) for v, old in pairs if v.verdict not in (old.verdict, "undecided")]


def missing(now: Iterable[Verdict], before: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts of `before` whose claim and part have no verdict now."""
    found = {(v.claim, v.part) for v in now}
    return [v for v in before if (v.claim, v.part) not in found]


def markdown(verdicts: Sequence[Verdict], command: str) -> str:
    """`paper_checks.md`: a table of verdicts, and the setting and meaning of each row's numbers below it."""
    lines = [
        _INTRODUCTION,
        f"Reproduce with `{command}`. Intervals are 95%; norms are root mean squares over draws.\n",
        "| # | claim | source | part | paper | theory | samples | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, v in enumerate(verdicts, start=1):
        low, high = v.interval
        samples = f"{v.measured:.4g} [{low:.4g}, {high:.4g}]"
        source = CLAIMS[v.claim].source
        lines.append(
            f"| {number} | {v.claim} | {source} | {v.part} | {v.claimed} | {v.predicted:.4g} | {samples} "
            f"| **{v.words}** |"
        )
    lines.append("\n## Statements\n")
    stated = dict.fromkeys(v.claim for v in verdicts)
    lines += [f"- **{claim}** ({CLAIMS[claim].source}): {CLAIMS[claim].statement}" for claim in stated]
    lines.append("\n## What the numbers are\n")
    for number, v in enumerate(verdicts, start=1):
        lines.append(
            f"{number}. **{v.claim}, {v.part}.** {_sentence(v.note)} Theory and samples: {v.agreement}. {v.setting}."
        )
    return "\n".join(lines).replace("||", "‖") + "\n"


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
    """In words, how many predicted numbers agree, are undecided, differ, or lie beyond the theory's range."""
    count = table["agreement"].value_counts()
    parts = [f"{count.get(word, 0)} {said}" for word, said in _COUNTED.items()]
    return ", ".join(parts)


_COUNTED = {
    "agrees": "agree within 3%",
    "undecided": "are consistent but need more draws to tell",
    "differs": "differ",
    "beyond": "are shown only (too narrow for the large-width prediction to be judged)",
}


def _cell_name(row: pd.Series) -> str:
    name = f"{row['placement']}, d = {row['width']}, L = {row['depth']}, n = {row['tokens']}, V = {row['vocab']}"
    return name + (f", {row['text']}" if row["text"] else "")
