"""Figures that show points from published figures next to theory's predictions, without any fitted number."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from figures.style import legend_below, message, ordered, panels, plain_decades, style, value_ticks
from theory import Stack, predict
from theory.mean_field.cost import prediction_cost


def published_panels(source: str) -> list[dict[str, Any]]:
    """Return the panels of a source's published figures; the list is empty if no figure was read.

    Args:
        source: name of the source's file of claims, such as "completep".
    """
    file = Path(__file__).parents[1] / "checks" / "data" / "published_figures.toml"
    return [panel for panel in tomllib.loads(file.read_text(encoding="utf-8"))["panel"] if panel["source"] == source]


def predicted_curve(panel: Mapping[str, Any], curve: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Predict one curve of a published figure, and return its layers or depths with theory's numbers."""
    stacks = _stacks(panel, curve)
    if panel["x"] == "layer":
        return np.arange(1, stacks[0].depth + 1), _numbers(panel, stacks[0])
    return np.array([stack.depth for stack in stacks]), np.array([_numbers(panel, stack)[-1] for stack in stacks])


def published_seconds(source: str) -> float:
    """Return the estimated processor seconds for drawing a source's published figures next to theory.

    It is one second, and the seconds of theory.
    """
    curves = ((panel, curve) for panel in published_panels(source) for curve in panel["curve"])
    return 1.0 + sum(prediction_cost(stack).seconds for panel, curve in curves for stack in _stacks(panel, curve))


def published(source: str) -> Figure:
    """Draw the published points of a source as marks, and theory's prediction of each curve as a line.

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
        errors = f"median error {np.median(misses):.0%}, largest {max(misses):.0%}"
        message(figure, f"Theory against {len(misses)} published points, nothing fitted: {errors}")
        legend_below(figure, title="lines: theory; marks: published points")
    return figure


def _stacks(panel: Mapping[str, Any], curve: Mapping[str, Any]) -> list[Stack]:
    """Return the networks of a curve: one whose layers are drawn, or one for each point."""
    given = (
        [{}] if panel["x"] == "layer" else [at if isinstance(at, Mapping) else {panel["x"]: at} for at in curve["at"]]
    )
    return [Stack(**{**panel["network"], **curve["network"], **at}) for at in given]


def _numbers(panel: Mapping[str, Any], stack: Stack) -> NDArray[Any]:
    means = predict(stack)
    values = panel["factor"] * np.sum([means[name] for name in panel["quantities"]], axis=0) ** panel["power"]
    return np.asarray(values / values[-1] if panel["last"] else values)
