"""How the draws scatter around the predicted mean, in the first and in the last layer."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.registry import run_figure
from figures.style import legend_below, ordered, panels, plain_decades, style
from theory.stack import TITLES

_LOOK = [{name: look[name] for name in ("color", "linestyle")} for look in ordered(2)]


@run_figure(
    "distribution_of_draws",
    needs="layer_draws",
    title="How much does a gradient differ from one network to the next?",
    caption=(
        "Squared gradient norms of the draws over the norm that theory predicts, of the first and of the last "
        "layer. The dotted line is the predicted mean, the points with bars are the samples' means with two "
        "standard errors."
    ),
    claims=("T1", "F1", "F2"),
)
def distribution(table: pd.DataFrame) -> Figure:
    """Histograms of ‖∂L/∂W^{2,l}‖_F² over draws, one panel per placement, each layer in units of its prediction.

    The vertical line is the predicted mean, the points the sample means with 2 standard errors. A mean to the right of
    the bulk is a tail at work. Draws of gradient 0 count in means and shares, and have no place on the axis.

    Args:
        table: columns placement, width, depth, tokens, layer, value, predicted; one row per draw and layer.
    """
    chosen = list(table.groupby("placement", sort=False))
    with style():
        figure, axes = panels(len(chosen), share_x=True)
        for axis, (placement, rows) in zip(axes, chosen, strict=True):
            ratios = rows["value"] / rows["predicted"]
            # In a narrow network all units of a draw may be off: its gradient is 0, which no logarithmic axis shows.
            edges = np.exp(np.histogram_bin_edges(np.log(ratios[ratios > 0]), bins="fd"))
            counts = []
            for look, (layer, here) in zip(_LOOK, rows.groupby("layer"), strict=False):
                share = np.histogram(ratios[here.index], bins=edges)[0] / len(here)
                counts.append(share.max())
                axis.stairs(share, edges, linewidth=1.4, label=f"layer {layer}", **look)
            for k, (look, (layer, here)) in enumerate(zip(_LOOK, rows.groupby("layer"), strict=False)):
                of_layer = ratios[here.index]
                axis.errorbar(
                    of_layer.mean(), (1.08 + 0.09 * k) * max(counts), xerr=2 * of_layer.sem(), color=look["color"],
                    marker="os"[k], markersize=4, capsize=2.5, linestyle="none",
                    label=f"mean of layer {layer} (± 2 s.e.)",
                )  # fmt: skip
            axis.axvline(1.0, color="#3b3b3b", linewidth=1.2, linestyle=":", label="predicted mean")
            first = rows.iloc[0]
            axis.set(
                xscale="log",
                xlabel=r"$\|\partial\mathcal{L}/\partial W^{2,l}\|_F^2$ over its predicted mean",
                title=f"{TITLES[placement]}, $d = {first['width']}$, $L = {first['depth']}$, $n = {first['tokens']}$",
            )
            plain_decades(axis.xaxis)
        axes[0].set_ylabel(f"share of {table.groupby(['placement', 'layer']).size().max()} draws")
        legend_below(figure)
    return figure
