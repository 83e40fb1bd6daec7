"""Growth of Post-LN's gradients towards the input, against the activation and against the gains."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import looks, message, name_ends, pale_line, panels, style, value_ticks

_NAMES = {"identity": "linear", "relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "tanh": "tanh"}
_GAINS = {"xavier_normal": "Xavier", "fan_in": "fan-in", "he": "He"}


def layer_growth(table: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """The factor per layer for plain and gated units of five activations, and for gated SiLU against the ratio r.

    Args:
        table: one row per network, the wider ones for the activations and the others for the ratio: activation, ffn,
            initialization, ffn_ratio, width, depth, tokens; growth and sem, measured; limit, the closed form.
        curves: the closed form for gated SiLU, columns initialization, ffn_ratio, limit.
    """
    with style():
        figure, (units, gains) = panels(2)
        figure.set_size_inches(7.6, 3.7)
        depths, tokens, widths = (sorted(set(table[name])) for name in ("depth", "tokens", "width"))
        wide = table[table["width"] == widths[-1]]
        _units(units, wide)
        plain, gated = (wide.loc[wide["ffn"] == ffn, "limit"] for ffn in ("plain", "gated"))
        spans = [f"{limits.min() - 1:.0%} to {limits.max() - 1:.0%}" for limits in (gated, plain)]
        message(figure, f"Post-LN: a gated layer raises the gradient by {spans[0]}, a plain one by {spans[1]}")
        _gains(gains, table[table["width"] == widths[0]], curves)
        figure.supxlabel(
            f"pale lines: closed form; points: samples ± 2 s.e., upper half of $L = {depths[0]}$, $n = {tokens[0]}$, "
            f"$d = {widths[-1]}$ (left), ${widths[0]}$ (right)",
            fontsize=8,
        )
    return figure


def _units(axis: Axes, table: pd.DataFrame) -> None:
    for look, ffn in zip(looks(), ("plain", "gated"), strict=False):
        rows = table[table["ffn"] == ffn].set_index("activation").loc[list(_NAMES)]
        for place, limit in enumerate(rows["limit"]):
            pale_line(axis, [place - 0.35, place + 0.35], [limit, limit], look["color"])
        _points(axis, range(len(rows)), rows, look)
        place, limit = len(rows) - 1, rows["limit"].iloc[-1]
        axis.annotate(
            f"{ffn} units",
            (place, limit),
            (0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=look["color"],
        )
    axis.set_ylim(top=1.38)
    axis.set_xticks(range(len(_NAMES)), list(_NAMES.values()))
    axis.set(
        xlabel=r"activation, at gains 1",
        ylabel=r"$\|\partial\mathcal{L}/\partial W^{2,l}\|_F$ over that of $l + 1$",
        title="by activation",
    )


def _gains(axis: Axes, table: pd.DataFrame, curves: pd.DataFrame) -> None:
    ends = []
    for look, (name, title) in zip(looks(), _GAINS.items(), strict=False):
        curve = curves[curves["initialization"] == name].sort_values("ffn_ratio")
        pale_line(axis, curve["ffn_ratio"], curve["limit"], look["color"])
        ends.append((*curve[["ffn_ratio", "limit"]].iloc[-1], title, look["color"]))
        rows = table[table["initialization"] == name].sort_values("ffn_ratio")
        _points(axis, rows["ffn_ratio"], rows, look)
    value_ticks(axis, sorted(set(table["ffn_ratio"])))
    axis.set(xlabel="feed-forward width over $d$, $r$", title="by gain, gated SiLU")
    name_ends(axis, ends)


def _points(axis: Axes, x: Sequence[float] | pd.Series, rows: pd.DataFrame, look: dict[str, Any]) -> None:
    mark = {"markersize": 4.5} | {name: value for name, value in look.items() if name != "linestyle"}
    axis.errorbar(x, rows["growth"], yerr=2 * rows["sem"], linestyle="none", capsize=2.5, **mark)
