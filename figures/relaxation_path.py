"""The way from the paper's setting along one field: every conclusion against the field's value."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.style import legend_below, looks, style
from theory.stack import TITLES

_PANELS = {
    "effect": r"last $\|\partial\mathcal{L}/\partial W^2\|_F$, times",
    "width": "exponent in $d$",
    "depth": "exponent in $L$",
    "profile": "first layer over last",
    "correlation": "correlation of tokens, last layer",
    "entropy": "entropy of attention, last layer [nats]",
}


def path(table: pd.DataFrame, field: str) -> Figure:
    """Six numbers against the value of a field, a curve per placement; points ± 2 standard errors, lines theory.

    Args:
        table: `checks.stacks.relaxations.relaxation_table` with a column `value`.
        field: the field, for the axis.
    """
    with style():
        figure = Figure(figsize=(9.2, 5.4), layout="constrained", dpi=160)
        axes = figure.subplots(2, 3, sharex=True).ravel()
        for look, (placement, rows) in zip(looks(), table.groupby("placement", sort=False), strict=False):
            rows = rows.sort_values("value")
            for axis, name in zip(axes, _PANELS, strict=True):
                predicted = rows[f"{name}_predicted"]
                axis.plot(rows["value"], predicted, linewidth=1.2, color=look["color"], linestyle=look["linestyle"])
                axis.errorbar(
                    rows["value"], rows[name], yerr=2 * rows[f"{name}_sem"], linestyle="none", capsize=2,
                    **{key: value for key, value in look.items() if key != "linestyle"} | {"markersize": 4},
                    label=TITLES[str(placement)],
                )  # fmt: skip
        for axis, (name, title) in zip(axes, _PANELS.items(), strict=True):
            axis.set_title(title)
            if not np.isfinite(table[name].to_numpy(float)).any():
                axis.text(0.5, 0.5, "not in these networks", transform=axis.transAxes, ha="center")
        for axis in axes[3:]:
            axis.set_xlabel(field.replace("_", " "))
        legend_below(figure, 4, "points: samples (± 2 s.e.); lines: large-width theory")
    return figure
