"""The common style of all figures: size, fonts, and marks that can be told apart in grey."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from figures.looks import PLACEMENTS as PLACEMENTS, WEIGHTS as WEIGHTS, looks as looks

# Of sizes and steps, from the least to the greatest: in grey as well.
_FROM, _TO = np.array([0.82, 0.62, 0.84]), np.array([0.20, 0.02, 0.33])
_NEUTRAL = "#3b3b3b"
MEASURED: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 4, "capsize": 2.5}
BOUND: dict[str, Any] = {"color": _NEUTRAL, "linestyle": "--", "linewidth": 1.4}
PAPER: dict[str, Any] = {"color": "#777777", "linestyle": ":", "linewidth": 1.6}

SYMBOLS = {"width": "width $d$", "depth": "depth $L$"}
"""The axis labels of width and depth."""

# Of an axis from whose ends on powers of ten are enough.
_MANY_DECADES = 300.0

_RC: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    # As text, letters of formulas such as the L of a loss are private code points that no reader's font has.
    "svg.fonttype": "path",
    # Without it every SVG has new random ids, and figures of the same numbers differ.
    "svg.hashsalt": "gradbounds",
}


@contextmanager
def style(axes: Sequence[Axes] | None = None) -> Iterator[None]:
    """Set the matplotlib style of a figure within a `with` block, unless the caller gives axes with their own style.

    Args:
        axes: the caller's axes, or None for a new figure.
    """
    with mpl.rc_context(_RC if axes is None else {}):
        yield


def of_placement(name: object) -> dict[str, Any]:
    """Return the color, marker and line style of a LayerNorm placement, which are the same in every figure."""
    return PLACEMENTS[str(name)]


def ordered(count: int) -> list[dict[str, Any]]:
    """Return a given number of colors from light to dark, for curves of different widths, depths or steps.

    They come with small filled markers.
    """
    shades = np.linspace(_FROM, _TO, count) if count > 1 else _TO[None]
    return [
        {"marker": mark, "color": to_hex(shade), "linestyle": "-"}
        for mark, shade in zip(itertools.cycle("osDv^PX"), shades, strict=False)
    ]


def panels(count: int, *, share_y: bool = True, axes: Sequence[Axes] | None = None) -> tuple[Figure, list[Axes]]:
    """Create a new figure with a row of panels, or return the given axes with their figure.

    Four panels are in two rows.

    A page is as wide as two and a half panels: in a row of four, the text would be smaller than the page's.

    Raises:
        ValueError: the number of given axes is not `count`.
    """
    if axes is not None:
        if len(axes) != count:
            raise ValueError(f"axes must have one entry for each panel, which are {count}, got {len(axes)}.")
        return axes[0].figure.figure, list(axes)
    rows = 2 if count == 4 else 1
    wide = 3.5 if count / rows <= 2 else 3.0
    figure = Figure(figsize=(wide * count / rows, 3.1 * rows), layout="constrained", dpi=160)
    return figure, list(figure.subplots(rows, count // rows, sharey=share_y, squeeze=False).flat)


def pale_line(axis: Axes, x: Any, predicted: Any, color: str, label: str | None = None) -> None:
    """Draw theory as a wide pale line, on which marks with error bars stay readable."""
    axis.plot(x, predicted, color=color, linewidth=4, alpha=0.35, label=label, solid_capstyle="round")


def message(figure: Figure, text: str, *, axes: Sequence[Axes] | None = None) -> None:
    """Write the figure's finding as its title, or as the title of the first given axis."""
    if axes is None:
        figure.suptitle(text, fontsize=11, fontweight="bold", x=0.01, ha="left")
    else:
        axes[0].set_title(text)


def most_changed(ratios: pd.Series) -> Any:
    """Return the label whose ratio is farthest from 1 on a log scale; None if no ratio is positive and finite.

    >>> most_changed(pd.Series({"first": 1.2, "last": 0.1, "dead": 0.0}))
    'last'
    """
    logs = ratios[(ratios > 0) & (ratios < math.inf)].map(math.log).abs()
    return None if logs.empty else logs.idxmax()


def name_ends(axis: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write a name at the end of each line, in the line's color; names that would overlap are pushed apart.

    Args:
        axis: the axis, whose limits must be final.
        ends: the last x and y, the name and the color of each line.
    """
    to_axes = (axis.transData + axis.transAxes.inverted()).transform
    placed = sorted((float(to_axes((x, y))[1]), (x, y), name, color) for x, y, name, color in ends)
    gap, at, heights = 1 / 17, -math.inf, list[float]()
    for height, *_ in placed:
        at = max(height, at + gap)
        heights.append(at)
    over = max(0.0, at - 1.0)
    for height, (_, end, name, color) in zip(heights, placed, strict=True):
        axis.annotate(
            name, end, (1.04, height - over), fontsize=8, va="center", textcoords="axes fraction", color=color,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "relpos": (0, 0.5)},
        )  # fmt: skip


def legend_below(figure: Figure, columns: int = 3, title: str = "") -> None:
    """Draw one legend for all panels below them.

    Curves that differ between panels only in the placement's color are listed in grey.

    Raises:
        ValueError: curves with one label look different in two panels, so one legend cannot describe them.
    """
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            before = handles.setdefault(label, handle)
            if _look(before) == _look(handle):
                continue
            if _uncoloured(_look(before)) != _uncoloured(_look(handle)):
                raise ValueError(f"label {label!r} must have one look in all panels, got {_look(handle)} as well.")
            _, line, mark = _look(handle)
            handles[label] = Line2D([], [], color=_NEUTRAL, linestyle=line, marker=mark, markersize=4, linewidth=1.4)
    if handles:
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=columns, title=title or None, title_fontsize=8,
        )  # fmt: skip


def _look(handle: Any) -> tuple[Any, ...]:
    """Return the color, line style and marker of a curve, with or without error bars; empty for other artists."""
    line = handle[0] if isinstance(handle, Container) else handle
    return (line.get_color(), line.get_linestyle(), line.get_marker()) if isinstance(line, Line2D) else ()


def _uncoloured(look: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a curve's look with the colors of placements, and the grey that replaces them, made equal."""
    free = {_NEUTRAL, *(placement["color"] for placement in PLACEMENTS.values())}
    return ("", *look[1:]) if look and look[0] in free else look


def value_ticks(axes: Axes, values: list[float]) -> None:
    """Set the ticks of a log₂ axis to the measured values, such as the widths of the networks.

    They are integers, powers of two if those are long, or rounded.
    """
    axes.set_xscale("log", base=2)
    labels = [f"{v:.0f}" if v >= 10 or float(v).is_integer() else f"{v:.1f}" for v in values]
    if max(map(len, labels)) > 5 and all(math.log2(v).is_integer() for v in values):
        labels = [f"$2^{{{math.log2(v):.0f}}}$" for v in values]
    axes.set_xticks(values, labels)
    axes.minorticks_off()


def decimal_ticks(axis: Axis) -> None:
    """Label a logarithmic axis of few decades with plain decimals at 1, 2 and 5 of every decade.

    An axis of many decades keeps powers of ten. Matplotlib's own labels between decades, such as 6×10⁻¹, are too wide
    and overlap.
    """
    low, high = axis.get_view_interval()
    if low <= 0 or high / low > _MANY_DECADES:
        return
    plain_decades(axis, (1.0, 2.0, 5.0) if high / low > 3 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0))


def plain_decades(axis: Axis, steps: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Set the ticks of a logarithmic axis to given multiples of every power of ten, as plain decimals."""
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())
