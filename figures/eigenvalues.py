"""Eigenvalues of curvature: the largest of every seed, beside theory and as ratios; how many lie further out."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import legend_below, of_placement, ordered, panels, plain_decades, style, value_ticks
from theory.stack import TITLES

_MATRICES = {"hessian": "Hessian", "gauss-newton": "Gauss-Newton matrix"}
# Of counts.
_FLOOR = 0.5


def eigenvalues_of_seeds(table: pd.DataFrame) -> Figure:
    """The largest eigenvalue of every seed, of both matrices, and the size of the Hessian's most negative one.

    Args:
        table: one row per placement, matrix ("gauss-newton" or "hessian") and seed: largest, and smallest, NaN where
            it was not measured.
    """
    shown = [("gauss-newton", "largest", "Gauss-Newton,\nlargest"), ("hessian", "largest", "Hessian,\nlargest"),
             ("hessian", "smallest", "Hessian,\nmost negative")]  # fmt: skip
    with style():
        figure, (axis,) = panels(1)
        figure.set_size_inches(5.6, 3.4)
        for placement, rows in table.groupby("placement", sort=False):
            look = of_placement(placement) | {"linestyle": "none", "markersize": 6}
            shift = -0.1 if placement == "post" else 0.1
            for place, (matrix, end, _) in enumerate(shown):
                values = rows.loc[rows["matrix"] == matrix, end].abs()
                label = TITLES[str(placement)] if place == 0 else None
                axis.plot([place + shift] * len(values), values, label=label, **look)
        axis.set(yscale="log", ylabel="size of the eigenvalue", xlim=(-0.5, len(shown) - 0.5))
        axis.set_xticks(range(len(shown)), [name for *_, name in shown])
        plain_decades(axis.yaxis)
        legend_below(figure, 2, "a mark a network")
    return figure


def eigenvalues_beside_theory(table: pd.DataFrame) -> Figure:
    """The Gauss-Newton matrix's largest eigenvalue against the depth at the greatest width, and against the width.

    Args:
        table: one row per placement, width and depth: largest, sem and predicted.
    """
    with style():
        figure, axes = panels(2)
        _against(axes[0], table[table["width"] == table["width"].max()], "depth", "width")
        _against(axes[1], table[table["depth"] == table["depth"].min()], "width", "depth")
        axes[0].set_ylabel("largest eigenvalue")
        plain_decades(axes[0].yaxis)
        legend_below(figure, 4, "marks: networks ± 2 s.e.; wide lines: theory")
    return figure


def _against(axis: Axes, rows: pd.DataFrame, against: str, other: str) -> None:
    letters = {"depth": "L", "width": "d"}
    for placement, line in rows.groupby("placement", sort=False):
        look = of_placement(placement)
        axis.plot(line[against], line["predicted"], color=look["color"], linewidth=4, alpha=0.3)
        axis.errorbar(
            line[against], line["largest"], yerr=2 * line["sem"], capsize=2.5, label=TITLES[str(placement)],
            **look | {"linestyle": "none", "markersize": 5},
        )  # fmt: skip
    axis.set(
        yscale="log",
        xlabel=f"{against} ${letters[against]}$",
        title=f"at ${letters[other]} = {rows[other].iloc[0]}$",
    )
    value_ticks(axis, sorted({float(size) for size in rows[against]}))


def eigenvalue_ratios(table: pd.DataFrame) -> Figure:
    """Post-LN's largest eigenvalue over Pre-LN's against the depth, with intervals; a panel a matrix.

    Args:
        table: one row per matrix, width and depth: ratio, low and high.
    """
    with style():
        figure, axes = panels(table["matrix"].nunique())
        figure.set_size_inches(7.4, 3.8)
        depths = sorted(set(table["depth"]))
        for axis, (matrix, rows) in zip(axes, table.groupby("matrix", sort=False), strict=True):
            sizes = list(rows.groupby("width"))
            for number, (look, (width, line)) in enumerate(zip(ordered(len(sizes)), sizes, strict=True)):
                # Beside one another, as the intervals overlap.
                places = line["depth"] * 1.06 ** (number - (len(sizes) - 1) / 2)
                axis.errorbar(
                    places, line["ratio"], yerr=[line["ratio"] - line["low"], line["high"] - line["ratio"]],
                    capsize=2.5, label=f"$d = {width}$", **look | {"linestyle": "none", "markersize": 5},
                )  # fmt: skip
            axis.axhline(1.0, color="#777777", linestyle=":", linewidth=1.2)
            value_ticks(axis, [float(depth) for depth in depths])
            axis.set(xlabel="depth $L$", title=str(matrix), xlim=(depths[0] * 0.8, depths[-1] * 1.25))
            axis.set_yscale("log")
        axes[0].set_ylabel("largest eigenvalue,\nPost-LN over Pre-LN")
        plain_decades(axes[0].yaxis)
        legend_below(figure, 4, "95% intervals over seeds; dotted: the same in both")
    return figure


def eigenvalues_further_out(table: pd.DataFrame, said: str) -> Figure:
    """How many eigenvalues lie at or beyond each, counted from both ends; a panel a matrix, a line a seed.

    Args:
        table: one row per placement, matrix ("gauss-newton" or "hessian"), seed, end (1 or -1) and node, from the
            outermost inwards: without and through, the counts without that node's and with it.
        said: of lines and marks, in the legend.
    """
    with style():
        figure, axes = panels(2)
        figure.set_size_inches(7.4, 3.8)
        for axis, (matrix, name) in zip(axes, _MATRICES.items(), strict=True):
            rows = table[table["matrix"] == matrix]
            # Gauss-Newton's lower end is the heaviest node alone.
            rows = rows if matrix == "hessian" else rows[rows["end"] == 1]
            for (placement, _, _), line in rows.groupby(["placement", "seed", "end"], sort=False):
                # Up at each node: what the probe counts there lies between the two. An eigenvalue that it hardly has
                # a component of is still one, and stands on the axis.
                axis.plot(
                    line["node"].repeat(2), line[["without", "through"]].clip(lower=_FLOOR).to_numpy().ravel(),
                    label=TITLES[str(placement)], markevery=(1, 2), clip_on=False, zorder=3,
                    **of_placement(placement) | {"markersize": 3, "linewidth": 0.9},
                )  # fmt: skip
            axis.set(yscale="log", ylim=(_FLOOR, None), xlabel="eigenvalue", title=name)
        axes[0].set_ylabel("eigenvalues at or beyond it")
        legend_below(figure, 2, said)
    return figure
