"""Points of published figures over theory: nothing is fitted, and what theory misses is seen."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from figures.style import legend_below, message, ordered, panels, plain_decades, style, value_ticks
from theory import Stack, predict


def published_panels(source: str) -> list[dict[str, Any]]:
    """Return the panels of a source's published figures, which are empty if none of its figures was read.

    Args:
        source: name of the source's file of claims, such as "completep".
    """
    file = Path(__file__).parents[1] / "checks" / "data" / "published_figures.toml"
    return [panel for panel in tomllib.loads(file.read_text(encoding="utf-8"))["panel"] if panel["source"] == source]


def predicted_curve(panel: Mapping[str, Any], curve: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Predict a curve of a published figure: the layers or depths, and theory's numbers there."""
    fields = {**panel["network"], **curve["network"]}
    if panel["x"] == "layer":
        values = _numbers(panel, fields)
        return np.arange(1, len(values) + 1), values
    given = [at if isinstance(at, Mapping) else {panel["x"]: at} for at in curve["at"]]
    numbers = [float(_numbers(panel, {**fields, **at})[-1]) for at in given]
    return np.array([at[panel["x"]] for at in given]), np.array(numbers)


def published(source: str) -> Figure:
    """Draw a source's published points as marks, and theory's prediction of each curve as a line.

    Args:
        source: name of the source's file of claims, such as "completep".

    Raises:
        ValueError: none of the source's figures was read.
    """
    shown = published_panels(source)
    if not shown:
        raise ValueError(f"source must be one whose published figures were read, got {source!r}.")
    with style():
        figure, axes = panels(len(shown), share_y=False)
        figure.set_size_inches(7.2, 3.9)
        misses: list[float] = []
        for axis, panel in zip(axes, shown, strict=True):
            looks = ordered(len(panel["curve"]))
            for curve, look in zip(panel["curve"], looks, strict=True):
                x, line = predicted_curve(panel, curve)
                at = x if panel["x"] != "layer" else np.array(curve["at"])
                axis.plot(x, line, color=look["color"], label=curve["label"])
                axis.plot(at, curve["y"], linestyle="none", marker=look["marker"], color=look["color"], markersize=4)
                misses += list(np.abs(line[np.searchsorted(x, at)] / np.array(curve["y"]) - 1.0))[: curve.get("judged")]
            axis.set(xlabel=panel["x"], ylabel=panel["y"], yscale="log")
            value_ticks(axis, [2.0**k for k in range(9) if min(x) <= 2**k <= max(x)])
            plain_decades(axis.yaxis)
        middle, most = float(np.median(misses)), max(misses)
        title = f"{len(misses)} published points, nothing fitted:"
        message(figure, f"{title} theory is off by {middle:.0%} in the middle, {most:.0%} at most")
        legend_below(figure)
    return figure


def _numbers(panel: Mapping[str, Any], fields: Mapping[str, Any]) -> NDArray[Any]:
    """Predict the number that a panel plots, in every layer."""
    means = predict(Stack(**fields))
    values = panel["factor"] * np.sum([means[name] for name in panel["quantities"]], axis=0) ** panel["power"]
    return np.asarray(values / values[-1] if panel["last"] else values)
