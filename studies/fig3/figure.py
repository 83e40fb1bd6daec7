"""Section 3.4 on real models: gradients over the layers, against depth, by ingredient and matrix; hidden norms."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter

from figures.style import WEIGHTS, message, name_ends, of_placement, pale_line, panels, style
from theory.paper.claims import CLAIMS
from theory.stack import TITLES

_WHOLE = "nothing"
# Colour tells the placement.
_PARTS: dict[str, dict[str, Any]] = {
    "decoder": {"marker": "o", "linestyle": "-", "fillstyle": "full"},
    "encoder": {"marker": "s", "linestyle": "--", "fillstyle": "none"},
}


def fig3(profiles: pd.DataFrame, last: pd.DataFrame, shares: pd.DataFrame) -> Figure:
    """Panels: ‖∇_{W2}‖ over the layers of either placement, W2 of the last against depth, growth by ingredient.

    All of one initialization; error bars are ± 2 standard errors over seeds, where there are several.

    Args:
        profiles: `studies.fig3.table.profiles`.
        last: `studies.fig3.table.last_norms`.
        shares: `studies.fig3.table.shares`; it has no panel where no ingredient was switched off.
    """
    shares = shares[shares["placement"] == "post"]
    with style():
        figure, axes = panels(4 if len(shares) else 3, share_y=False)
        figure.set_size_inches(8.2 if len(shares) else 9.0, 6.4 if len(shares) else 3.6)
        axes[1].sharey(axes[0])
        for axis, placement in zip(axes, ("post", "pre"), strict=False):
            name_ends(axis, _profile(axis, profiles[profiles["placement"] == placement], placement))
        _depths(axes[2], last)
        if len(shares):
            _ingredients(axes[3], shares)
            first = shares.loc[shares["share"].idxmax()]
            message(
                figure,
                f"{first['without'].capitalize()} carries {first['share']:.0%} of the growth in a Post-LN decoder",
            )
    return figure


def fig3_matrices(profiles: pd.DataFrame, excess: pd.DataFrame) -> Figure:
    """Panels: norms of every matrix of Post-LN's decoder over the layers, and how far hidden norms exceed their mean.

    Args:
        profiles: `studies.fig3.table.profiles`.
        excess: `studies.fig3.table.excess_shares`.
    """
    with style():
        figure, axes = panels(2, share_y=False)
        figure.set_size_inches(8.2, 4.2)
        _matrices(axes[0], profiles[profiles["placement"] == "post"])
        _hidden(axes[1], excess)
    return figure


def _bars(sem: pd.Series) -> pd.Series | None:
    """Two standard errors; None of one seed, whose bars a legend would show though none is drawn."""
    return 2 * sem if sem.notna().any() else None


def _log(axis: Axes) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _profile(axis: Axes, table: pd.DataFrame, placement: str) -> list[tuple[float, float, str, str]]:
    ends = []
    whole = table[(table["without"] == _WHOLE) & (table["matrix"] == "W2") & (table["depth"] == table["depth"].min())]
    color = of_placement(placement)["color"]
    for part, rows in whole.groupby("part"):
        rows, look = rows.sort_values("layer"), _PARTS[str(part)]
        if "predicted" in rows:
            pale_line(axis, rows["layer"], rows["predicted"], color)
        axis.errorbar(
            rows["layer"], rows["mean norm"], yerr=2 * rows["mean norm sem"], capsize=2, color=color, linestyle="none",
            markersize=5, marker=look["marker"], fillstyle=look["fillstyle"],
        )  # fmt: skip
        ends.append((*rows[["layer", "mean norm"]].iloc[-1], str(part), color))
        if "norm of mean" in rows:
            axis.plot(rows["layer"], rows["norm of mean"], color=color, marker="x", linestyle="none")
            ends.append((*rows[["layer", "norm of mean"]].iloc[-1], f"{part}, norm of mean", color))
    axis.set(
        xlabel="layer $l$",
        ylabel=r"$\|\partial\mathcal{L}/\partial W^{2,l}\|_F$",
        title=f"{TITLES[placement]}; pale lines: theory",
    )
    _log(axis)
    return ends


def _matrices(axis: Axes, table: pd.DataFrame) -> None:
    whole = table[
        (table["without"] == _WHOLE) & (table["part"] == "decoder") & (table["depth"] == table["depth"].min())
    ]
    for matrix, rows in whole.groupby("matrix"):
        rows, look = rows.sort_values("layer"), WEIGHTS[f"grad_sq_{matrix}"]
        axis.errorbar(
            rows["layer"], rows["mean norm"], yerr=2 * rows["mean norm sem"], capsize=2, linewidth=1,
            linestyle="--" if str(matrix).startswith("X") else "-", markersize=4, **look,
        )  # fmt: skip
        if "predicted" in rows:
            axis.plot(rows["layer"], rows["predicted"], color=look["color"], linewidth=4, alpha=0.2)
    axis.set(xlabel="layer $l$", ylabel="E‖∇‖ of each matrix", title="Post-LN, decoder; bands: theory")
    _log(axis)
    axis.legend(ncols=2, loc="center left", bbox_to_anchor=(0.0, 0.45))


def _depths(axis: Axes, last: pd.DataFrame) -> None:
    ends = []
    for placement, rows in last.groupby("placement"):
        look, grouped = of_placement(placement), rows.groupby("depth")["value"]
        ends.append((float(rows["depth"].max()), grouped.mean().iloc[-1], TITLES[str(placement)], look["color"]))
        axis.errorbar(
            grouped.mean().index, grouped.mean(), yerr=_bars(grouped.sem()), capsize=2,
            **({"markersize": 4} | look),
        )  # fmt: skip
    axis.set(xlabel="layers $L$ of encoder and decoder", ylabel=r"$\|\partial\mathcal{L}/\partial W^{2,L}\|_F$",
             title="last decoder layer", xticks=sorted(last["depth"].unique()), ylim=(0, None))  # fmt: skip
    name_ends(axis, ends)


def _ingredients(axis: Axes, rows: pd.DataFrame) -> None:
    rows, places, color = rows.sort_values("share_predicted"), np.arange(len(rows)), of_placement("post")["color"]
    axis.errorbar(
        rows["share"], places, xerr=2 * rows["share_sem"], fmt="o", color=color, markersize=4, capsize=2.5,
        label="models",
    )  # fmt: skip
    axis.plot(rows["share_predicted"], places, "D", color=color, fillstyle="none", markersize=8, label="theory")
    axis.set(title="Post-LN, decoder: what carries the growth", xlabel="share of the growth that goes with it",
             yticks=places, yticklabels=rows["without"])  # fmt: skip
    axis.axvline(0, color="#777777", linewidth=0.8)
    axis.legend(loc="lower right")


def _hidden(axis: Axes, excess: pd.DataFrame) -> None:
    for placement, rows in excess[excess["depth"] == excess["depth"].min()].groupby("placement"):
        look, grouped = of_placement(placement), rows.groupby("epsilon")["share"]
        axis.errorbar(
            grouped.mean().index, grouped.mean(), yerr=_bars(grouped.sem()), linewidth=1,
            **({"markersize": 3} | look), label=TITLES[str(placement)],
        )  # fmt: skip
        law = rows.groupby("epsilon")["predicted"].first()
        axis.plot(
            law.index, law, color=look["color"], linewidth=3, alpha=0.3, label=f"{TITLES[str(placement)]}, one token"
        )
    epsilon, delta = (float(CLAIMS["C1"].numbers[name]) for name in ("epsilon", "delta"))
    axis.plot([epsilon], [delta], "*", color="black", markersize=9, label=f"paper: ({epsilon:g}, {delta:g})")
    axis.set(xlabel=r"$\epsilon$", ylabel=r"$\delta$: share of tokens beyond $(1+\epsilon)\,$E$\|x\|^2$",
             title="last hidden state")  # fmt: skip
    axis.legend()
