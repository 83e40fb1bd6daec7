"""What each relaxation does to the gradients, and the way from the paper's setting along one field."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import legend_below, looks, style
from theory.stack import TITLES

_PANELS = {
    "effect": r"last $\|\partial\mathcal{L}/\partial W^2\|_F$, times",
    "width": "exponent in $d$",
    "depth": "exponent in $L$",
    "profile": "first layer over last",
}
_PATH_PANELS = _PANELS | {
    "correlation": "correlation of tokens, last layer",
    "entropy": "entropy of attention, last layer [nats]",
}
_SHIFT = 0.17


def relaxations(table: pd.DataFrame) -> Figure:
    """One line per relaxation, one mark per placement with ± 2 standard errors; ticks are large-width theory.

    Args:
        table: `checks.stacks.relaxations.relaxation_table`.
    """
    names = list(dict.fromkeys(table["relaxation"]))
    height = {name: -k for k, name in enumerate(names)}
    with style():
        figure = Figure(figsize=(9.2, 1.3 + 0.25 * len(names)), layout="constrained", dpi=160)
        axes = figure.subplots(1, len(_PANELS), sharey=True)
        groups = list(table.groupby("placement", sort=False))
        shifts = np.linspace(_SHIFT, -_SHIFT, len(groups)) if len(groups) > 1 else [0.0]
        for look, shift, (placement, rows) in zip(looks(), shifts, groups, strict=False):
            y = np.array([height[name] for name in rows["relaxation"]]) + shift
            for axis, name in zip(axes, _PANELS, strict=True):
                axis.plot(
                    rows[f"{name}_predicted"], y, linestyle="none", marker="|", markersize=9, color="black",
                    markeredgewidth=0.8,
                )  # fmt: skip
                axis.errorbar(
                    rows[name], y, xerr=2 * rows[f"{name}_sem"], linestyle="none", markersize=3.5, capsize=1.5,
                    marker=look["marker"], color=look["color"], label=TITLES[str(placement)],
                )  # fmt: skip
        for axis, (name, title) in zip(axes, _PANELS.items(), strict=True):
            axis.set_title(title)
            if name in ("effect", "profile"):
                axis.set_xscale("log")
                axis.axvline(1.0, color="#777777", linestyle=":", linewidth=1)
                _plain_ticks(axis, table[[name, f"{name}_predicted"]].to_numpy())
            axis.grid(axis="y", visible=True)
        axes[0].set_yticks([height[name] for name in names], names)
        axes[0].set_ylim(-len(names) + 0.4, 0.6)
        legend_below(figure, 4, "samples (± 2 s.e.); ticks: large-width theory")
    return figure


def relaxation_path(table: pd.DataFrame, field: str) -> Figure:
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
            for axis, name in zip(axes, _PATH_PANELS, strict=True):
                predicted = rows[f"{name}_predicted"]
                axis.plot(rows["value"], predicted, linewidth=1.2, color=look["color"], linestyle=look["linestyle"])
                axis.errorbar(
                    rows["value"], rows[name], yerr=2 * rows[f"{name}_sem"], linestyle="none", capsize=2,
                    **{key: value for key, value in look.items() if key != "linestyle"} | {"markersize": 4},
                    label=TITLES[str(placement)],
                )  # fmt: skip
        for axis, (name, title) in zip(axes, _PATH_PANELS.items(), strict=True):
            axis.set_title(title)
            if not np.isfinite(table[name].to_numpy(float)).any():
                axis.text(0.5, 0.5, "not in these networks", transform=axis.transAxes, ha="center")
        for axis in axes[3:]:
            axis.set_xlabel(field.replace("_", " "))
        legend_below(figure, 4, "points: samples (± 2 s.e.); lines: large-width theory")
    return figure


def _plain_ticks(axis: Axes, values: Any) -> None:
    """Ticks of a short logarithmic axis at numbers that can be read."""
    low, high = np.nanmin(values), np.nanmax(values)
    candidates = np.array([0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.2, 1.5, 2, 3, 5, 7, 10, 20, 50])
    if high / low > 3:
        candidates = np.setdiff1d(candidates, [0.7, 1.2, 1.5, 7])
    ticks = candidates[(candidates >= low * 0.95) & (candidates <= high * 1.05)]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
