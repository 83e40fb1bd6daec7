"""Spectra at initialization: densities on a logarithmic scale, and the largest eigenvalue against depth and width."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from figures.style import PLACEMENTS, of_placement, pale_line, panels, plain_decades, style, value_ticks
from theory.stack import title

_NAMES = {"hessian": "Hessian", "gauss-newton": "Gauss-Newton"}
# Colour tells placements, filled marks and lines the Hessian, open marks and dashes the Gauss-Newton matrix.
_MATRICES: dict[str, dict[str, Any]] = {
    "hessian": {"linestyle": "-", "fillstyle": "full"},
    "gauss-newton": {"linestyle": "--", "fillstyle": "none"},
}


def curvature(densities: pd.DataFrame, found: pd.DataFrame, predicted: pd.DataFrame | None = None) -> Figure:
    """Densities of the largest models, with bands over probes and seeds, and largest eigenvalues of all.

    Args:
        densities: `studies.hessian.claims.densities`.
        found: `studies.hessian.claims.summaries`.
        predicted: `studies.hessian.beside_theory.predictions`, if there are some.
    """
    largest = densities[densities["width"] == densities["width"].max()]
    largest = largest[largest["depth"] == largest["depth"].max()]
    whole = found[(found["block"] == "all") & found["largest"].notna()]
    # One size has no scaling to show: then the seeds are shown.
    varied = [against for against in ("depth", "width") if whole[against].nunique() > 1]
    with style():
        figure, axes = panels(4, share_y=False)
        figure.set_size_inches(8.4, 7.2)
        for axis in axes[2 + max(1, len(varied)) :]:
            axis.remove()
        for axis, matrix in zip(axes, _NAMES, strict=False):
            _density(axis, largest[largest["matrix"] == matrix], _NAMES[matrix])
        for axis, against in zip(axes[2:], varied, strict=False):
            _largest(axis, whole, against, predicted)
        if not varied:
            _seeds(axes[2], whole)
    return figure


def _seeds(axis: Axes, models: pd.DataFrame) -> None:
    names: list[str] = []
    for (placement, matrix), rows in models.groupby(["placement", "matrix"]):
        axis.plot([len(names)] * len(rows), rows["largest"], **_look(placement, matrix) | {"linestyle": "none"})
        names.append(f"{title(placement)},\n{_NAMES[str(matrix)]}")
    axis.set(yscale="log", ylabel="largest eigenvalue", title="each seed", xlim=(-0.5, len(names) - 0.5))
    plain_decades(axis.yaxis)
    axis.set_xticks(range(len(names)), names, fontsize=7)


def _look(placement: object, matrix: object) -> dict[str, Any]:
    """How a matrix of a placement looks in every panel; of what is no placement, such as a module, in grey."""
    look = of_placement(placement) if placement in PLACEMENTS else {"color": "#3b3b3b", "marker": "o"}
    return look | {"markersize": 5} | _MATRICES[str(matrix)]


def _density(axis: Axes, table: pd.DataFrame, name: str) -> None:
    for placement, rows in table.groupby("placement"):
        look, floor = _look(placement, rows["matrix"].iloc[0]), rows["one"].min()
        axis.fill_between(rows["eigenvalue"], rows["low"].clip(lower=floor), rows["high"].clip(lower=floor),
                          color=look["color"], alpha=0.2, linewidth=0)  # fmt: skip
        axis.plot(rows["eigenvalue"], rows["mean"].clip(lower=floor), color=look["color"],
                  linestyle=look["linestyle"], label=title(placement))  # fmt: skip
    size = f", $d = {table['width'].iloc[0]}$, $L = {table['depth'].iloc[0]}$" if len(table) else ""
    axis.set(
        yscale="log",
        ylim=(table["one"].min(), 3 * table["high"].max()),
        xlabel="eigenvalue",
        ylabel="density",
        title=name + size,
    )
    axis.legend(title="mean; band: probes and seeds;\npeaks broadened by 1% of the range", title_fontsize=7)


def _largest(axis: Axes, models: pd.DataFrame, against: str, predicted: pd.DataFrame | None) -> None:
    """Geometric means over seeds against one size: the depth at the largest width, the width at the least depth."""
    other, letters = ("width", "depth")[against == "width"], {"depth": "L", "width": "d"}
    at = models[other].max() if other == "width" else models[other].min()
    for (placement, matrix), rows in models[models[other] == at].groupby(["placement", "matrix"]):
        grouped, mark = np.log(rows.set_index(against)["largest"]).groupby(level=0), _look(placement, matrix)
        # Seeds differ by factors.
        mean, factor = np.exp(grouped.mean()), np.exp(2 * grouped.sem().fillna(0.0))
        axis.errorbar(
            mean.index, mean, yerr=[mean - mean / factor, mean * factor - mean], capsize=2,
            **mark, label=f"{title(placement)}, {_NAMES[str(matrix)]}",
        )  # fmt: skip
    if predicted is not None:
        rows = predicted[(predicted["quantity"] == "largest") & (predicted[other] == at)]
        for number, (placement, group) in enumerate(rows.groupby("placement")):
            label = "theory, Gauss-Newton" if number == 0 else None
            pale_line(axis, group[against], group["predicted"], _look(placement, "gauss-newton")["color"], label)
    sizes = sorted(models[against].unique())
    axis.set(yscale="log", xlabel=f"{against} ${letters[against]}$", ylabel="largest eigenvalue",
             title=f"at ${letters[other]} = {at}$, geometric mean ± 2 s.e.")  # fmt: skip
    value_ticks(axis, [float(size) for size in sizes])
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.legend(fontsize=7)
