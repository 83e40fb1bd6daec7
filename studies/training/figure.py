"""Several steps of training: quantities against the step, the coordinate check, and placements' losses side by side."""

import itertools

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import decimal_ticks, legend_below, looks, of_placement, ordered, panels, style, value_ticks
from theory.stack import TITLES


def training_steps(table: pd.DataFrame, limits: pd.DataFrame | None = None) -> Figure:
    """The loss and the changes of features and logits at every step; a line a width and placement.

    Of features the last layer's; changes are roots of mean squares since step 0. Bars are 2 standard errors. The
    greatest depth is drawn. Bands without marks are limits at d = ∞ with their 95% intervals.

    Args:
        table: one row per network, quantity, step and layer: placement, width, depth, quantity (loss,
            feature_change_sq, logit_change_sq), step, layer (0 for the network's), mean, sem.
        limits: one row per placement, depth, quantity and step: limit, low, high, verdict; those that fail are not
            drawn.
    """
    rows = table[table["depth"] == table["depth"].max()]
    depth = rows["depth"].iloc[0]
    drawn = {
        "loss": (0, "loss"),
        "feature_change_sq": (depth, "change of features"),
        "logit_change_sq": (0, "change of logits"),
    }
    with style():
        figure, axes = panels(len(drawn), share_y=False)
        for axis, (name, (layer, title)) in zip(axes, drawn.items(), strict=True):
            here = rows[(rows["quantity"] == name) & (rows["layer"] == layer)]
            marks = dict(zip(sorted(set(here["width"])), looks(), strict=False))
            for (placement, width), series in here.groupby(["placement", "width"], sort=False):
                # Colour tells the placement, mark and dashes the width.
                look = marks[width] | {"color": of_placement(placement)["color"]}
                x = series.sort_values("step")
                mean, error = x["mean"].to_numpy(), 2 * x["sem"].to_numpy()
                if name != "loss":
                    x, mean, error = x[mean > 0], mean[mean > 0], error[mean > 0]
                    mean, error = mean**0.5, error / (2 * mean**0.5)
                label = f"{TITLES[str(placement)]}, $d = {width}$"
                axis.errorbar(x["step"], mean, yerr=error, label=label, **(look | {"markersize": 3.5}))
            _limit_lines(axis, limits, name, depth)
            axis.set_yscale("linear" if name == "loss" else "log")
            axis.set_xlabel("step $k$")
            if name != "loss":
                decimal_ticks(axis.yaxis)
            axis.set_title(f"{title}, $L = {depth}$" if name == "loss" else title)
        axes[0].set_ylabel("cross-entropy in nats")
        axes[1].set_ylabel(r"$\Vert h_k-h_0\Vert/\Vert h_0\Vert$, last layer")
        axes[2].set_ylabel("root mean square")
        legend_below(figure, 4)
    return figure


def _limit_lines(axis: Axes, limits: pd.DataFrame | None, quantity: str, depth: int) -> None:
    """A line and a band for each placement."""
    if limits is None or not len(limits):
        return
    kept = limits["quantity"].eq(quantity) & limits["depth"].eq(depth) & limits["verdict"].ne("fails")
    lines = itertools.cycle(["-", "--", ":", "-."])
    for line, (placement, series) in zip(lines, limits[kept].groupby("placement", sort=False), strict=False):
        x = series.sort_values("step")
        label = rf"{TITLES[str(placement)]}, $d = \infty$"
        axis.plot(x["step"], x["limit"], color="black", linestyle=line, linewidth=1.0, label=label)
        axis.fill_between(x["step"], x["low"], x["high"], color="black", alpha=0.15, linewidth=0)


