"""Which inputs an output depends on: of other positions, earlier and later, and of other samples.

An exact test and no statistics: of one half of the positions of one sample the gradient at all inputs is taken. Where
an output does not depend on an input, as behind a causal mask, it is 0: a masked weight is exactly 0 in floating point.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

# The part of a gradient that is rounding, such as of a Fourier transform: what is below it is no dependence.
ROUNDING = 1e-6


def dependences(x: Tensor, y: Tensor, axis: int, *, sample: int = 0) -> Mapping[str, float]:
    """What the outputs of a sample depend on, in both halves of its positions.

    Args:
        x: input of a layer, (samples, positions, width), or positions first, or (samples, ...) of any shape.
        y: output, still with its graph, which stays.
        axis: that of positions, 0 or -2, where there are three.
        sample: the first, 0, or the last, -1.

    Returns:
        Norms of parts of the gradient over that at all inputs: "sees_later", of the first half of the outputs at the
        second half of the inputs, and "sees_earlier" the other way round, where x and y have equally many positions, at
        least two; "sees_samples", at other samples, where there are some. Empty where there is no gradient.
    """
    positions = x.ndim == y.ndim == 3 and x.shape[axis] == y.shape[axis] > 1
    across = 1 if positions and axis == 0 else 0
    if x.ndim < 2 or y.ndim < 2 or x.shape[across] != y.shape[across]:
        return {}
    middle = y.shape[axis] // 2
    first, second = slice(None, middle), slice(middle, None)
    seen: dict[str, float] = {}
    for half, name, others in ((first, "sees_later", second), (second, "sees_earlier", first)):
        chosen = torch.zeros_like(y)
        rows = chosen.select(across, sample)
        rows = rows[half] if positions else rows
        rows.copy_(torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)))
        squares = _squared_gradient(x, y, chosen)
        total = 0.0 if squares is None else float(squares.sum())
        if squares is None or not 0 < total < float("inf"):
            return {}
        if x.shape[across] > 1:
            outside = float(squares.narrow(across, 1 + sample, x.shape[across] - 1).sum())
            seen["sees_samples"] = max(seen.get("sees_samples", 0.0), (outside / total) ** 0.5)
        if not positions:
            break
        seen[name] = (float(squares.select(across, sample)[others].sum()) / total) ** 0.5
    return seen


def _squared_gradient(x: Tensor, y: Tensor, chosen: Tensor) -> Tensor | None:
    """Of <chosen, y> by x, every entry's square; None where there is none, or it cannot be asked for."""
    try:
        (gradient,) = torch.autograd.grad(y, x, chosen, retain_graph=True, allow_unused=True)
    except RuntimeError:
        # Such as of checkpointed layers, which do without such a question.
        return None
    return None if gradient is None else gradient.detach().double().square()
