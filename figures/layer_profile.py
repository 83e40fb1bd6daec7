"""A figure of gradient norms over the layers, compared with the law that the paper states."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.registry import run_figure
from figures.style import (
    MEASURED,
    PAPER,
    WEIGHTS,
    decimal_ticks,
    message,
    name_ends,
    of_placement,
    pale_line,
    panels,
    style,
)
from theory.paper.claims import printed_profile
from theory.stack import TITLES


@run_figure(
    "gradient_over_layers",
    needs="layer_profiles",
    title="Do gradients decay toward the input in Post-LN, and are they equal in Pre-LN?",
    caption=(
        "Everybody believes the dotted line: appendix F's law for the gradient of W2. Random networks say otherwise. "
        "Post-LN's gradients are flat, and Pre-LN's fall with the layer. Marks are samples with two standard errors, "
        "the wide pale lines are large-width theory."
    ),
    claims=("F1", "F2"),
)
def layer_profile(table: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> Figure:
    """Draw the gradient norm of every layer: samples, large-width theory, and the law that the paper states.

    Norms are root mean squares. Several placements share a panel for W² only; one placement shows every matrix.
    Appendix F's laws are drawn through the predicted last layer: (2/3)^((L−l)/2) for Post-LN, a constant for Pre-LN.

    Args:
        table: a `comparison` of one network per placement, with columns placement, width, depth, tokens, quantity,
            layer, mean, sem, predicted.
        axes: one matplotlib axis to draw into, with the style that is set; None makes a new figure.

    Raises:
        ValueError: the table holds no gradient norms, or axes have another number of entries.
    """
    rows = table[table["quantity"].isin(WEIGHTS)]
    if rows.empty:
        raise ValueError("table must hold grad_sq_W1, grad_sq_W2 or another matrix of some cell, got none of them.")
    placements = [p for p in TITLES if p in set(rows["placement"])]
    is_one = len(placements) == 1
    with style(axes):
        figure, (axis,) = panels(1, axes=axes)
        if axes is None:
            figure.set_size_inches(6.4, 3.6)
        ends, has_law = [], False
        for placement in placements:
            here = rows[rows["placement"] == placement]
            for name, look in WEIGHTS.items() if is_one else [("grad_sq_W2", WEIGHTS["grad_sq_W2"])]:
                profile = here[here["quantity"] == name].sort_values("layer")
                if profile.empty:
                    continue
                color = look["color"] if is_one else of_placement(placement)["color"]
                layers = profile["layer"].to_numpy()
                norm, predicted = np.sqrt(profile["mean"]), np.sqrt(profile["predicted"])
                pale_line(axis, layers, predicted, color)
                # d√m = dm / (2√m), twice for two standard errors
                axis.errorbar(layers, norm, yerr=profile["sem"] / norm, color=color, **MEASURED)
                ends.append((layers[-1], predicted.iloc[-1], look["label"] if is_one else TITLES[placement], color))
                if name == "grad_sq_W2" and (decay := printed_profile(placement, layers[-1])) is not None:
                    law = decay[layers - 1] * predicted.iloc[-1]
                    axis.plot(layers, law, **PAPER | {"color": color})
                    axis.annotate(
                        "appendix F", (layers[0], law[0]), (9, -2), textcoords="offset points", va="top", color=color,
                        fontsize=8,
                    )  # fmt: skip
                    has_law = True
        first = rows.iloc[0]
        axis.set(yscale="log", xlabel="layer $l$", xlim=(0.5, None))
        axis.margins(y=0.1)  # a law's name is below its line
        axis.set_ylabel(rf"$\|\partial\mathcal{{L}}/\partial W^{{{'l' if is_one else '2,l'}}}\|_F$  (rms over draws)")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        decimal_ticks(axis.yaxis)
        name_ends(axis, ends)
        if has_law:
            message(figure, "Everybody believes the dotted line", axes=axes)
        elif axes is None:
            message(figure, f"{TITLES[placements[0]]}: gradients over the layers")
        if axes is None:
            about = f"$d = {first['width']}$, $n = {first['tokens']}$; marks: random networks (± 2 s.e.); pale: theory"
            figure.supxlabel(about + "; dotted: appendix F" * has_law, fontsize=8)
    return figure
