"""Local exponents of the last layer's gradient: where a power law is one."""

import pandas as pd
from matplotlib.figure import Figure

from figures.scaling import setting
from figures.style import BOUND, MEASURED, PREDICTED, legend_below, panels, style, value_ticks
from theory.stack import TITLES

_SYMBOL = {"width": ("width $d$", "d"), "depth": ("depth $L$", "L")}


def local_exponents(table: pd.DataFrame, against: str) -> Figure:
    """The slope of ln‖∂L/∂W^{2,L}‖_F between neighbouring widths or depths, one panel per placement.

    Points are samples with 2 standard errors (neighbours share a point, so their errors alternate), the line is
    large-width theory over the same pairs, the dashed line Theorem 1's bound.

    Args:
        table: a row per pair: columns placement, width, depth, tokens, vocab, at (geometric mean of the pair),
            exponent, sem, predicted, bound.
        against: "width" or "depth".
    """
    label, letter = _SYMBOL[against]
    chosen = list(table.groupby("placement", sort=False))
    with style():
        figure, axes = panels(len(chosen))
        for axis, (placement, rows) in zip(axes, chosen, strict=True):
            x = rows["at"].to_numpy()
            axis.plot(x, rows["bound"], label="Theorem 1, with constants", **BOUND)
            axis.plot(x, rows["predicted"], label="large-width theory", **PREDICTED)
            axis.errorbar(x, rows["exponent"], yerr=2 * rows["sem"], label="samples (± 2 s.e.)", zorder=3, **MEASURED)
            axis.set(xlabel=f"{label} (geometric mean of two)", title=f"{TITLES[placement]}, {setting(rows, against)}")
            value_ticks(axis, sorted(set(x)))
        axes[0].set_ylabel(rf"$\Delta\ln\|\partial\mathcal{{L}}/\partial W^{{2,L}}\|_F\,/\,\Delta\ln {letter}$")
        legend_below(figure)
    return figure
