"""The figure of the preset `compare` of `gradbounds sweep`: placements of LayerNorm."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.style import (
    MEASURED,
    message,
    name_ends,
    of_placement,
    pale_line,
    panels,
    plain_decades,
    style,
    value_ticks,
)
from theory.stack import TITLES

# The factor between the ends of a curve below which it counts as flat.
_FLAT = 1.2


def placements(norms: pd.DataFrame) -> Figure:
    """Draw the gradient norm of W2 against the depth and over the layers, for several LayerNorm placements.

    The norm ‖∂L/∂W²‖_F of the last layer is drawn against L, and all layers for the deepest networks; lines are theory.

    Args:
        norms: a table from `checks.stacks.placements.layer_norms`.
    """
    with style():
        figure, (against, over) = panels(2)
        figure.set_size_inches(7.6, 3.9)
        deepest = norms["depth"].max()
        for placement, rows in norms.groupby("placement", sort=False):
            color = of_placement(placement)["color"]
            last = rows[rows["layer"] == rows["depth"]].sort_values("depth")
            profile = rows[rows["depth"] == deepest].sort_values("layer")
            for axis, table, x in ((against, last, "depth"), (over, profile, "layer")):
                pale_line(axis, table[x], table["predicted"], color)
                axis.errorbar(table[x], table["norm"], yerr=2 * table["sem"], color=color, zorder=3, **MEASURED)
        first = norms.iloc[0]
        against.set(
            yscale="log", xlabel="depth $L$", ylabel=r"$\|\partial\mathcal{L}/\partial W^{2}\|_F$  (rms over draws)",
            title=f"last layer, flat: {_finding(norms[norms['layer'] == norms['depth']], 'depth')}",
        )  # fmt: skip
        value_ticks(against, sorted(set(norms["depth"])))
        plain_decades(against.yaxis)
        over.set(xlabel="layer $l$", title=f"every layer at $L = {deepest}$")
        over.set_xticks(np.unique(np.linspace(1, deepest, min(deepest, 8)).astype(int)))
        last = norms[(norms["depth"] == deepest) & (norms["layer"] == deepest)]
        named = zip(last["placement"].map(str), last["predicted"], strict=True)
        name_ends(over, [(deepest, end, TITLES[name], of_placement(name)["color"]) for name, end in named])
        message(figure, f"Flat over {deepest} layers: {_finding(norms[norms['depth'] == deepest], 'layer')}")
        about = f"$d = {first['width']}$, $n = {first['tokens']}$; marks: random networks (± 2 s.e.); pale: theory"
        figure.supxlabel(about, fontsize=8)
    return figure


def _finding(rows: pd.DataFrame, against: str) -> str:
    """Return the placements whose theory is flat over the layers or the depths, and the direction of the others."""
    ends = rows.sort_values(against).groupby("placement", sort=False)["predicted"]
    ratios = ends.first() / ends.last()
    flat = [TITLES[str(name)] for name, ratio in ratios.items() if 1 / _FLAT < ratio < _FLAT]
    rest = "the others fall" if ratios.min() > 1 / _FLAT else "the others fall or rise"
    return f"{', '.join(flat) or 'none'}; {rest}"
