"""A figure of how closely the squared length of a token concentrates around its mean, by width.

The figure shows δ(ε) of the paper's Definition 1.
"""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.registry import run_figure
from figures.style import BOUND, message, ordered, panels, style
from theory.stack import TITLES


@run_figure(
    "concentration_of_norms",
    needs="excess",
    title="How well do the norms of hidden states concentrate?",
    caption=(
        "The probability that the squared norm of a token's state before the last LayerNorm exceeds its mean by a "
        "share epsilon. Points are samples with 95% intervals, lines are theory, dashes the tail of the paper's "
        "example."
    ),
    claims=("D1", "T1"),
)
def concentration(table: pd.DataFrame) -> Figure:
    """Draw the probability that a token's squared length exceeds its mean by a given share.

    It is P[‖x‖² > (1 + ε) E‖x‖²] before the last LayerNorm, with one panel for each placement.

    Points are shares of draws with exact 95% intervals, lines are theory (exact for Post-LN), and thin dashes are
    exp(−d ε²/8).

    Args:
        table: a table from `checks.stacks.run_tables.excess_table`.
    """
    placements = [p for p in TITLES if p in set(table["placement"])]
    with style():
        figure, axes = panels(len(placements))
        figure.set_size_inches(3.9 * len(placements), 3.7)
        least = 0.3 / table["draws"].max()
        shown = table[table[["share", "predicted", "example"]].max(axis=1) >= least]
        for axis, placement in zip(axes, placements, strict=True):
            sizes = list(table[table["placement"] == placement].groupby(["width", "depth"]))
            for look, ((width, depth), rows) in zip(ordered(len(sizes)), sizes, strict=True):
                seen = rows[rows["share"] > 0].iloc[::2]
                errors = [seen["share"] - seen["low"], seen["high"] - seen["share"]]
                axis.errorbar(
                    seen["epsilon"], seen["share"], yerr=errors, capsize=2,
                    label=f"$d = {width}$, $L = {depth}$", **look | {"linestyle": "none", "markersize": 3.5},
                )  # fmt: skip
                axis.plot(rows["epsilon"], rows["predicted"], color=look["color"], linewidth=1.2)
                axis.plot(rows["epsilon"], rows["example"], **BOUND | {"linewidth": 0.9, "color": look["color"]})
            axis.set(
                yscale="log", ylim=(least, 1.5), xlim=(0, 1.05 * shown["epsilon"].max()), xlabel=r"$\epsilon$",
                title=f"{TITLES[placement]}, one token",
            )  # fmt: skip
            axis.xaxis.set_major_locator(MaxNLocator(5))
            axis.legend(loc="lower left")  # where no curve passes
        axes[0].set_ylabel(r"probability of $\|x\|^2 > (1 + \epsilon)\,\mathrm{E}\|x\|^2$")
        faster = "faster than" if (shown["predicted"] <= shown["example"]).all() else "unlike"
        message(figure, f"Squared norms concentrate {faster} the paper's example")
        figure.supxlabel(r"points: samples (95%); lines: theory; dashes: the paper's $e^{-d\epsilon^2/8}$", fontsize=8)
    return figure