def coordinate_check(table: pd.DataFrame, exponents: pd.DataFrame | None = None, *, curves: int = 4) -> Figure:
    """Changes of features and of logits against the width, a line a step: a column for each placement.

    Flat lines are what a parametrization with features' learning has. Changes are roots of mean squares since step 0,
    with 2 standard errors; features are the last layer's, relative to their size. The greatest depth is drawn.

    Args:
        table: as that of `training_steps`, with at least two widths.
        exponents: one row per placement, depth, quantity and step: exponent, low, high in d, which titles name.
        curves: how many steps are drawn, from the first to the last, about evenly on a log axis.

    Raises:
        ValueError: there are fewer than two widths.
    """
    rows = table[(table["depth"] == table["depth"].max()) & (table["step"] > 0)]
    if rows["width"].nunique() < 2:
        raise ValueError(f"table must have at least two widths, got {rows['width'].nunique()}.")
    depth, last = rows["depth"].iloc[0], int(rows["step"].max())
    steps = sorted({round(last ** (k / max(curves - 1, 1))) for k in range(curves)} | {last})
    placements = list(dict.fromkeys(rows["placement"]))
    drawn = {
        "feature_change_sq": (depth, r"$\Vert h_k-h_0\Vert/\Vert h_0\Vert$, last layer"),
        "logit_change_sq": (0, "logits: root mean square change"),
    }
    with style():
        figure = Figure(figsize=(max(3.5 * len(placements), 4.5), 6.6), layout="constrained", dpi=160)
        grid = figure.subplots(len(drawn), len(placements), sharey="row", squeeze=False)
        for line, (quantity, (layer, title)) in zip(grid, drawn.items(), strict=True):
            for axis, placement in zip(line, placements, strict=True):
                chosen = rows[rows["quantity"].eq(quantity) & rows["layer"].eq(layer) & rows["placement"].eq(placement)]
                for look, step in zip(ordered(len(steps)), steps, strict=True):
                    series = chosen[chosen["step"].eq(step) & chosen["mean"].gt(0)].sort_values("width")
                    root = series["mean"] ** 0.5
                    bars = series["sem"] / root
                    axis.errorbar(series["width"], root, yerr=bars, label=f"step {step}", **(look | {"markersize": 4}))
                powers = [_power(exponents, placement, depth, quantity, step) for step in steps]
                axis.set_title("\n".join(power for power in powers if power), fontsize=8)
                axis.set_xlabel("width $d$")
                value_ticks(axis, sorted(set(rows["width"])))
                axis.set_yscale("log")  # after `value_ticks`, which takes minor ticks away
                decimal_ticks(axis.yaxis)
            line[0].set_ylabel(title)
        for axis, placement in zip(grid[0], placements, strict=True):
            axis.set_title("\n".join([f"{TITLES[str(placement)]}, $L = {depth}$", axis.get_title()]).strip())
        legend_below(figure, 4, "means over networks, ± 2 s.e.")
    return figure


def _power(exponents: pd.DataFrame | None, placement: object, depth: int, quantity: str, step: int) -> str:
    """What a panel says of the fitted power of d at a step, where there is one."""
    if exponents is None or not len(exponents):
        return ""
    same = exponents[
        exponents["placement"].eq(placement)
        & exponents["depth"].eq(depth)
        & exponents["quantity"].eq(quantity)
        & exponents["step"].eq(step)
    ]
    if len(same) != 1:
        return ""
    row = same.iloc[0]
    return rf"step {step}: $d^{{{row['exponent']:.2f}\pm{(row['high'] - row['low']) / 2:.2f}}}$"


def placement_losses(table: pd.DataFrame, rates: str) -> Figure:
    """The loss at every step at the greatest width, a line a placement, a panel a depth; bars are 2 standard errors.

    Args:
        table: as that of `training_steps`.
        rates: at which rates, for the axis of steps.
    """
    rows = table[(table["width"] == table["width"].max()) & table["quantity"].eq("loss")]
    width, depths = rows["width"].iloc[0], sorted(set(rows["depth"]))
    with style():
        figure, axes = panels(len(depths))
        for axis, depth in zip(axes, depths, strict=True):
            chosen = rows[rows["depth"] == depth].groupby("placement", sort=False)
            for placement, series in chosen:
                look = of_placement(placement)
                x = series.sort_values("step")
                every = -(-len(x) // 12)
                axis.errorbar(
                    x["step"], x["mean"], yerr=2 * x["sem"], label=TITLES[str(placement)], errorevery=every,
                    **(look | {"markersize": 4, "markevery": every, "linewidth": 1.2}),
                )  # fmt: skip
            axis.set_yscale("log")
            decimal_ticks(axis.yaxis)
            axis.set_xlabel(f"step $k$, {rates}")
            axis.set_title(f"$d = {width}$, $L = {depth}$")
        axes[0].set_ylabel("cross-entropy in nats")
        legend_below(figure, 4)
    return figure
