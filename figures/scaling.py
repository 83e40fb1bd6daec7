"""Figures of the last layer's gradient norm against width or depth: Theorem 1's bound, theory and samples."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.registry import run_figure
from figures.style import (
    BOUND,
    MEASURED,
    SYMBOLS,
    decimal_ticks,
    message,
    name_ends,
    of_placement,
    pale_line,
    panels,
    style,
    value_ticks,
)
from theory.stack import TITLES


@run_figure(
    "gradient_against_width",
    needs="width_series",
    against="width",
    title="How far is Theorem 1's bound from the gradient as the network gets wider?",
    caption=(
        "Theorem 1 holds, and moves away from the gradient as the width d grows. The gradient is that of the last "
        "layer's W2. Marks are samples with two standard errors, wide pale lines are large-width theory, dashed lines "
        "are Theorem 1 with its constants, and the factors are bound over theory."
    ),
    claims=("T1", "H2"),
)
@run_figure(
    "gradient_against_depth",
    needs="depth_series",
    against="depth",
    title="Does the last gradient depend on the depth as Theorem 1 says?",
    caption=(
        "Theorem 1 has the right powers of the depth L: Post-LN's last gradient is flat, and Pre-LN's falls like the "
        "bound. Marks are samples with two standard errors, wide pale lines are large-width theory, dashed lines are "
        "Theorem 1 with its constants."
    ),
    claims=("T1",),
)
def scaling(table: pd.DataFrame, against: str, *, axes: Sequence[Axes] | None = None) -> Figure:
    """Draw the last W2's gradient norm against width or depth, with theory and Theorem 1's bound.

    The norm is ‖∂L/∂W^{2,L}‖_F, and each placement has its curves.

    Marks are root mean squares over draws with 2 standard errors. Each placement has a color. The pale line is
    large-width theory, and the dashed line is Theorem 1 with its constants. Arrows show the factor between the two
    lines.

    Args:
        table: columns placement, width, depth, tokens, vocab, norm, sem, predicted, bound; per placement one series,
            sorted.
        against: "width" or "depth".
        axes: one matplotlib axis to draw into, with the style that is set; None makes a new figure.

    Raises:
        ValueError: axes have another number of entries.
    """
    chosen = list(table.groupby("placement", sort=False))
    with style(axes):
        figure, (axis,) = panels(1, axes=axes)
        if axes is None:
            figure.set_size_inches(6.4, 3.9)
        ends, values = [], set[float]()
        for placement, rows in chosen:
            at, color = rows[against].to_numpy(), of_placement(placement)["color"]
            axis.plot(at, rows["bound"], **BOUND | {"color": color})
            pale_line(axis, at, rows["predicted"], color)
            axis.errorbar(at, rows["norm"], yerr=2 * rows["sem"], zorder=3, color=color, **MEASURED)
            for column, name in (("bound", "Theorem 1"), ("predicted", "gradient")):
                if math.isfinite(last := float(rows[column].iloc[-1])):
                    ends.append((float(at[-1]), last, f"{TITLES[str(placement)]}, {name}", color))
            values.update(at.tolist())
        axis.set(xlabel=SYMBOLS[against], yscale="log")
        value_ticks(axis, sorted(values))
        axis.set_ylabel(r"$\|\partial\mathcal{L}/\partial W^{2,L}\|_F$  (rms over draws)")
        decimal_ticks(axis.yaxis)
        _name_gaps(axis, _bounded(chosen), against)
        name_ends(axis, ends)
        message(figure, _finding(chosen, against), axes=axes)
        if axes is None:
            about = setting(chosen[0][1], against)
            figure.supxlabel(f"{about}; marks: random networks (± 2 s.e.); pale: theory; dashed: Theorem 1", fontsize=8)
    return figure


def setting(rows: pd.DataFrame, against: str) -> str:
    """Return a title with the fixed sizes of a series of networks, in the paper's symbols."""
    first, last = rows.iloc[0], rows.iloc[-1]
    other = f"$L = {first['depth']}$" if against == "width" else f"$d = {first['width']}$"
    ratio = first["vocab"] / first["width"]
    follows = against == "width" and first["vocab"] != last["vocab"]
    vocab = ("d" if ratio == 1 else f"{ratio:g} d") if follows else first["vocab"]
    return f"{other}, $n = {first['tokens']}$, $V = {vocab}$"


def _bounded(chosen: list[tuple[Any, pd.DataFrame]]) -> list[tuple[Any, pd.DataFrame]]:
    return [(placement, rows) for placement, rows in chosen if rows["bound"].notna().all()]


def _gaps(rows: pd.DataFrame) -> list[float]:
    """Return bound divided by prediction, from the smallest width or depth to the largest."""
    return (rows["bound"] / rows["predicted"]).tolist()


def _name_gaps(axis: Axes, chosen: list[tuple[Any, pd.DataFrame]], x: str) -> None:
    """Write the factor between theory and bound for the first placement, at both ends of the curves."""
    if not chosen:
        return
    _, rows = chosen[0]
    for k in (0, -1):
        at, low, high = (float(rows[name].iloc[k]) for name in (x, "predicted", "bound"))
        axis.annotate("", (at, high), (at, low), arrowprops={"arrowstyle": "<->", "color": "#555555", "linewidth": 0.8})
        axis.annotate(
            f"×{_gaps(rows)[k]:,.0f}", (at, (low * high) ** 0.5), (-4 if k else 4, 0), textcoords="offset points",
            ha="right" if k else "left", va="center", fontweight="bold",
        )  # fmt: skip


def _finding(chosen: list[tuple[Any, pd.DataFrame]], against: str) -> str:
    if not (bounded := _bounded(chosen)):
        return f"The last layer's gradient against the {against}; Theorem 1 has no bound here"
    _, rows = bounded[0]  # whose gaps the panel names
    gaps = _gaps(rows)
    of = f" in {TITLES[rows.iloc[0]['placement']]}" if len(chosen) > 1 else ""
    whole = f"Theorem 1 is {min(gaps):,.0f} to {max(gaps):,.0f} times too large{of}"
    return f"{whole}, growing with ${'d' if against == 'width' else 'L'}$" if gaps[-1] > 1.5 * gaps[0] else whole
