"""Figures of the presets of `gradbounds sweep`: placements of LayerNorm and dropped assumptions."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.style import (
    MEASURED,
    decimal_ticks,
    legend_below,
    message,
    name_ends,
    of_placement,
    pale_line,
    panels,
    plain_decades,
    style,
    value_ticks,
)
from theory.stack import TITLES

_PANELS = {
    "effect": r"last $\|\partial\mathcal{L}/\partial W^2\|_F$, times the paper's",
    "profile": "first layer's gradient, times the last's",
}
_SHIFT = 0.17
UNCHANGED = "nothing"
"""The name of the base network, `checks.stacks.relaxations.UNRELAXED`."""
# A relaxation by which theory moves both numbers by less is named in no row.
_LEAST_EFFECT = 0.1
_MOST_ROWS = 10
_BASE = "the paper's"


def relaxations(table: pd.DataFrame) -> Figure:
    """Draw how much gradients change when assumptions of the paper are dropped, for the largest changes.

    There is one mark for each placement.

    Marks are samples with ± 2 standard errors, wide bars are theory. The base network is on top, followed by at most
    ten assumptions in the order of their effect in theory.

    Args:
        table: a table from `checks.stacks.relaxations.relaxation_table`.
    """
    effects = _effects(table)
    moved = sorted((name for name in effects if effects[name] >= _LEAST_EFFECT), key=lambda name: -effects[name])
    names = [UNCHANGED, *moved[:_MOST_ROWS]]
    height = {name: -k for k, name in enumerate(names)}
    shown = table[table["relaxation"].isin(names)]
    with style():
        figure = Figure(figsize=(7.6, 1.5 + 0.3 * len(names)), layout="constrained", dpi=160)
        axes = figure.subplots(1, len(_PANELS), sharey=True)
        groups = list(shown.groupby("placement", sort=False))
        shifts = np.linspace(_SHIFT, -_SHIFT, len(groups)) if len(groups) > 1 else [0.0]
        for shift, (placement, rows) in zip(shifts, groups, strict=False):
            look = of_placement(placement)
            y = np.array([height[name] for name in rows["relaxation"]]) + shift
            for axis, name in zip(axes, _PANELS, strict=True):
                axis.plot(
                    rows[f"{name}_predicted"], y, linestyle="none", marker="|", markersize=10, markeredgewidth=4,
                    alpha=0.35, color=look["color"],
                )  # fmt: skip
                axis.errorbar(
                    rows[name], y, xerr=2 * rows[f"{name}_sem"], color=look["color"], label=TITLES[str(placement)],
                    **MEASURED,
                )  # fmt: skip
        for axis, title in zip(axes, _PANELS.values(), strict=True):
            axis.set_title(title, fontsize=9)
            axis.set_xscale("log")
            axis.axvline(1.0, color="#777777", linestyle=":", linewidth=1)
            decimal_ticks(axis.xaxis)
            axis.grid(axis="y", visible=True)
        labels = [_BASE if name == UNCHANGED else name.replace("W^O", "$W^O$") for name in names]
        axes[0].set_yticks([height[name] for name in names], labels)
        axes[0].set_ylim(-len(names) + 0.4, 0.6)
        every = len(effects) - 1
        rest = every - len(moved)
        message(figure, f"{len(moved)} of {every} dropped assumptions move a gradient by more than {_LEAST_EFFECT:.0%}")
        hidden = f" and {len(moved) - _MOST_ROWS} smaller ones" if len(moved) > _MOST_ROWS else ""
        about = f"marks: random networks (± 2 s.e.); pale: theory; not shown: {rest} without effect{hidden}"
        legend_below(figure, 4, about)
    return figure


def _effects(table: pd.DataFrame) -> dict[str, float]:
    """Return each relaxation's largest effect on gradients in theory, as |ln| of the ratio to the base network."""
    base = table[table["relaxation"] == UNCHANGED].set_index("placement")
    effects: dict[str, float] = {}
    for _, row in table.iterrows():
        moves = [0.0]
        for name in _PANELS:
            before = base[f"{name}_predicted"].get(row["placement"], np.nan)
            moves.append(abs(np.log(row[f"{name}_predicted"] / before)))
        effects[row["relaxation"]] = max(effects.get(row["relaxation"], 0.0), float(np.nanmax(moves)))
    return effects


# The factor between the ends of a curve below which it counts as flat.
_FLAT = 1.2


def placements(norms: pd.DataFrame) -> Figure:
    """Draw the gradient norm of W2 against the depth and over the layers, for several LayerNorm placements.

    The norm ‖∂L/∂W²‖_F of the last layer is drawn against L, and all layers for the deepest networks; lines are theory.

    Args:
        norms: a table from `checks.stacks.placements.layer_norms`.
    """
    with style():
        figure, (against, over) = panels(2)
        figure.set_size_inches(7.6, 3.9)
        deepest = norms["depth"].max()
        for placement, rows in norms.groupby("placement", sort=False):
            color = of_placement(placement)["color"]
            last = rows[rows["layer"] == rows["depth"]].sort_values("depth")
            profile = rows[rows["depth"] == deepest].sort_values("layer")
            for axis, table, x in ((against, last, "depth"), (over, profile, "layer")):
                pale_line(axis, table[x], table["predicted"], color)
                axis.errorbar(table[x], table["norm"], yerr=2 * table["sem"], color=color, zorder=3, **MEASURED)
        first = norms.iloc[0]
        against.set(
            yscale="log", xlabel="depth $L$", ylabel=r"$\|\partial\mathcal{L}/\partial W^{2}\|_F$  (rms over draws)",
            title=f"last layer, flat: {_finding(norms[norms['layer'] == norms['depth']], 'depth')}",
        )  # fmt: skip
        value_ticks(against, sorted(set(norms["depth"])))
        plain_decades(against.yaxis)
        over.set(xlabel="layer $l$", title=f"every layer at $L = {deepest}$")
        over.set_xticks(np.unique(np.linspace(1, deepest, min(deepest, 8)).astype(int)))
        last = norms[(norms["depth"] == deepest) & (norms["layer"] == deepest)]
        named = zip(last["placement"].map(str), last["predicted"], strict=True)
        name_ends(over, [(deepest, end, TITLES[name], of_placement(name)["color"]) for name, end in named])
        message(figure, f"Flat over {deepest} layers: {_finding(norms[norms['depth'] == deepest], 'layer')}")
        about = f"$d = {first['width']}$, $n = {first['tokens']}$; marks: random networks (± 2 s.e.); pale: theory"
        figure.supxlabel(about, fontsize=8)
    return figure


def _finding(rows: pd.DataFrame, against: str) -> str:
    """Return the placements whose theory is flat over the layers or the depths, and the direction of the others."""
    ends = rows.sort_values(against).groupby("placement", sort=False)["predicted"]
    ratios = ends.first() / ends.last()
    flat = [TITLES[str(name)] for name, ratio in ratios.items() if 1 / _FLAT < ratio < _FLAT]
    rest = "the others fall" if ratios.min() > 1 / _FLAT else "the others fall or rise"
    return f"{', '.join(flat) or 'none'}; {rest}"
