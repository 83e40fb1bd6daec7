"""Theorem 1 in one picture: bound, prediction and samples of the last gradient against d or L; and their exponents."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import BOUND, MEASURED, PREDICTED, legend_below, panels, style, value_ticks
from theory.stack import TITLES

_SYMBOL = {"width": "width $d$", "depth": "depth $L$"}
_LETTER = {"width": ("width $d$", "d"), "depth": ("depth $L$", "L")}


def scaling(table: pd.DataFrame, against: str, *, axes: Sequence[Axes] | None = None) -> Figure:
    """‖∂L/∂W^{2,L}‖_F against the width or the depth, one panel per placement.

    Points are root mean squares over draws with 2 standard errors, the line is large-width theory, the dashed line
    Theorem 1 with its constants.

    Args:
        table: columns placement, width, depth, tokens, vocab, norm, sem, predicted, bound; per placement one series,
            sorted.
        against: "width" or "depth".
        axes: what to draw into, one entry for each placement in the order of the panels, under the style that is set;
            None makes a figure.

    Raises:
        ValueError: there are other than one of axes for each placement.
    """
    chosen = list(table.groupby("placement", sort=False))
    with style(axes):
        figure, drawn = panels(len(chosen), axes=axes)
        for axis, (placement, rows) in zip(drawn, chosen, strict=True):
            x = rows[against].to_numpy()
            axis.plot(x, rows["bound"], label="Theorem 1, with constants", **BOUND)
            axis.plot(x, rows["predicted"], label="large-width theory", **PREDICTED)
            axis.errorbar(x, rows["norm"], yerr=2 * rows["sem"], label="samples (± 2 s.e.)", zorder=3, **MEASURED)
            axis.set(yscale="log", xlabel=_SYMBOL[against], title=f"{TITLES[placement]}, {setting(rows, against)}")
            value_ticks(axis, sorted(set(x)))
        drawn[0].set_ylabel(r"$\|\partial\mathcal{L}/\partial W^{2,L}\|_F$  (rms over draws)")
        legend_below(figure, axes=axes)
    return figure


def setting(rows: pd.DataFrame, against: str) -> str:
    """What is fixed in a series, in the paper's letters, for a title."""
    first, last = rows.iloc[0], rows.iloc[-1]
    other = f"$L = {first['depth']}$" if against == "width" else f"$d = {first['width']}$"
    ratio = first["vocab"] / first["width"]
    follows = against == "width" and first["vocab"] != last["vocab"]
    vocab = ("d" if ratio == 1 else f"{ratio:g} d") if follows else first["vocab"]
    return f"{other}, $n = {first['tokens']}$, $V = {vocab}$"


def local_exponents(table: pd.DataFrame, against: str, *, axes: Sequence[Axes] | None = None) -> Figure:
    """The slope of ln‖∂L/∂W^{2,L}‖_F between neighbouring widths or depths, one panel per placement.

    Points are samples with 2 standard errors (neighbours share a point, so their errors alternate), the line is
    large-width theory over the same pairs, the dashed line Theorem 1's bound.

    Args:
        table: a row per pair: columns placement, width, depth, tokens, vocab, at (geometric mean of the pair),
            exponent, sem, predicted, bound.
        against: "width" or "depth".
        axes: what to draw into, one entry for each placement in the order of the panels, under the style that is set;
            None makes a figure.

    Raises:
        ValueError: there are other than one of axes for each placement.
    """
    label, letter = _LETTER[against]
    chosen = list(table.groupby("placement", sort=False))
    with style(axes):
        figure, drawn = panels(len(chosen), axes=axes)
        for axis, (placement, rows) in zip(drawn, chosen, strict=True):
            x = rows["at"].to_numpy()
            axis.plot(x, rows["bound"], label="Theorem 1, with constants", **BOUND)
            axis.plot(x, rows["predicted"], label="large-width theory", **PREDICTED)
            axis.errorbar(x, rows["exponent"], yerr=2 * rows["sem"], label="samples (± 2 s.e.)", zorder=3, **MEASURED)
            axis.set(xlabel=f"{label} (geometric mean of two)", title=f"{TITLES[placement]}, {setting(rows, against)}")
            value_ticks(axis, sorted(set(x)))
        drawn[0].set_ylabel(rf"$\Delta\ln\|\partial\mathcal{{L}}/\partial W^{{2,L}}\|_F\,/\,\Delta\ln {letter}$")
        legend_below(figure, axes=axes)
    return figure
