"""A table of docs/encoder_decoder.md, of committed results alone."""

import numpy as np

from tests.helpers.rendered.atlas import committed, table
from theory.stack import TITLES

_WIDTHS = (256, 512, 1024)
_MATRICES = {
    "decoder XQ": "$W^{Q\\times}$", "decoder XK": "$W^{K\\times}$", "decoder WQ": "$W^Q$, decoder",
    "encoder WQ": "$W^Q$, encoder", "decoder W2": "$W^2$, decoder",
}  # fmt: skip


def queries_as_models_widen() -> str:
    """Measured norms over theory with products' means, and over theory with products drawn, by width."""
    found, rows = committed("query-widths"), []
    for placement in ("post", "pre"):
        for name, said in _MATRICES.items():
            cells = []
            for width in _WIDTHS:
                case = found[f"{placement}, d = {width}"]
                ratios = [np.array(case[how][name]) for how in ("products' means", "products drawn")]
                error = ratios[1].std(ddof=1) / len(ratios[1]) ** 0.5
                cells += [f"{ratios[0].mean():.2f}", f"{ratios[1].mean():.2f} ± {error:.2f}"]
            rows.append([f"{TITLES[placement]}, {said}", *cells])
    heads = [f"$d = {d}$, {how}" for d in _WIDTHS for how in ("means", "drawn")]
    return table(["", *heads], rows)
