"""Tables of the pages that are made of committed results alone; `rendered_pages` puts them between their marks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from theory.stack import TITLES

ROOT = Path(__file__).parents[3]


def families() -> str:
    """The coefficient of the finite-width error of every family of stacks, with its standard error."""
    found = committed("checks/data/large_width/coefficients.json")["families"]
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


def pre_norm() -> str:
    """Pre-LN's law at one token: d times the mean and variance of the logarithm and what W2's mean is above theory."""
    found = committed("tests/evidence/finite-width-pre.json")
    titles = {
        "mean of the logarithm": "mean of ln(W² of layer 1 / of layer L)", "variance of the logarithm": "its variance",
        "grad_sq_W2": "mean square of W², layer 1", "grad_sq_W1": "of W¹", "grad_sq_WV": "of W^V",
    }  # fmt: skip
    rows = []
    for depth in (2, 8, 32):
        cells = [found[f"d = {width}, L = {depth}"] for width in (64, 128, 256)]
        for name, title in titles.items():
            measured = [f"{c[name]['measured']:.2f} ± {c[name]['its standard error']:.2f}" for c in cells]
            rows.append([str(depth), title, *map(_minus, [*measured, f"{cells[0][name]['theory']:.2f}"])])
    return _table(["L", "d times", "d = 64", "128", "256", "theory"], rows)


def committed(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _minus(text: str) -> str:
    return text.replace("-", "−")
