"""A figure of the first step in a training log next to theory: loss, gradient norm, and norms of single matrices."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.style import WEIGHTS, decimal_ticks, legend_below, message, style


def logged_step(values: dict[str, Any], layers: pd.DataFrame, limit: float) -> Figure:
    """Draw the logged loss and gradient norm of step 1 next to the range that theory allows.

    The norms of single matrices are divided by theory.

    Args:
        values: the values of the result of `predict --logged`.
        layers: its table of single matrices, with columns role, layer and ratio; it may be empty.
        limit: standard deviations of the loss, and of the norm's logarithm, that still count as predicted.
    """
    with style():
        figure = Figure(figsize=(8.4 if len(layers) else 5.6, 3.4), layout="constrained", dpi=160)
        known = [
            pair for pair in (("loss", "logged_loss"), ("gradient_norm", "logged_norm")) if values[pair[1]] is not None
        ]
        axes = np.atleast_1d(figure.subplots(1, len(known) + (len(layers) > 0)))
        for axis, (name, logged) in zip(axes, known, strict=False):
            mean, off = values[name], limit * values[f"{name}_deviation"]
            is_norm = name == "gradient_norm"
            low, high = (mean * math.exp(sign * off / mean) if is_norm else mean + sign * off for sign in (-1, 1))
            axis.axhspan(low, high, color="#332288", alpha=0.35, label="as predicted")
            axis.plot([0], [values[logged]], "o", color="#d55e00", label="your log")
            axis.set(title=name.replace("_", " "), xticks=[], ymargin=0.4, yscale="log" if is_norm else "linear")
            if is_norm:
                decimal_ticks(axis.yaxis)
        for axis in axes[len(known) :]:
            for role, rows in layers.groupby("role"):
                axis.plot(
                    rows["layer"], rows["ratio"], markersize=4, **WEIGHTS.get(f"grad_sq_{role}", {}) | {"label": role}
                )
            axis.set(yscale="log", title="gradient norm / theory", xlabel="layer $l$")
            axis.xaxis.get_major_locator().set_params(integer=True)
            decimal_ticks(axis.yaxis)
        words = {True: "as predicted", False: "not as predicted", None: "undecided"}
        message(figure, f"Step 1 is {words[values['as_it_should_be']]}")
        legend_below(figure, 5)
    return figure
