"""A figure of the steps in the proof of Theorem 1, and of the factor that each step loses."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.registry import run_figure
from figures.style import legend_below, message, of_placement, style
from theory.paper.proof_chain import STEPS
from theory.stack import TITLES


@run_figure(
    "slack_of_the_proof",
    needs="proof_chain",
    title="Where does the proof of Theorem 1 lose its factor?",
    caption=(
        "Most of the factor is lost in few steps of the proof, and one of them grows with the width. Left: from the "
        "measured norm to the bound in the widest network, a bar for each step. Right: each step's factor against "
        "the width."
    ),
    claims=("T1", "H2", "E1", "L5"),
)
def proof_slack(table: pd.DataFrame) -> Figure:
    """Draw the steps from the measured gradient norm to Theorem 1's bound, with the factor that each step loses.

    The fastest growing step is also drawn against the width.

    Factors are ratios of root mean squares over draws. Their standard errors are below 1% and are not drawn.

    Args:
        table: a table from `checks.stacks.theorem1.chain_table`.
    """
    placements = [p for p in TITLES if p in set(table["placement"])]
    with style():
        figure = Figure(figsize=(8.2, 3.9), layout="constrained", dpi=160)
        steps_axis, factor_axis = figure.subplots(1, 2, width_ratios=(3, 2))
        largest, smallest = (0.0, ""), math.inf
        for number, placement in enumerate(placements):
            here, color = table[table["placement"] == placement], of_placement(placement)["color"]
            widest = here.sort_values(["width", "tokens", "depth", "step"]).tail(len(STEPS) + 1)
            norms = widest.sort_values("step")["measured"].to_numpy()
            smallest = min(smallest, norms[0])
            for k, step in enumerate(STEPS):
                factor = norms[k + 1] / norms[k]
                largest = max(largest, (factor, step.name))
                at = k + 0.8 * ((number + 0.5) / len(placements) - 0.5)
                steps_axis.barh(
                    at, norms[k + 1] - norms[k], left=norms[k], height=0.7 / len(placements), color=color,
                    label=TITLES[placement] if k == 0 else None,
                )  # fmt: skip
                steps_axis.annotate(
                    f"×{factor:,.3g}", (max(norms[k], norms[k + 1]), at), (3, 0), textcoords="offset points",
                    va="center", fontsize=7.5, color=color,
                )  # fmt: skip
            sizes = widest.iloc[-1]
            same = here[(here["tokens"] == sizes["tokens"]) & (here["depth"] == sizes["depth"])]
            _against_width(factor_axis, same, color)
        steps_axis.set(xscale="log", title=f"$d = {sizes['width']}$, $L = {sizes['depth']}$, $n = {sizes['tokens']}$")
        steps_axis.set_xlim(smallest / 2, 12 * table["measured"].max())
        steps_axis.set_yticks(range(len(STEPS)), [step.name for step in STEPS], fontsize=7)
        steps_axis.invert_yaxis()
        steps_axis.set_xlabel("gradient norm (top) to Theorem 1's bound (bottom)")
        factor_axis.set(xscale="log", yscale="log", xlabel="width $d$", title="factor of the step that grows most")
        message(figure, f"The largest loss of Theorem 1's proof is one step: {largest[1]}, ×{largest[0]:,.0f}")
        legend_below(figure)
    return figure


def _against_width(axis: Axes, rows: pd.DataFrame, color: str) -> None:
    """Draw the factor of the proof step that grows most with the width, against the width."""
    table = rows.pivot_table(index="width", columns="step", values="measured").sort_index()
    factors = table.iloc[:, 1:].to_numpy() / table.iloc[:, :-1].to_numpy()
    grows = int((factors[-1] / factors[0]).argmax())
    axis.plot(table.index, factors[:, grows], marker="o", markersize=4, color=color)
    end = (table.index[-1], factors[-1, grows])
    axis.annotate(
        STEPS[grows].name, end, (-8, 0), textcoords="offset points", fontsize=7.5, color=color, ha="right", va="top",
    )  # fmt: skip
