"""Where Theorem 1's bound loses its factor: the steps of its proof as bars on a log scale."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.registry import run_figure
from figures.style import legend_below, panels, style
from theory.paper.proof_chain import STEPS
from theory.stack import TITLES

# Light to dark and hatched in turn, so that neighbours stay apart in grey.
_COLORS = ("#88ccee", "#cc6677", "#ddcc77", "#117733", "#bdbdbd", "#332288")

# Factors below are lines on the axis.
_SEEN = 1.1


@run_figure(
    "slack_of_the_proof",
    needs="proof_chain",
    title="Where does the proof of Theorem 1 lose its factor?",
    caption=(
        "A bar for each network from the measured norm, the thick line, up to the bound. Each segment is what one "
        "step of the proof loses; the number on top is the whole factor."
    ),
    claims=("T1", "H2", "E1", "L5"),
)
def proof_slack(table: pd.DataFrame) -> Figure:
    """A stacked bar per network from s0, the measured norm, to s6, the bound; one segment per step.

    Segments are ratios of root mean squares over draws; their standard errors are below a percent and not drawn.

    Args:
        table: `checks.stacks.proof_chain.chain_table`.
    """
    placements = [p for p in TITLES if p in set(table["placement"])]
    networks = table.sort_values("step").groupby(["placement", "tokens", "depth", "width"])["measured"]
    largest = np.max([steps.to_numpy()[1:] / steps.to_numpy()[:-1] for _, steps in networks], axis=0)
    with style():
        figure, axes = panels(len(placements))
        figure.set_size_inches(4.2 * len(placements), 4.4)
        for axis, placement in zip(axes, placements, strict=True):
            here = table[table["placement"] == placement]
            bars = list(here.groupby(["tokens", "depth", "width"], sort=False))
            for position, (_, rows) in enumerate(bars):
                steps = rows.sort_values("step")["measured"].to_numpy()
                for k, step in enumerate(STEPS):
                    axis.bar(
                        position, steps[k + 1] - steps[k], bottom=steps[k], width=0.7, color=_COLORS[k],
                        edgecolor="black", linewidth=0.5,
                        label=_label(step.name, largest[k]) if position == 0 else None,
                    )  # fmt: skip
                axis.plot([position - 0.42, position + 0.42], [steps[0]] * 2, color="black", linewidth=2)
                axis.annotate(
                    f"×{steps[-1] / steps[0]:,.0f}", (position, steps[-1]), ha="center", va="bottom", fontsize=8,
                    xytext=(0, 2), textcoords="offset points",
                )  # fmt: skip
            names = [f"$d = {width}$\n$L = {depth}$\n$n = {tokens}$" for (tokens, depth, width), _ in bars]
            axis.set(yscale="log", title=TITLES[placement])
            axis.set_xticks(range(len(bars)), names, fontsize=7.5)
            axis.grid(axis="x", visible=False)
        # Room for the numbers above the bars.
        axes[0].set_ylim(table["measured"].min() / 3, table["measured"].max() * 4)
        axes[0].set_ylabel("from the norm (thick line) to the bound")
        legend_below(figure, title="step of the proof, from the bottom up: what is replaced")
    return figure


def _label(name: str, factor: float) -> str:
    """A step's name, with its factor where that is too small to be seen."""
    return name if factor > _SEEN else f"{name}: at most ×{factor:.2f}"
