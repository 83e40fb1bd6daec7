"""Figures of dropped assumptions: their effect on gradients, and the effect of varying one field."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import legend_below, of_placement, style
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
UNCHANGED = "nothing"
"""`checks.stacks.relaxations.UNRELAXED`."""
# A number that theory moves by less is as in the paper's network: of ratios relative, of exponents absolute.
_LEAST_EFFECT = 0.1
_BASE = "unchanged"


def relaxations(table: pd.DataFrame) -> Figure:
    """One line per relaxation, one mark per placement with ± 2 standard errors; open diamonds are large-width theory.

    The base stands first, then the relaxations by how far theory moves one of the four numbers; those that move none
    by a tenth are pale.

    Args:
        table: `checks.stacks.relaxations.relaxation_table`.
    """
    effects = _effects(table)
    names = [UNCHANGED, *sorted((name for name in effects if name != UNCHANGED), key=lambda name: -effects[name])]
    names = [name for name in names if name in set(table["relaxation"])]
    height = {name: -k for k, name in enumerate(names)}
    with style():
        figure = Figure(figsize=(8.6, 1.3 + 0.25 * len(names)), layout="constrained", dpi=160)
        axes = figure.subplots(1, len(_PANELS), sharey=True)
        groups = list(table.groupby("placement", sort=False))
        shifts = np.linspace(_SHIFT, -_SHIFT, len(groups)) if len(groups) > 1 else [0.0]
        for shift, (placement, rows) in zip(shifts, groups, strict=False):
            look = of_placement(placement)
            y = np.array([height[name] for name in rows["relaxation"]]) + shift
            for axis, name in zip(axes, _PANELS, strict=True):
                axis.plot(
                    rows[f"{name}_predicted"], y, linestyle="none", marker="D", markersize=6, fillstyle="none",
                    markeredgewidth=0.9, color=look["color"],
                )  # fmt: skip
                axis.errorbar(
                    rows[name], y, xerr=2 * rows[f"{name}_sem"], linestyle="none", markersize=3, capsize=1.5,
                    marker=look["marker"], color=look["color"], label=TITLES[str(placement)],
                )  # fmt: skip
        for name in names:
            if name != UNCHANGED and effects[name] < _LEAST_EFFECT:
                for axis in axes:
                    axis.axhspan(height[name] - 0.5, height[name] + 0.5, color="white", alpha=0.6, zorder=4)
        for axis, (name, title) in zip(axes, _PANELS.items(), strict=True):
            axis.set_title(title, fontsize=9)
            if name in ("effect", "profile"):
                axis.set_xscale("log")
                axis.axvline(1.0, color="#777777", linestyle=":", linewidth=1)
                _plain_ticks(axis, table[[name, f"{name}_predicted"]].to_numpy())
            axis.grid(axis="y", visible=True)
        labels = [_BASE if name == UNCHANGED else name.replace("W^O", "$W^O$") for name in names]
        axes[0].set_yticks([height[name] for name in names], labels)
        axes[0].set_ylim(-len(names) + 0.4, 0.6)
        legend_below(figure, 4, "samples (± 2 s.e.); open diamonds: large-width theory; pale: changes by less than 0.1")
    return figure


def _effects(table: pd.DataFrame) -> dict[str, float]:
    """By how much theory moves one of the four numbers, at most, for every relaxation."""
    base = table[table["relaxation"] == UNCHANGED].set_index("placement")
    effects: dict[str, float] = {}
    for _, row in table.iterrows():
        moves = [0.0]
        for name in _PANELS:
            value, before = row[f"{name}_predicted"], base[f"{name}_predicted"].get(row["placement"], np.nan)
            moves.append(abs(np.log(value / before)) if name in ("effect", "profile") else abs(value - before))
        effects[row["relaxation"]] = max(effects.get(row["relaxation"], 0.0), float(np.nanmax(moves)))
    return effects


def relaxation_path(table: pd.DataFrame, field: str) -> Figure:
    """Six numbers against the value of a field, a curve per placement; points ± 2 standard errors, lines theory.

    Args:
        table: `checks.stacks.relaxations.relaxation_table` with a column `value`.
        field: the field, for the axis.
    """
    label = {"query_key_scale": "scale $s$ of queries and keys"}.get(field, field.replace("_", " "))
    with style():
        figure = Figure(figsize=(8.6, 5.6), layout="constrained", dpi=160)
        axes = figure.subplots(2, 3, sharex=True).ravel()
        for placement, rows in table.groupby("placement", sort=False):
            look = of_placement(placement)
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
            axis.set_title(title, fontsize=9)
            axis.tick_params(labelbottom=True)
            axis.set_xlabel(label)
            if not np.isfinite(table[name].to_numpy(float)).any():
                axis.text(0.5, 0.5, "not in these networks", transform=axis.transAxes, ha="center")
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
