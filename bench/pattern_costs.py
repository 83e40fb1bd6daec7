"""Errors of predictions of published models against seconds of one core, before and after patterns were worth more."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import legend_below, looks, panels, plain_decades, style

MODELS = {"gpt2": "GPT-2, untied", "llama-3-8b": "Llama 3 8B", "qwen3-8b": "Qwen 3 8B"}
AIM = 0.5
"""Per cent."""


def pattern_costs(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """Standard errors of W^Q's and W^K's squared gradients, over all layers, at 16 and 64 tokens.

    Args:
        found: tests/evidence/pattern-costs.json, by "before" and "after" and by "MODEL, n = TOKENS".
    """
    with style():
        figure, axes = panels(2)
        figure.set_size_inches(7.6, 3.9)
        for axis, tokens in zip(axes, (16, 64), strict=True):
            for look, (model, title) in zip(looks(), MODELS.items(), strict=False):
                for when, style_of, filled in (("before", "--", "none"), ("after", "-", "full")):
                    row = found[when].get(f"{model}, n = {tokens}")
                    if row is None:  # what would have taken too long
                        continue
                    error, seconds = 100 * row["W^Q, W^K"], row["CPU seconds"]
                    errors = np.array([2.0, 0.2])
                    axis.plot(
                        seconds * (error / errors) ** 2, errors, color=look["color"], linestyle=style_of, linewidth=1.3,
                        label=f"{title}, {when}",
                    )  # fmt: skip
                    axis.plot(
                        seconds * (error / AIM) ** 2, AIM, color=look["color"], marker=look["marker"], fillstyle=filled,
                        markersize=6,
                    )  # fmt: skip
            axis.axhline(AIM, color="#777777", linewidth=0.8, linestyle=":")
            axis.set(xscale="log", yscale="log", xlabel="seconds of one core", title=f"$n = {tokens}$")
        axes[0].set_ylabel("relative standard error in %\n(squared gradients of $W^Q$, $W^K$; rms)")
        plain_decades(axes[0].yaxis)
        legend_below(figure, 3)
    return figure
