"""A figure of the coordinate check: mean absolute outputs of modules against the width, one line for each step."""

import pandas as pd
from matplotlib.figure import Figure

from figures.style import SYMBOLS, decimal_ticks, legend_below, message, most_changed, ordered, style, value_ticks

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
