"""The numbers of docs/theory.md: exponents and ratios of every placement, by the recursion."""

from math import log2

import numpy as np

from theory import Stack, predict
from theory.stack.placements import COMPOSITIONS


def placements_at_a_glance() -> str:
    """Of each placement the last layer's exponents, first over last, and the factor from a layer to the one below."""
    lines = [
        "| placement | `--placement` | last layer in d | last layer in L | first over last, L = 48 | factor a layer |",
        "|---|---|---|---|---|---|",
    ]
    for name, composition in COMPOSITIONS.items():
        if composition.branch(1) == 0:  # its branches begin at nothing, and their gradients at 0
            continue
        wide, narrow = (_norms(name, width=width, vocab=512, depth=6)[-1] for width in (1024, 512))
        deep, shallow = (_norms(name, depth=depth)[-1] for depth in (128, 64))
        layers = _norms(name, depth=48)
        numbers = (log2(wide / narrow), log2(deep / shallow), layers[0] / layers[-1], layers[23] / layers[24])
        cells = " | ".join(f"{number:.{digits}f}" for number, digits in zip(numbers, (2, 2, 2, 3), strict=True))
        lines.append(f"| {composition.title} | `{name}` | {cells.replace('-', '−')} |".replace("−0.00", "0.00"))
    return "\n".join(lines)


def _norms(placement: str, **sizes: int) -> np.ndarray:
    """Root mean squares of W^2's gradient over the layers of the paper's stack."""
    return np.sqrt(predict(Stack(placement=placement, **sizes))["grad_sq_W2"])
