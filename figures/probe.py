"""Figures of a probed PyTorch module: numbers over its layers, and outputs against the width at every step."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.style import (
    SYMBOLS,
    decimal_ticks,
    legend_below,
    message,
    most_changed,
    ordered,
    plain_decades,
    style,
    value_ticks,
)

_LEAST_RANGE = 2.0
# What differs by less over layers and depths is said in words, and has no panels.
_CONSTANT = 1.02


def probe(table: pd.DataFrame) -> Figure:
    """Draw the mean squared activations and gradient norms over a PyTorch module's layers, with error bars.

    The bars are ± 2 standard errors.

    Only the largest width is drawn. If the activations are the same in every layer and at every depth, their value is
    written below the panels instead.

    Args:
        table: a table from `layer_tables.profile_table`, with columns width, depth, part, layer, energy, energy_sem,
            gradient and gradient_sem.
    """
    width = table["width"].max()
    rows = table[table["width"] == width]
    parts = list(dict.fromkeys(rows["part"]))
    labels = {"energy": r"$\|x_l\|^2/d$ after the layer", "gradient": r"norm of the layer's gradient"}
    note = "means over seeds, ± 2 s.e."
    if (energy := rows["energy"]).max() < _CONSTANT * energy.min():
        note += rf"; $\|x_l\|^2/d = {energy.mean():.3g}$ after every layer"
        del labels["energy"]
    gradients = rows[rows["depth"] == rows["depth"].max()].sort_values("layer").groupby("part", sort=False)["gradient"]
    ratios = gradients.last() / gradients.first()
    with style():
        shape = (len(parts), 2) if len(labels) == 2 else (-(-len(parts) // 2), min(2, len(parts)))
        figure = Figure(figsize=(7.0, 0.6 + 2.9 * shape[0]), layout="constrained", dpi=160)
        grid = figure.subplots(*shape, squeeze=False, sharey=len(labels) == 1).reshape(-1, len(labels))
        for axis in grid[len(parts) :].flat:
            axis.remove()
        for axes, part in zip(grid, parts, strict=False):
            for axis, (quantity, label) in zip(axes, labels.items(), strict=True):
                curves = list(rows[rows["part"] == part].groupby("depth"))
                for (depth, curve), look in zip(curves, ordered(len(curves)), strict=True):
                    axis.errorbar(
                        curve["layer"], curve[quantity], yerr=2 * curve[f"{quantity}_sem"], capsize=2, linewidth=1.1,
                        **({"markersize": 4} | look), label=f"$L = {depth}$",
                    )  # fmt: skip
                times = f": last / first {ratios[part]:.2g}" if quantity == "gradient" else ""
                axis.set(yscale="log", xlabel="layer $l$", ylabel=label, title=f"{part}, $d = {width}${times}")
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axis in grid[: len(parts)].flat:
            # What is the same in every layer should look so.
            low, high = axis.get_ylim()
            half = max(_LEAST_RANGE, (high / low) ** 0.5)
            axis.set_ylim((low * high) ** 0.5 / half, (low * high) ** 0.5 * half)
            plain_decades(axis.yaxis)
        if (part := most_changed(ratios)) is not None:
            times = f"the last layer's gradient is {ratios[part]:.2g} times the first's"
            message(figure, f"{part}, $L = {rows['depth'].max()}$: {times}")
        legend_below(figure, 6, note)
    return figure


_MOST_PANELS, _COLUMNS, _LEAST_RANGE = 12, 4, 2.0


def coordinates(table: pd.DataFrame) -> Figure:
    """Draw the mean absolute output of each module against the width, with one line for each optimizer step.

    There is one panel for each module with a matrix.

    Error bars are 2 standard errors. If there are more than twelve modules, twelve evenly spaced ones are drawn.

    Args:
        table: the result of `simulate.modules.coordinates.Stepped.coordinates`, with columns place, width, step, value
            and sem.
    """
    places = list(dict.fromkeys(table["place"]))
    if len(places) > _MOST_PANELS:
        places = [places[round(k * (len(places) - 1) / (_MOST_PANELS - 1))] for k in range(_MOST_PANELS)]
    columns = min(_COLUMNS, len(places))
    rows = -(-len(places) // columns)
    with style():
        figure = Figure(figsize=(2.6 * columns, 0.6 + 2.3 * rows), layout="constrained", dpi=160)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis in axes[len(places) :]:
            axis.remove()
        for axis, place in zip(axes, places, strict=False):
            here = table[table["place"] == place]
            for (step, curve), look in zip(here.groupby("step"), ordered(here["step"].nunique()), strict=True):
                curve = curve.sort_values("width")
                axis.errorbar(
                    curve["width"], curve["value"], yerr=2 * curve["sem"], capsize=2, linewidth=1.1,
                    **({"markersize": 4} | look), label="at the start" if step == 0 else f"after step {step}",
                )  # fmt: skip
            value_ticks(axis, sorted(set(here["width"])))
            axis.set_yscale("log")
            axis.set(title=place, xlabel=SYMBOLS["width"])
            axis.title.set_fontsize(8)
        # Equal slopes should look equal in all panels, and what is the same at every width should look so.
        limits = [axis.get_ylim() for axis in axes[: len(places)]]
        half = max(_LEAST_RANGE, *((high / low) ** 0.5 for low, high in limits))
        for axis, (low, high) in zip(axes, limits, strict=False):
            axis.set_ylim((low * high) ** 0.5 / half, (low * high) ** 0.5 * half)
            decimal_ticks(axis.yaxis)
        for row in range(rows):
            axes[row * columns].set_ylabel("mean $|y|$")
        last = table[table["step"] == table["step"].max()]
        outputs = last.pivot_table(index="width", columns="place", values="value")
        factors = (outputs.iloc[-1] / outputs.iloc[0]).dropna()
        widths = f"from width {outputs.index[0]} to {outputs.index[-1]}"
        if (name := most_changed(factors / factors.median())) is not None:
            change = f"{factors[name]:.2g}-fold {widths}, the others {factors.drop(name).median():.2g}-fold"
            message(figure, f"Outputs of “{name}” change {change}, in step {last['step'].iloc[0]}")
        legend_below(figure, 6, "means over seeds, \u00b1 2 s.e.")
    return figure
