"""Series of configurations that differ in one field only, for fits of exponents and for figures."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from typing import Literal, Protocol, TypeVar

import pandas as pd

from checks.fits import LEAST_POINTS
from theory import Stack
from theory.stack import TITLES

Against = Literal["width", "depth"]


class HasStack(Protocol):
    """A protocol for objects with a network, such as a configuration or its samples."""

    @property
    def stack(self) -> Stack:
        """The network of a configuration."""


T = TypeVar("T", bound=HasStack)

_FIXED = [f.name for f in fields(Stack) if f.name not in ("placement", "vocab")]


def exponent_series(cells: Sequence[T], against: Against, *, free: Collection[str] = ()) -> list[list[T]]:
    """Group configurations into series that differ only in width or only in depth.

    Each series has at least three different values and is sorted by them.

    Args:
        cells: configurations or samples of any grid.
        against: the field that varies, "width" or "depth".
        free: names of fields that may also vary.
    """
    series: dict[tuple[object, ...], dict[int, T]] = {}
    for cell in cells:
        fixed = {name: field for name, field in asdict(cell.stack).items() if name not in free}
        value = fixed.pop(against)
        series.setdefault(tuple(fixed.values()), {})[value] = cell
    long = [by_value for by_value in series.values() if len(by_value) >= LEAST_POINTS]
    return [[by_value[value] for value in sorted(by_value)] for by_value in long]


def longest_series(table: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return for each LayerNorm placement the longest series of table rows that differ in one field only, sorted by it.

    Against the width, a series has a fixed V/d or a fixed V: the one with more widths or, for equally many, with more
    draws. At a fixed V/d, the factor B of the bound does not depend on d.

    Args:
        table: one row per configuration with its fields and draws, such as `checks.stacks.theorem1.last_layer_table`.
        against: "width", "depth" or "tokens".

    Raises:
        ValueError: no series has two different values of `against`.
    """
    rows = table[table["text"] == ""].assign(ratio=lambda t: t["vocab"] / t["width"])
    # Grouping by every field that all rows share takes most of the time.
    fixed = [name for name in _FIXED if name != against and rows[name].nunique(dropna=False) > 1]
    series = []
    for placement in [p for p in TITLES if p in set(rows["placement"])]:
        here = rows[rows["placement"] == placement]
        groups = [g for vocab in ("ratio", "vocab") for _, g in here.groupby([*fixed, vocab], dropna=False)]
        best = max(groups, key=lambda g: (g[against].nunique(), g["draws"].sum()))
        if best[against].nunique() >= 2:
            series.append(best.sort_values(against).drop_duplicates(against).drop(columns="ratio"))
    if not series:
        raise ValueError(f"table must have two cells that differ only in {against}; sweep over {against} first.")
    return pd.concat(series, ignore_index=True)
