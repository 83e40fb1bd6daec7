"""The cosine of two tokens over the layers, where uniform attention averages the tokens (rank collapse)."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.style import MEASURED, looks, message, name_ends, pale_line, panels, style
from simulate.runs.sample import sample
from theory import Stack, predict

KINDS = {
    "Post-LN": Stack(placement="post", depth=24),
    "Pre-LN": Stack(placement="pre", depth=24),
    "Post-LN, branches times 1/L": Stack(placement="post", depth=24, branch_scaling="inverse_depth"),
}
"""Networks of the figure by name: those that the page of questions names."""


def token_alignment(draws: int = 16) -> Figure:
    """Draw the cosine of two tokens after every layer: large-width theory, and random networks with two errors."""
    with style():
        figure, (axis,) = panels(1)
        figure.set_size_inches(6.4, 3.6)
        ends = []
        for look, (name, stack) in zip(looks(), KINDS.items(), strict=False):
            predicted, samples = predict(stack), sample(stack, draws=draws, seed=0)
            theory, cosines = _cosines(predicted), _cosines(samples)
            layers = np.arange(1, stack.depth + 1)
            pale_line(axis, layers, theory, look["color"])
            errors = 2 * cosines.std(axis=0, ddof=1) / np.sqrt(draws)
            axis.errorbar(layers, cosines.mean(axis=0), yerr=errors, color=look["color"], **MEASURED)
            ends.append((layers[-1], theory[-1], name, look["color"]))
        axis.set(xlabel="layer $l$", ylabel="cosine of two tokens", xlim=(0.5, stack.depth + 0.5), ylim=(-0.04, 1.04))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        name_ends(axis, ends)
        message(figure, "In Post-LN all tokens become alike within ten layers")
        about = f"$d = {stack.width}$, $n = {stack.tokens}$; marks: {draws} random networks (± 2 s.e.); pale: theory"
        figure.supxlabel(about, fontsize=8)
    return figure


def _cosines(numbers: Any) -> Any:
    """The mean inner product of two tokens over their mean square."""
    return numbers["token_correlation"] / numbers["hidden_energy"]


def draw(picture: Path) -> None:
    """Draw the figure into a file and an SVG, and print the digest that docs/figures/manifest.toml has of it."""
    with style():
        figure = token_alignment()
        figure.savefig(picture)
        figure.savefig(picture.with_suffix(".svg"), metadata={"Date": None})
    print(hashlib.sha256(picture.read_bytes()).hexdigest())
