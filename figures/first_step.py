"""A figure of the critical learning rate of the first optimizer step, against width and depth."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import MEASURED, PAPER, SYMBOLS, of_placement, pale_line, style, value_ticks
from theory.stack import TITLES
from theory.stack.optimizers import NAMES

_OPTIMIZERS = NAMES | {"adam": r"Adam ($\epsilon\to 0$)"}
PUBLISHED = {"5e-4": 5e-4, "7.0e-4": 7.0e-4, "1e-3": 1e-3}
"""Largest learning rates of published Adam recipes, by label: 5e-4 and 1e-3 of Xiong et al. (2020), 7.0e-4 of Vaswani
et al. (2017); d = 512, 6-6.
"""


def first_step_rates(table: pd.DataFrame) -> Figure:
    """Draw the critical learning rate of the first step against width and depth, for every optimizer.

    Lines are large-width theory, filled marks are sampled networks with 2 standard errors. Networks of the smallest
    depth are drawn against the width, networks of the greatest width against the depth. Adam's panels show the learning
    rates of published recipes.

    Args:
        table: one row per network and optimizer: placement, width, depth, optimizer, critical_rate (of theory; NaN
            without a rule), and sampled_rate with sampled_sem (NaN without samples).

    Raises:
        ValueError: neither width nor depth has several values.
    """
    drawn = {}
    for against, other, fixed in (("width", "depth", "min"), ("depth", "width", "max")):
        rows = table[table[other] == table[other].agg(fixed)]
        if rows[against].nunique() > 1:
            drawn[against] = rows
    if not drawn:
        raise ValueError("width or depth must have several values for a figure.")
    optimizers = list(dict.fromkeys(table["optimizer"]))
    with style():
        figure = Figure(figsize=(3.5 * len(optimizers), 3.0 * len(drawn)), layout="constrained", dpi=160)
        axes = figure.subplots(len(drawn), len(optimizers), squeeze=False)
        for line, (against, rows) in zip(axes, drawn.items(), strict=True):
            for axis, optimizer in zip(line, optimizers, strict=True):
                _panel(axis, optimizer, against, rows[rows["optimizer"] == optimizer])
            line[0].set_ylabel(r"critical rate $2\,g\cdot u/u^\top Gu$")
        marks = "; marks: networks ± 2 s.e." if table["sampled_rate"].notna().any() else ""
        published = "; dotted: published rates" if "adam" in optimizers else ""
        figure.supxlabel(f"pale lines: large-width theory{marks}{published}", fontsize=8)
    return figure


def _panel(axis: Axes, optimizer: str, against: str, rows: pd.DataFrame) -> None:
    for placement, series in rows.groupby("placement", sort=False):
        color, x = of_placement(placement)["color"], series.sort_values(against)
        pale_line(axis, x[against], x["critical_rate"], color, TITLES[placement])
        axis.errorbar(x[against], x["sampled_rate"], yerr=2 * x["sampled_sem"], color=color, **MEASURED)
    if optimizer == "adam":
        for name, rate in PUBLISHED.items():
            axis.axhline(rate, **PAPER)
            axis.annotate(name, (0.02, rate), xycoords=("axes fraction", "data"), fontsize=7, va="bottom")
    value_ticks(axis, sorted(set(rows[against])))
    axis.set_yscale("log")  # after it, which takes minor ticks away
    other = "depth" if against == "width" else "width"
    symbol = "L" if other == "depth" else "d"
    axis.set_xlabel(SYMBOLS[against])
    axis.set_title(f"{_OPTIMIZERS.get(optimizer, optimizer)}, ${symbol} = {rows[other].iloc[0]}$")
    axis.legend()
