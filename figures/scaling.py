"""Theorem 1 in one picture: bound, prediction and samples of the last layer's gradient against d or L."""

import pandas as pd
from matplotlib.figure import Figure

from figures.style import BOUND, MEASURED, PREDICTED, integer_ticks, panels, style
from theory.stack import TITLES

_SYMBOL = {"width": "width $d$", "depth": "depth $L$"}


def scaling(table: pd.DataFrame, against: str) -> Figure:
    """‖∂L/∂W^{2,L}‖_F against the width or the depth, one panel per placement.

    Points are root mean squares over draws with 2 standard errors, the line is large-width theory, the dashed line
    Theorem 1 with its constants. Of several series the longest is shown; against the width one at fixed V/d, where the
    bound's B does not depend on d.

    Args:
        table: columns placement, width, depth, tokens, vocab, output_scale, text, norm, sem, predicted, bound, draws.
        against: "width" or "depth".

    Raises:
        ValueError: no series has two different values of `against`.
    """
    chosen = longest_series(table, against)
    with style():
        figure, axes = panels(len(chosen))
        for axis, (placement, rows) in zip(axes, chosen.items(), strict=True):
            x = rows[against].to_numpy()
            axis.plot(x, rows["bound"], label="Theorem 1, with constants", **BOUND)
            axis.plot(x, rows["predicted"], label="large-width theory", **PREDICTED)
            axis.errorbar(x, rows["norm"], yerr=2 * rows["sem"], label="samples (± 2 s.e.)", zorder=3, **MEASURED)
            axis.set(yscale="log", xlabel=_SYMBOL[against], title=f"{TITLES[placement]}, {_setting(rows, against)}")
            integer_ticks(axis, sorted(set(x)))
        axes[0].set_ylabel(r"$\|\partial\mathcal{L}/\partial W^{2,L}\|_F$  (rms over draws)")
        # The gap between bound and samples is a decade or more: the legend has room there.
        axes[0].legend(loc="center left", bbox_to_anchor=(0.0, 0.45))
    return figure


def longest_series(table: pd.DataFrame, against: str) -> dict[str, pd.DataFrame]:
    """Per placement the rows that differ in `against` alone, the longest series there is, sorted by it.

    Raises:
        ValueError: no series has two different values of `against`.
    """
    rows = table[table["text"] == ""].copy()
    fixed = ["depth", "tokens", "output_scale"] if against == "width" else ["width", "tokens", "output_scale", "vocab"]
    if against == "width":
        rows["ratio"] = rows["vocab"] / rows["width"]
        fixed.append("ratio")
    series: dict[str, pd.DataFrame] = {}
    for placement in [p for p in TITLES if p in set(rows["placement"])]:
        groups = [g for _, g in rows[rows["placement"] == placement].groupby(fixed)]
        best = max(groups, key=lambda g: (g[against].nunique(), g["draws"].sum()), default=None)
        if best is not None and best[against].nunique() >= 2:
            series[placement] = best.sort_values(against)
    if not series:
        raise ValueError(f"table must have two cells that differ in {against} alone; sweep over {against} first.")
    return series


def _setting(rows: pd.DataFrame, against: str) -> str:
    first = rows.iloc[0]
    other = f"$L = {first['depth']}$" if against == "width" else f"$d = {first['width']}$"
    follows = against == "width" and first["vocab"] == first["width"]
    vocab = "d" if follows else f"{first['vocab'] / first['width']:g} d" if against == "width" else first["vocab"]
    return f"{other}, $n = {first['tokens']}$, $V = {vocab}$"
