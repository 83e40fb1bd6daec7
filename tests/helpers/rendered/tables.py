"""Tables of the pages that are made of committed results alone; `rendered_pages` puts them between their marks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from theory.stack import TITLES

ROOT = Path(__file__).parents[3]


def families() -> str:
    """The coefficient of the finite-width error of every family of stacks, with its standard error."""
    found = _committed("checks/data/large_width/coefficients.json")["families"]
    columns = {
        "all but queries and keys": ("uniform", "others"),
        "with a source": ("uniform, source", "others"),
        "random queries and keys: the rest": ("queries", "others"),
        "W^Q, W^K": ("queries", "queries"),
        "with a source: X^Q, X^K": ("queries, source", "queries of a source"),
    }
    said, rows = {"no norms": "Pre-LN without its norms", "unnormed": "no norm, branches over √L"}, []
    for norms, units in dict.fromkeys(tuple(name.split(", ")[:2]) for name in found):
        title = said[norms] if norms in said else TITLES[norms]
        numbers = [found.get(f"{norms}, {units}, {attention}", {}).get(kind) for attention, kind in columns.values()]
        rows.append(
            [title, units, *(_minus(f"{one['c']:.1f} ± {one['error']:.1f}") if one else "–" for one in numbers)]
        )
    return _table(["norms", "units", *columns], rows)


def _committed(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _minus(text: str) -> str:
    return text.replace("-", "−")
