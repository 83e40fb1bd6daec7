"""The largest stable rates of many steps of gradient descent against the depth."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.style import legend_below, of_placement, panels, style, value_ticks
from theory.stack import TITLES


def stable_rates(table: pd.DataFrame, width: int) -> Figure:
    """The largest stable rate of gradient descent against the depth, beside 2/λ of initialization; a panel a loss.

    Marks are medians over networks with the range of the middle half, lines the medians of 2/λ. Where most networks
    have no largest rate there is no mark.

    Args:
        table: of `predictors.with_bounds`.
        width: of the networks that are drawn.
    """
    rows = table[table["width"] == width]
    losses = list(dict.fromkeys(rows["loss"]))
    with style():
        figure, axes = panels(len(losses), share_y=False)
        figure.set_size_inches(3.8 * len(losses), 4.2)
        for axis, loss in zip(axes, losses, strict=True):
            here = rows[rows["loss"] == loss]
            for shift, (placement, group) in enumerate(here.groupby("placement", sort=False)):
                look = of_placement(placement)
                bounded = group[group.groupby("depth")["bounded"].transform("mean") > 0.5]
                quartiles = bounded.groupby("depth")["eta_max"].quantile([0.25, 0.5, 0.75]).unstack()
                depth, middle = quartiles.index.to_numpy(float), quartiles[0.5].to_numpy()
                mark = {name: value for name, value in look.items() if name != "linestyle"}
                axis.errorbar(
                    depth * 1.04 ** (shift - 1.5), middle, linestyle="none", capsize=2.5, label=TITLES[str(placement)],
                    yerr=np.abs(quartiles[[0.25, 0.75]].to_numpy().T - middle), **({"markersize": 4.5} | mark),
                )  # fmt: skip
                curvature = group.groupby("depth")["2/λ"].median()
                line = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.2}
                axis.plot(curvature.index, curvature, **line)
            value_ticks(axis, sorted(set(here["depth"])))
            axis.set_yscale("log")
            axis.set_xlabel("depth $L$")
            axis.set_title(f"{loss}, $d = {width}$")
        axes[0].set_ylabel(r"learning rate $\eta$")
        legend_below(figure, 4, title=r"marks: largest stable rate, quartiles; lines: $2/\lambda$ at initialization")
    return figure
