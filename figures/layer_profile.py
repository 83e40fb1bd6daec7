"""Gradient norms over the layers, per weight, for both placements."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.registry import run_figure
from figures.style import PAPER, WEIGHTS, legend_below, panels, plain_decades, style
from theory.paper.claims import printed_profile
from theory.stack import TITLES


@run_figure(
    "gradient_over_layers",
    needs="layer_profiles",
    title="Do gradients decay toward the input in Post-LN, and are they equal in Pre-LN?",
    caption=(
        "Gradient norms of the three matrices in every layer. Points are samples with two standard errors, lines "
        "are large-width theory, the dotted line is what appendix F says of W2. It is wrong in both placements: "
        "Post-LN's gradients are flat, Pre-LN's fall with the layer."
    ),
    claims=("F1", "F2"),
)
def layer_profile(table: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> Figure:
    """Root mean square of ‖∂L/∂W‖_F in every layer, samples and large-width theory, with the paper's law for W².

    For the paper's placements appendix F's laws are drawn through the predicted last layer: (2/3)^((L−l)/2) for
    Post-LN, a constant for Pre-LN.

    Args:
        table: the comparison of one cell per placement: columns placement, width, depth, tokens, quantity, layer,
            mean, sem, predicted.
        axes: what to draw into, one entry for each placement in the order of the panels, under the style that is set;
            None makes a figure.

    Raises:
        ValueError: the table holds no gradient norms, or there are other than one of axes for each placement.
    """
    rows = table[table["quantity"].isin(WEIGHTS)]
    if rows.empty:
        raise ValueError("table must hold grad_sq_W1, grad_sq_W2 or another matrix of some cell, got none of them.")
    placements = [p for p in TITLES if p in set(rows["placement"])]
    with style(axes):
        figure, drawn = panels(len(placements), axes=axes)
        for axis, placement in zip(drawn, placements, strict=True):
            here = rows[rows["placement"] == placement]
            for name, look in WEIGHTS.items():
                profile = here[here["quantity"] == name].sort_values("layer")
                if profile.empty:
                    continue
                norm = np.sqrt(profile["mean"])
                axis.plot(
                    profile["layer"], np.sqrt(profile["predicted"]), color=look["color"], linewidth=1.3,
                    linestyle="--" if name.startswith("grad_sq_X") else "-",
                )  # fmt: skip
                # d√m = dm / (2√m), twice for two standard errors
                axis.errorbar(
                    profile["layer"], norm, yerr=profile["sem"] / norm, linestyle="none", markersize=4.5, capsize=2.5,
                    elinewidth=1, **look,
                )  # fmt: skip
            last = here[here["quantity"] == "grad_sq_W2"].sort_values("layer")
            layers = last["layer"].to_numpy()
            if (decay := printed_profile(placement, layers[-1])) is not None:
                decay = decay[layers - 1] * np.sqrt(last["predicted"].iloc[-1])
                axis.plot(layers, decay, label="appendix F, $W^2$", **PAPER)
            first = here.iloc[0]
            axis.set(
                yscale="log",
                xlabel="layer $l$",
                title=f"{TITLES[placement]}, $d = {first['width']}$, $n = {first['tokens']}$",
            )
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            plain_decades(axis.yaxis)
        drawn[0].set_ylabel(r"$\|\partial\mathcal{L}/\partial W^{l}\|_F$  (rms, ± 2 s.e.)")
        legend_below(figure, 4, "points: samples; lines: large-width theory", axes=axes)
    return figure
