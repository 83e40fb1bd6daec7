"""A probed module: energy of the stream and gradients over the layers, one curve per depth."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.style import legend_below, looks, plain_decades, style

_LEAST_RANGE = 2.0


def probe(table: pd.DataFrame) -> Figure:
    """Mean energy of every layer's output, and root mean square of its gradient, ± 2 standard errors, at one width.

    Args:
        table: `checks.models.probe.profile_table`: columns width, depth, part, layer, energy, energy_sem, gradient,
            gradient_sem; the largest width is drawn.
    """
    width = table["width"].max()
    rows = table[table["width"] == width]
    parts = list(dict.fromkeys(rows["part"]))
    labels = {"energy": r"$\|x_l\|^2/d$ after the layer", "gradient": r"norm of the layer's gradient"}
    with style():
        figure = Figure(figsize=(7.0, 0.4 + 2.7 * len(parts)), layout="constrained", dpi=160)
        grid = figure.subplots(len(parts), 2, squeeze=False)
        for axes, part in zip(grid, parts, strict=True):
            for axis, (quantity, label) in zip(axes, labels.items(), strict=True):
                for (depth, curve), look in zip(rows[rows["part"] == part].groupby("depth"), looks(), strict=False):
                    axis.errorbar(
                        curve["layer"], curve[quantity], yerr=2 * curve[f"{quantity}_sem"], capsize=2, linewidth=1.1,
                        **({"markersize": 4} | look), label=f"$L = {depth}$",
                    )  # fmt: skip
                axis.set(yscale="log", xlabel="layer $l$", ylabel=label, title=f"{part}, $d = {width}$")
                axis.xaxis.set_major_locator(MaxNLocator(integer=True))
                # What is the same in every layer should look so.
                middle = float(rows.loc[rows["part"] == part, quantity].median())
                low, high = axis.get_ylim()
                axis.set_ylim(min(low, middle / _LEAST_RANGE), max(high, middle * _LEAST_RANGE))
                plain_decades(axis.yaxis)
        legend_below(figure, 6, "means over seeds, ± 2 s.e.")
    return figure
