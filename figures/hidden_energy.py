"""Hidden-state energy over the layers inside Lemma 2's band."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.registry import run_figure
from figures.style import MEASURED, PAPER, PREDICTED, of_placement, panels, style
from theory.paper.claims import CLAIMS
from theory.stack import TITLES


@run_figure(
    "hidden_energy",
    needs="layer_profiles",
    title="Are hidden states as long as Lemma 2 says?",
    caption=(
        "The mean squared length of a hidden state over d in every layer. Dots are samples with two standard "
        "errors, the line is large-width theory. Lemma 2 has 3/2 for Post-LN and the grey band for Pre-LN."
    ),
    claims=("L2a", "L2b"),
)
def hidden_energy(table: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> Figure:
    """E‖x‖²/d after every layer, samples and large-width theory, against Lemma 2.

    Post-LN: the energy before the layer's last LayerNorm (3/2 by the lemma). Pre-LN: the stream after l layers, with
    the band (1 + l/2) to (1 + 3l/2).

    Args:
        table: the comparison of one cell per placement: columns placement, width, tokens, quantity, layer, mean, sem,
            predicted.
        axes: what to draw into, one entry for each placement in the order of the panels, under the style that is set;
            None makes a figure.

    Raises:
        ValueError: the table holds no hidden energy, or there are other than one of axes for each placement.
    """
    rows = table[table["quantity"] == "hidden_energy"]
    if rows.empty:
        raise ValueError("table must hold hidden_energy of some cell, got none.")
    placements = [p for p in TITLES if p in set(rows["placement"])]
    energy = float(CLAIMS["L2a"].numbers["energy"])
    least, most = (float(CLAIMS["L2b"].numbers[end]) for end in ("least", "most"))
    with style(axes):
        figure, drawn = panels(len(placements), share_y=False, axes=axes)
        for axis, placement in zip(drawn, placements, strict=True):
            here = rows[rows["placement"] == placement].sort_values("layer")
            layer, color = here["layer"].to_numpy(), of_placement(placement)["color"]
            if placement == "pre":
                axis.fill_between(
                    layer,
                    1 + least * layer,
                    1 + most * layer,
                    color="#bbbbbb",
                    alpha=0.45,
                    linewidth=0,
                    label="Lemma 2",
                )
            elif placement == "post":
                axis.axhline(energy, label="Lemma 2", **PAPER)
                # A flat line needs a frame, or noise would fill the panel.
                reach = float(max(0.1, 1.3 * ((here["mean"] - energy).abs() + 2 * here["sem"]).max()))
                axis.set_ylim(energy - reach, energy + 1.5 * reach)
            axis.plot(layer, here["predicted"], label="large-width theory", color=color, **PREDICTED)
            axis.errorbar(
                layer, here["mean"], yerr=2 * here["sem"], label="samples (± 2 s.e.)", color=color, **MEASURED
            )
            first = here.iloc[0]
            symbol = (
                r"$\mathbb{E}\|x^{5}_{l}\|^2/d$" if placement == "post" else r"$\mathbb{E}\|x\|^2/d$ after $l$ layers"
            )
            axis.set(
                xlabel="layer $l$",
                ylabel=symbol,
                title=f"{TITLES[placement]}, $d = {first['width']}$, $n = {first['tokens']}$",
            )
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.legend(loc="upper left")
    return figure
