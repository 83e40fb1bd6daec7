"""A figure of step 1 of a training log next to theory: loss, gradient norm, and norms of single matrices."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.style import WEIGHTS, decimal_ticks, legend_below, message, style


def logged_step(values: dict[str, Any], layers: pd.DataFrame) -> Figure:
    """Draw the logged loss and norm over theory's range of two standard deviations, and matrices' norms / theory.

    Args:
        values: the values of the result of `predict --logged`.
        layers: its table of single matrices, with columns role, layer and ratio; it may be empty.
    """
    with style():
        figure = Figure(figsize=(8.4 if len(layers) else 5.6, 3.4), layout="constrained", dpi=160)
        axes = figure.subplots(1, 2 + (len(layers) > 0))
        for axis, name, logged in zip(axes, ("loss", "gradient_norm"), ("logged_loss", "logged_norm"), strict=False):
            low, high = (values[name] + sign * 2 * values[f"{name}_deviation"] for sign in (-1, 1))
            axis.axhspan(low, high, color="#332288", alpha=0.35, label="theory ± 2 standard deviations")
            axis.plot([0], [values[logged] or float("nan")], "o", color="#d55e00", label="your log")
            axis.set(title=name.replace("_", " "), xticks=[], ymargin=0.4)
        for axis in axes[2:]:
            for role, rows in layers.groupby("role"):
                axis.plot(
                    rows["layer"], rows["ratio"], markersize=4, **WEIGHTS.get(f"grad_sq_{role}", {}) | {"label": role}
                )
            axis.set(yscale="log", title="gradient norm / theory", xlabel="layer $l$")
            axis.xaxis.get_major_locator().set_params(integer=True)
            decimal_ticks(axis)
        words = {True: "as predicted", False: "not as predicted", None: "undecided"}
        message(figure, f"Step 1 is {words[values['as_it_should_be']]}")
        legend_below(figure, 5)
    return figure
