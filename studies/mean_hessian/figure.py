"""The mean over the output matrix of the Hessian along a line, beside that of the Gauss-Newton matrix."""

import pandas as pd
from matplotlib.figure import Figure

from figures.style import looks, style


def mean_hessian(found: pd.DataFrame) -> Figure:
    """One row a setting: means of vᵀHv over that of vᵀGv, and of its radial part.

    Args:
        found: columns setting, outside (whether a condition of the theorem is left out), and hessian and radial with
            `_sem`, all over the mean of vᵀGv.
    """
    shown = {"hessian": r"$v^\top Hv$", "radial": "its radial part"}
    with style():
        figure = Figure(figsize=(9.0, 0.28 * len(found) + 1.2), layout="constrained", dpi=160)
        axis = figure.subplots()
        for (name, label), look in zip(shown.items(), looks(), strict=False):
            axis.errorbar(
                found[name], range(len(found)), xerr=4 * found[f"{name}_sem"], capsize=3, label=label,
                **({"markersize": 5} | look | {"linestyle": "none"}),
            )  # fmt: skip
        axis.axvline(0.0, color="black", linewidth=0.8)
        axis.axhspan(found["outside"].argmax() - 0.5, len(found) - 0.5, color="0.92", zorder=0)
        axis.set_yticks(range(len(found)), list(found["setting"]), fontsize=8)
        axis.invert_yaxis()
        axis.set(
            xlabel=r"mean over $W_{\rm emb}$, over the mean of $v^\top Gv$; bars: $\pm 4$ s.e.",
            title="The mean Hessian is zero where the theorem's conditions hold\n(shaded: without one of them)",
        )
        axis.legend()
    return figure
