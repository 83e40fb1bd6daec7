"""Rates of the first step against the width and the depth, the largest stable rates of many steps, and those steps."""

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import PAPER, decimal_ticks, legend_below, looks, panels, style, value_ticks
from theory.stack import TITLES

_SYMBOL = {"width": "width $d$", "depth": "depth $L$"}
_OPTIMIZERS = {"sgd": "SGD", "normalized": "normalized SGD", "adam": r"Adam ($\epsilon\to 0$)", "muon": "Muon"}
PUBLISHED = {"5e-4": 5e-4, "7.0e-4": 7.0e-4, "1e-3": 1e-3}
"""Largest rates of Adam: 5e-4 and 1e-3 of Xiong et al. (2020), 7.0e-4 of Vaswani et al. (2017); d = 512, 6-6."""


def first_step_rates(table: pd.DataFrame) -> Figure:
    """The critical rate of every optimizer, against the width and against the depth where these have several values.

    Lines are large-width theory, filled marks its sampled counterpart with 2 standard errors. Against the width the
    least depth is drawn, against the depth the greatest width. Adam's panels have the rates of published recipes.

    Args:
        table: one row per network and optimizer: placement, width, depth, optimizer, critical_rate of theory (NaN
            where there is no rule), and sampled_rate with sampled_sem (NaN without samples).

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
        has_marks = bool(table["sampled_rate"].notna().any())
        marks = "; marks: networks ± 2 s.e." if has_marks else ""
        published = "; dotted: published rates" if "adam" in optimizers else ""
        figure.supxlabel(f"lines: large-width theory{marks}{published}", fontsize=8)
    return figure


def _panel(axis: Axes, optimizer: str, against: str, rows: pd.DataFrame) -> None:
    for look, (placement, series) in zip(looks(), rows.groupby("placement", sort=False), strict=False):
        x = series.sort_values(against)
        line = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.4}
        axis.plot(x[against], x["critical_rate"], **line, label=TITLES[placement])
        seen = x[x["sampled_rate"].notna()]
        mark = {name: value for name, value in look.items() if name != "linestyle"}
        axis.errorbar(
            seen[against], seen["sampled_rate"], yerr=2 * seen["sampled_sem"], linestyle="none", capsize=2.5,
            **({"markersize": 4.5} | mark),
        )  # fmt: skip
    if optimizer == "adam":
        for name, rate in PUBLISHED.items():
            axis.axhline(rate, **PAPER)
            axis.annotate(name, (0.02, rate), xycoords=("axes fraction", "data"), fontsize=6, va="bottom")
    value_ticks(axis, sorted(set(rows[against])))
    axis.set_yscale("log")  # after it, which takes minor ticks away
    other = "depth" if against == "width" else "width"
    symbol = "L" if other == "depth" else "d"
    axis.set_xlabel(_SYMBOL[against])
    axis.set_title(f"{_OPTIMIZERS.get(optimizer, optimizer)}, ${symbol} = {rows[other].iloc[0]}$")
    axis.legend()


def stable_rates(table: pd.DataFrame, width: int) -> Figure:
    """The largest stable rate of gradient descent against the depth, beside 2/λ of initialization; a panel a loss.

    Marks are medians over networks with the range of the middle half, lines the medians of 2/λ. Where most networks
    have no largest rate there is no mark.

    Args:
        table: of `checks.stacks.stable_rates.table_of_networks`.
        width: of the networks that are drawn.
    """
    rows = table[table["width"] == width]
    losses = list(dict.fromkeys(rows["loss"]))
    with style():
        figure, axes = panels(len(losses), share_y=False)
        for axis, loss in zip(axes, losses, strict=True):
            here = rows[rows["loss"] == loss]
            for shift, (look, (placement, one)) in enumerate(
                zip(looks(), here.groupby("placement", sort=False), strict=False)
            ):
                found = one[one.groupby("depth")["bounded"].transform("mean") > 0.5]
                quartiles = found.groupby("depth")["eta_max"].quantile([0.25, 0.5, 0.75]).unstack()
                depth, middle = quartiles.index.to_numpy(float), quartiles[0.5].to_numpy()
                mark = {name: value for name, value in look.items() if name != "linestyle"}
                axis.errorbar(
                    depth * 1.04 ** (shift - 1.5), middle, linestyle="none", capsize=2.5, label=TITLES[str(placement)],
                    yerr=np.abs(quartiles[[0.25, 0.75]].to_numpy().T - middle), **({"markersize": 4.5} | mark),
                )  # fmt: skip
                curvature = one.groupby("depth")["2/λ"].median()
                line = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.2}
                axis.plot(curvature.index, curvature, **line)
            value_ticks(axis, sorted(set(here["depth"])))
            axis.set_yscale("log")
            axis.set_xlabel("depth $L$")
            axis.set_title(f"{loss}, $d = {width}$")
        axes[0].set_ylabel(r"learning rate $\eta$")
        legend_below(figure, 4, title=r"marks: largest stable rate, quartiles; lines: $2/\lambda$ at initialization")
    return figure


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
            for look, ((placement, width), series) in zip(
                looks(), here.groupby(["placement", "width"], sort=False), strict=False
            ):
                x = series.sort_values("step")
                mean, error = x["mean"].to_numpy(), 2 * x["sem"].to_numpy()
                if name != "loss":
                    x, mean, error = x[mean > 0], mean[mean > 0], error[mean > 0]
                    mean, error = mean**0.5, error / (2 * mean**0.5)
                label = f"{TITLES[str(placement)]}, $d = {width}$"
                axis.errorbar(x["step"], mean, yerr=error, label=label, **({"markersize": 4} | look))
            _limit_lines(axis, limits, name, depth)
            axis.set_yscale("linear" if name == "loss" else "log")
            axis.set_xlabel("step $k$")
            if name != "loss":
                decimal_ticks(axis)
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
