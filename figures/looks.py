"""The colors, markers and line styles of the curves in all figures, without importing matplotlib."""

import itertools
from collections.abc import Iterator
from typing import Any

PLACEMENTS: dict[str, dict[str, Any]] = {
    "post": {"color": "#d55e00", "marker": "o", "linestyle": "-"},
    "pre": {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    # Open and large, so that it shows on another: curves of Pre-LN, Peri-LN and the output norm nearly coincide.
    "peri": {"color": "#3b3b3b", "marker": "^", "linestyle": ":", "fillstyle": "none", "markersize": 8},
    "output": {"color": "#009e73", "marker": "D", "linestyle": "-."},
    "deepnorm": {"color": "#cc79a7", "marker": "v", "linestyle": (0, (5, 1))},
    "scaled": {"color": "#7f7f7f", "marker": "P", "linestyle": (0, (1, 1))},
    "keel": {"color": "#8c5a2b", "marker": "X", "linestyle": (0, (3, 1, 1, 1))},
    "residual": {"color": "#56b4e9", "marker": "<", "linestyle": (0, (7, 2))},
    "rezero": {"color": "#e69f00", "marker": ">", "linestyle": (0, (2, 2))},
    "unnormed": {"color": "#000000", "marker": "*", "linestyle": (0, (4, 1, 1, 1, 1, 1))},
}
"""Color, marker and dashes of each placement, in every figure; only greys are also used for other curves."""

WEIGHTS: dict[str, dict[str, Any]] = {
    "grad_sq_W1": {"label": r"$W^1$", "color": "#44aa99", "marker": "o"},
    "grad_sq_W2": {"label": r"$W^2$", "color": "#882255", "marker": "s"},
    "grad_sq_WV": {"label": r"$W^V$", "color": "#332288", "marker": "^"},
    "grad_sq_WG": {"label": r"$W^G$", "color": "#999933", "marker": "D"},
    "grad_sq_WO": {"label": r"$W^O$", "color": "#cc6677", "marker": "v"},
    "grad_sq_WQ": {"label": r"$W^Q$", "color": "#117733", "marker": "P"},
    "grad_sq_WK": {"label": r"$W^K$", "color": "#88ccee", "marker": "X"},
    "grad_sq_XV": {"label": r"$X^V$", "color": "#332288", "marker": "2"},
    "grad_sq_XO": {"label": r"$X^O$", "color": "#cc6677", "marker": "1"},
    "grad_sq_XQ": {"label": r"$X^Q$", "color": "#117733", "marker": "+"},
    "grad_sq_XK": {"label": r"$X^K$", "color": "#88ccee", "marker": "x"},
}
"""Label, color and marker of each matrix of a layer: W for self-attention and feed-forward branch, X for
cross-attention.
"""
# The third is open and large, so that it shows on another: curves may coincide.
CURVES: list[dict[str, Any]] = [
    {"color": "#332288", "marker": "o", "linestyle": "-"},
    {"color": "#44aa99", "marker": "s", "linestyle": "--"},
    {"color": "#882255", "marker": "^", "linestyle": ":", "fillstyle": "none", "markersize": 8},
    {"color": "#999933", "marker": "D", "linestyle": "-."},
    {"color": "#cc6677", "marker": "v", "linestyle": (0, (5, 1))},
    {"color": "#117733", "marker": "P", "linestyle": (0, (1, 1))},
    {"color": "#88ccee", "marker": "X", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#aa4499", "marker": "<", "linestyle": (0, (7, 2))},
    {"color": "#000000", "marker": "*", "linestyle": (0, (4, 1, 1, 1, 1, 1))},
]
"""Color, marker and line style of curves that are not placements."""


def looks() -> Iterator[dict[str, Any]]:
    """Yield a different color, marker and line style for each curve that does not belong to a LayerNorm placement.

    Markers and line styles differ too, so that curves can be told apart in grey. Each round of nine combines the
    markers with other colors.
    """
    for number, look in enumerate(itertools.cycle(CURVES)):
        yield look | {"color": CURVES[(number + number // len(CURVES)) % len(CURVES)]["color"]}
