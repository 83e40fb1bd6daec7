"""A figure that compares placements of LayerNorm: the last layer's gradient against the depth, and all layers'."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.style import message, name_ends, of_placement, panels, plain_decades, style, value_ticks
from theory.stack import TITLES

_FLAT = 1.2
"""The factor between the first and the last layer below which a curve counts as flat."""


def placements(norms: pd.DataFrame) -> Figure:
    """Draw ‖∂L/∂W²‖_F of the last layer against L, and over the layers of the deepest networks; lines are theory.

    Args:
        norms: a table from `checks.stacks.placements.layer_norms`.
    """
    with style():
        figure, (against, over) = panels(2)
        figure.set_size_inches(7.6, 3.9)
        deepest = norms["depth"].max()
        for placement, rows in norms.groupby("placement", sort=False):
            look = of_placement(placement)
            last = rows[rows["layer"] == rows["depth"]].sort_values("depth")
            profile = rows[rows["depth"] == deepest].sort_values("layer")
            line = {name: look[name] for name in ("color", "linestyle")}
            mark = {"markersize": 4} | {name: value for name, value in look.items() if name != "linestyle"}
            for axis, table, x in ((against, last, "depth"), (over, profile, "layer")):
                axis.plot(table[x], table["predicted"], linewidth=1.2, **line)
                axis.errorbar(
                    table[x], table["norm"], yerr=2 * table["sem"], linestyle="none", capsize=2, **mark,
                )  # fmt: skip
        first = norms.iloc[0]
        against.set(
            yscale="log", xlabel="depth $L$",
            ylabel=r"$\|\partial\mathcal{L}/\partial W^{2}\|_F$  (rms, ± 2 s.e.)",
            title=f"last layer, $d = {first['width']}$, $n = {first['tokens']}$",
        )  # fmt: skip
        value_ticks(against, sorted(set(norms["depth"])))
        plain_decades(against.yaxis)
        over.set(xlabel="layer $l$", title=f"all layers, $L = {deepest}$")
        over.set_xticks(np.unique(np.linspace(1, deepest, min(deepest, 8)).astype(int)))
        last = norms[(norms["depth"] == deepest) & (norms["layer"] == deepest)]
        named = zip(last["placement"].map(str), last["predicted"], strict=True)
        name_ends(over, [(deepest, end, TITLES[name], of_placement(name)["color"]) for name, end in named])
        ends = norms[norms["depth"] == deepest].sort_values("layer").groupby("placement", sort=False)["predicted"]
        ratios = ends.first() / ends.last()
        flat = [TITLES[str(name)] for name, ratio in ratios.items() if 1 / _FLAT < ratio < _FLAT]
        rest = "the others fall" if ratios.min() > 1 / _FLAT else "the others fall or rise"
        message(figure, f"Flat over {deepest} layers: {', '.join(flat)}; {rest}")
        figure.supxlabel("points: samples; lines: large-width theory", fontsize=8)
    return figure
