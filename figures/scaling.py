"""Theorem 1 in one picture: bound, prediction and samples of the last gradient against d or L; and their exponents."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.registry import run_figure
from figures.style import BOUND, MEASURED, PREDICTED, SYMBOLS, legend_below, of_placement, panels, style, value_ticks
from theory.stack import TITLES


@run_figure(
    "gradient_against_width",
    needs="width_series",
    against="width",
    title="How far is Theorem 1's bound from the gradient as the network gets wider?",
    caption=(
        "The norm of the gradient of the last layer's W2 against the width d. Dots are samples with two standard "
        "errors, the line is large-width theory, the dashed line is Theorem 1 with its constants. The bound holds, "
        "and moves away from the gradient."
    ),
    claims=("T1", "H2"),
)
@run_figure(
    "gradient_against_depth",
    needs="depth_series",
    against="depth",
    title="Does the last gradient depend on the depth as Theorem 1 says?",
    caption=(
        "The norm of the gradient of the last layer's W2 against the depth L. Dots are samples with two standard "
        "errors, the line is large-width theory, the dashed line is Theorem 1 with its constants. In Post-LN the "
        "gradient is flat, in Pre-LN it falls like the bound."
    ),
    claims=("T1",),
)
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
    ylabel = r"$\|\partial\mathcal{L}/\partial W^{2,L}\|_F$  (rms over draws)"
    return _beside_theory(table, against, against, "norm", axes, ylabel, xlabel=SYMBOLS[against], yscale="log")


def setting(rows: pd.DataFrame, against: str) -> str:
    """Return the fixed sizes of a series in the paper's letters, for a title."""
    first, last = rows.iloc[0], rows.iloc[-1]
    other = f"$L = {first['depth']}$" if against == "width" else f"$d = {first['width']}$"
    ratio = first["vocab"] / first["width"]
    follows = against == "width" and first["vocab"] != last["vocab"]
    vocab = ("d" if ratio == 1 else f"{ratio:g} d") if follows else first["vocab"]
    return f"{other}, $n = {first['tokens']}$, $V = {vocab}$"


@run_figure(
    "local_exponents_in_width",
    needs="width_exponents",
    against="width",
    title="Which power of the width does the gradient follow?",
    caption=(
        "Slopes between neighbouring widths, on logarithmic axes. Dots are samples with two standard errors, the "
        "line is large-width theory, the dashed line is the slope of Theorem 1's bound. A power law is a flat "
        "line."
    ),
    claims=("T1", "H2"),
)
@run_figure(
    "local_exponents_in_depth",
    needs="depth_exponents",
    against="depth",
    title="Which power of the depth does the gradient follow?",
    caption=(
        "Slopes between neighbouring depths, on logarithmic axes. Dots are samples with two standard errors, the "
        "line is large-width theory, the dashed line is the slope of Theorem 1's bound. For great depth that is 0 "
        "in Post-LN and -1/2 in Pre-LN."
    ),
    claims=("T1",),
)
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
    letter = "d" if against == "width" else "L"
    ylabel = rf"$\Delta\ln\|\partial\mathcal{{L}}/\partial W^{{2,L}}\|_F\,/\,\Delta\ln {letter}$"
    xlabel = f"{SYMBOLS[against]} (geometric mean of two)"
    return _beside_theory(table, against, "at", "exponent", axes, ylabel, xlabel=xlabel)


def _beside_theory(
    table: pd.DataFrame, against: str, x: str, y: str, axes: Sequence[Axes] | None, ylabel: str, **settings: str
) -> Figure:
    """The column `y` with its error, predicted and bound against the column `x`, a panel for each placement."""
    chosen = list(table.groupby("placement", sort=False))
    with style(axes):
        figure, drawn = panels(len(chosen), axes=axes)
        for axis, (placement, rows) in zip(drawn, chosen, strict=True):
            at = rows[x].to_numpy()
            axis.plot(at, rows["bound"], label="Theorem 1, with constants", **BOUND)
            color = of_placement(placement)["color"]
            axis.plot(at, rows["predicted"], label="large-width theory", color=color, **PREDICTED)
            axis.errorbar(
                at, rows[y], yerr=2 * rows["sem"], label="samples (± 2 s.e.)", zorder=3, color=color, **MEASURED
            )
            axis.set(title=f"{TITLES[placement]}, {setting(rows, against)}", **settings)
            value_ticks(axis, sorted(set(at)))
        drawn[0].set_ylabel(ylabel)
        legend_below(figure, axes=axes)
    return figure
