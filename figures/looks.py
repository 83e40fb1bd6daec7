"""Colours, marks and lines of matrices and of curves; they load no matplotlib, so that the page has them too."""

import itertools
from collections.abc import Iterator
from typing import Any

WEIGHTS: dict[str, dict[str, Any]] = {
    "grad_sq_W1": {"label": r"$W^1$", "color": "#0072b2", "marker": "o"},
    "grad_sq_W2": {"label": r"$W^2$", "color": "#d55e00", "marker": "s"},
    "grad_sq_WV": {"label": r"$W^V$", "color": "#3b3b3b", "marker": "^"},
    "grad_sq_WG": {"label": r"$W^G$", "color": "#009e73", "marker": "D"},
    "grad_sq_WO": {"label": r"$W^O$", "color": "#cc79a7", "marker": "v"},
    "grad_sq_WQ": {"label": r"$W^Q$", "color": "#7f7f7f", "marker": "P"},
    "grad_sq_WK": {"label": r"$W^K$", "color": "#56b4e9", "marker": "X"},
    "grad_sq_XV": {"label": r"$X^V$", "color": "#3b3b3b", "marker": "2"},
    "grad_sq_XO": {"label": r"$X^O$", "color": "#cc79a7", "marker": "1"},
    "grad_sq_XQ": {"label": r"$X^Q$", "color": "#7f7f7f", "marker": "+"},
    "grad_sq_XK": {"label": r"$X^K$", "color": "#56b4e9", "marker": "x"},
}
"""Of a layer's matrices; W of its attention to itself and its feed-forward branch, X of its attention to a source."""
# The third is open and large, so that it shows on another: curves may coincide.
_CURVES: list[dict[str, Any]] = [
    {"color": "#d55e00", "marker": "o", "linestyle": "-"},
    {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    {"color": "#3b3b3b", "marker": "^", "linestyle": ":", "fillstyle": "none", "markersize": 8},
    {"color": "#009e73", "marker": "D", "linestyle": "-."},
    {"color": "#cc79a7", "marker": "v", "linestyle": (0, (5, 1))},
    {"color": "#7f7f7f", "marker": "P", "linestyle": (0, (1, 1))},
    {"color": "#8c5a2b", "marker": "X", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#56b4e9", "marker": "<", "linestyle": (0, (7, 2))},
    {"color": "#000000", "marker": "*", "linestyle": (0, (4, 1, 1, 1, 1, 1))},
]


def looks() -> Iterator[dict[str, Any]]:
    """Colour, mark and line of one curve after another; they differ together, so that curves stay apart in grey.

    Every round of nine pairs the marks with other colours.
    """
    for number, look in enumerate(itertools.cycle(_CURVES)):
        yield look | {"color": _CURVES[(number + number // len(_CURVES)) % len(_CURVES)]["color"]}
