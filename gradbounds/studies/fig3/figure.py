"""Section 3.4 on real models: gradients over the layers, the last layer against depth, ingredients, hidden norms."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter

from figures.style import looks, style
from theory.paper.claims import CLAIMS
from theory.stack import TITLES

_WHOLE = "nothing"


def fig3(profiles: pd.DataFrame, last: pd.DataFrame, shares: pd.DataFrame, excess: pd.DataFrame) -> Figure:
    """Panels: ‖∇_{W2}‖ over the layers of either placement, W2 of the last against depth, growth, hidden norms.

    All of one initialization; error bars are ± 2 standard errors over seeds.

    Args:
        profiles: `gradbounds.studies.fig3.table.profiles`.
        last: `gradbounds.studies.fig3.table.last_norms`.
        shares: `gradbounds.studies.fig3.table.shares`; it has no panel where no ingredient was switched off.
        excess: `gradbounds.studies.fig3.table.excess_shares`.
    """
    with style():
        figure = Figure(figsize=(10.5, 6.6), layout="constrained", dpi=160)
        shares = shares[shares["placement"] == "post"]
        below = "llliiihhh" if len(shares) else "..lllhhh."
        axes = figure.subplot_mosaic(f"pppqqqmmm\n{below}", gridspec_kw={"wspace": 0.0})
        for name, placement in (("p", "post"), ("q", "pre")):
            _profile(axes[name], profiles[profiles["placement"] == placement], placement)
        _matrices(axes["m"], profiles[profiles["placement"] == "post"])
        _depths(axes["l"], last)
        if len(shares):
            _ingredients(axes["i"], shares)
        _hidden(axes["h"], excess)
    return figure


def _log(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _profile(axis: Axes, table: pd.DataFrame, placement: str) -> None:
    whole = table[(table["without"] == _WHOLE) & (table["matrix"] == "W2") & (table["depth"] == table["depth"].min())]
    look = looks()
    for part, rows in whole.groupby("part"):
        rows, mark = rows.sort_values("layer"), next(look)
        if "predicted" in rows:
            axis.plot(
                rows["layer"], rows["predicted"], color=mark["color"], linewidth=3, alpha=0.35, label=f"{part}, theory"
            )
        axis.errorbar(
            rows["layer"], rows["mean norm"], yerr=2 * rows["mean norm sem"], capsize=2,
            **({"markersize": 4} | mark | {"linestyle": "none"}), label=f"{part}, E‖∇‖",
        )  # fmt: skip
        axis.plot(
            rows["layer"],
            rows["norm of mean"],
            color=mark["color"],
            marker="x",
            linestyle="none",
            label=f"{part}, ‖E∇‖",
        )
    axis.set(xlabel="layer $l$", ylabel=r"$\|\partial\mathcal{L}/\partial W^{2,l}\|_F$", title=TITLES[placement])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _log(axis)
    axis.legend(fontsize=7)


def _matrices(axis: Axes, table: pd.DataFrame) -> None:
    whole = table[
        (table["without"] == _WHOLE) & (table["part"] == "decoder") & (table["depth"] == table["depth"].min())
    ]
    for (matrix, rows), look in zip(whole.groupby("matrix"), looks(), strict=False):
        rows = rows.sort_values("layer")
        axis.errorbar(
            rows["layer"], rows["mean norm"], yerr=2 * rows["mean norm sem"], capsize=2, linewidth=1,
            **({"markersize": 4} | look), label=matrix,
        )  # fmt: skip
        if "predicted" in rows:
            axis.plot(rows["layer"], rows["predicted"], color=look["color"], linewidth=4, alpha=0.2)
    axis.set(xlabel="layer $l$", ylabel="E‖∇‖ of each matrix", title="Post-LN, decoder; bands: theory")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _log(axis)
    axis.legend(fontsize=7, ncols=2)


def _depths(axis: Axes, last: pd.DataFrame) -> None:
    for (placement, rows), look in zip(last.groupby("placement"), looks(), strict=False):
        grouped = rows.groupby("depth")["value"]
        axis.errorbar(
            grouped.mean().index, grouped.mean(), yerr=2 * grouped.sem(), capsize=2,
            **({"markersize": 4} | look), label=TITLES[str(placement)],
        )  # fmt: skip
    axis.set(xlabel="layers $L$ of encoder and decoder", ylabel=r"$\|\partial\mathcal{L}/\partial W^{2,L}\|_F$",
             title="last decoder layer", xticks=sorted(last["depth"].unique()))  # fmt: skip
    axis.set_ylim(bottom=0)
    axis.legend()


def _ingredients(axis: Axes, rows: pd.DataFrame) -> None:
    axis.set(title="Post-LN, decoder: growth a layer", xlabel=r"slope of $\ln\|\partial\mathcal{L}/\partial W^{2,l}\|$")
    first = rows.iloc[0]
    names = ["all", *("no " + rows["without"])]
    values = [first["growth with"], *rows["growth"]]
    errors = [first["sem with"], *rows["sem"]]
    theory = [first["predicted with"], *rows["predicted"]]
    places = np.arange(len(names))[::-1]
    axis.errorbar(
        values, places, xerr=2 * np.array(errors), fmt="o", color="#d55e00", markersize=4, capsize=2.5, label="models"
    )
    axis.plot(theory, places, "d", color="#0072b2", fillstyle="none", markersize=7, label="theory")
    axis.set_yticks(places, names)
    axis.axvline(0, color="#777777", linewidth=0.8)
    axis.legend()


def _hidden(axis: Axes, excess: pd.DataFrame) -> None:
    excess = excess[excess["depth"] == excess["depth"].min()]
    for (placement, rows), look in zip(excess.groupby("placement"), looks(), strict=False):
        grouped = rows.groupby("epsilon")["share"]
        axis.errorbar(
            grouped.mean().index, grouped.mean(), yerr=2 * grouped.sem(), linewidth=1,
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
