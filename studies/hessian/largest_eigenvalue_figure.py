"""The Hessian's largest eigenvalue over the Gauss-Newton matrix's, measured beside theory."""

import pandas as pd
from matplotlib.figure import Figure

from figures.style import decimal_ticks, legend_below, ordered, style

_TITLES = {"post": "Post-LN", "pre": "Pre-LN"}


def hessian_eigenvalue(found: pd.DataFrame, *, tokens: int, vocab: int) -> Figure:
    """A column each placement: above against the classes at one number of tokens, below against d/n at one of classes.

    Args:
        found: columns placement, width, tokens, vocab, and ratio with `_sem`, and theory.
        tokens: of the upper row.
        vocab: of the lower row.
    """
    with style():
        figure = Figure(figsize=(8.2, 6.4), layout="constrained", dpi=160)
        axes = figure.subplots(2, len(_TITLES), sharey="row")
        for column, (placement, title) in enumerate(_TITLES.items()):
            here = found[found["placement"] == placement]
            rows = {
                0: here[here["tokens"] == tokens].assign(x=lambda t: t["vocab"] / (t["width"] * t["tokens"]) ** 0.5),
                1: here[here["vocab"] == vocab].assign(x=lambda t: t["width"] / t["tokens"]),
            }
            for row, table in rows.items():
                axis = axes[row, column]
                widths = list(table.groupby("width"))
                for (width, line), look in zip(widths, ordered(len(widths)), strict=True):
                    line = line.sort_values("x")
                    # Thin between the settings: theory is known at these alone.
                    axis.plot(
                        line["x"], line["theory"], color=look["color"], linewidth=0.6, marker="_", markersize=13,
                        markeredgewidth=1.6,
                    )  # fmt: skip
                    axis.errorbar(
                        line["x"], line["ratio"], yerr=2 * line["ratio_sem"], capsize=2.5, label=f"$d={width}$",
                        **({"markersize": 5} | look | {"linestyle": "none"}),
                    )  # fmt: skip
                axis.set(xscale="log", yscale="log")
                decimal_ticks(axis.yaxis)
            axes[0, column].set(title=f"{title}, $n={tokens}$", xlabel=r"classes over $\sqrt{dn}$: $V/\sqrt{dn}$")
            axes[1, column].set(title=f"{title}, $V={vocab}$", xlabel=r"width over labels: $d/n$")
        for axis in axes[:, 0]:
            axis.set_ylabel(r"$\lambda_{\max}(H)/\lambda_{\max}(G)$")
        legend_below(figure, 5, "marks: networks, ± 2 s.e.; bars across, joined by a line: theory")
    return figure
