"""What a draw costs against the width: a loop over torch.nn, the engines, and the machine's limit."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.style import message, panels, style, value_ticks

_LOOKS: dict[str, dict[str, Any]] = {
    "loop": {"color": "#3b3b3b", "marker": "^", "linestyle": ":", "label": "loop over torch.nn"},
    "dense": {"color": "#44aa99", "marker": "s", "linestyle": "--", "label": "dense engine"},
    "conditioned": {"color": "#332288", "marker": "o", "linestyle": "-", "label": "conditioned engine"},
    "limit": {"color": "#777777", "linestyle": "-", "linewidth": 1, "label": "its limit"},
}
_AT_END: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8, "annotation_clip": False}


def engine_cost(table: pd.DataFrame) -> Figure:
    """Seconds per draw against the width on log-log axes; every point is the minimum over repetitions, without error.

    Args:
        table: columns width, what ("loop", "dense", "conditioned", "limit"), seconds, depth, tokens.
    """
    with style():
        figure, (axis,) = panels(1)
        figure.set_size_inches(5.0, 3.6)
        for what, look in _LOOKS.items():
            rows = table[table["what"] == what].sort_values("width")
            axis.plot(rows["width"], rows["seconds"], markersize=4.5, **look)
            end = rows[["width", "seconds"]].iloc[-1]
            axis.annotate(look["label"], tuple(end), (14, 0), color=look["color"], **_AT_END)
        first, last = table.iloc[0], table[table["what"] == "loop"].sort_values("width").iloc[-1]
        ours = table[(table["what"] == "conditioned") & (table["width"] == last["width"])].iloc[0]
        ratio = last["seconds"] / ours["seconds"]
        message(figure, f"At d = {last['width']:,} the engine is {ratio:,.0f} times faster than a loop")
        axis.set(
            yscale="log",
            xlabel="width $d$",
            ylabel="seconds per draw (minimum)",
            title=f"Post-LN, $L = {first['depth']}$, $n = {first['tokens']}$, one CPU core",
        )
        value_ticks(axis, sorted(set(table["width"])))
    return figure
