"""An exact test of which inputs an output depends on: later positions, earlier positions, or other samples.

The test computes the gradient of half of one sample's positions at all inputs. If an output does not depend on an
input, as with a causal mask, the gradient is 0, because a masked weight is exactly 0 in floating point. Both the first
and the last sample are tested, because in a recurrence along the batch the first one depends on no other.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

# The part of a gradient that is rounding, such as of a Fourier transform: what is below it is no dependence.
ROUNDING = 1e-6
# So many blocks of positions are found at most.
_BLOCKS = 64


def dependences(x: Tensor, y: Tensor, axis: int) -> Mapping[str, float]:
    """Measure how much of one sample's outputs depends on other positions and samples, by exact gradients.

    Half of the sample's outputs are tested, and the results are shares of the gradient.

    Args:
        x: a layer's input, (samples, positions, width) or with positions first, or (samples, ...) of any shape.
        y: the layer's output, with its graph, which is kept.
        axis: the axis of positions, 0 or -2, for tensors with three axes.

    Returns:
        Norms of parts of the gradient divided by its norm at all inputs. "sees_later" is for the first half of the
        outputs at the second half of the inputs, and "sees_earlier" is the reverse; both require equal numbers of
        positions, at least two. "sees_samples" is for inputs of other samples, if there are some. The first half is
        taken in the first sample, the second half in the last. The result is empty without a gradient.
    """
    positions = x.ndim == y.ndim == 3 and x.shape[axis] == y.shape[axis] > 1
    across = 1 if positions and axis == 0 else 0
    if x.ndim < 2 or y.ndim < 2 or x.shape[across] != y.shape[across]:
        return {}
    # Two documents may meet in the middle: then another split tells.
    for middle in dict.fromkeys((y.shape[axis] // 2, y.shape[axis] // 3)):
        seen = _split(x, y, across, slice(None, middle), slice(middle, None), positions=positions)
        if max(seen.get("sees_later", 1.0), seen.get("sees_earlier", 1.0)) > 0 or y.shape[axis] < 3:
            break
    # Of a Fourier transform what is 0 is rounding, which is told from the part of a layer of small factor.
    most = max(seen.get("sees_later", 0.0), seen.get("sees_earlier", 0.0))
    seen = {
        name: value if value > ROUNDING * (1.0 if name == "sees_samples" else most) else 0.0
        for name, value in seen.items()
    }
    if middle > 1 and seen.get("sees_later", 0.0) > 0.0 == seen["sees_earlier"]:
        # A class token at the first position that alone sees others tells nothing about a mask.
        inner = _split(x, y, across, slice(1, middle), slice(middle, None), positions=positions)
        if inner.get("sees_later") == 0.0:
            seen = {name: value for name, value in seen.items() if name == "sees_samples"}
    return seen


def _split(x: Tensor, y: Tensor, across: int, first: slice, second: slice, *, positions: bool) -> dict[str, float]:
    seen: dict[str, float] = {}
    for half, name, others, sample in ((first, "sees_later", second, 0), (second, "sees_earlier", first, -1)):
        asked = half if positions else slice(None)
        squares = _squared_gradient(x, y, _chosen(y, across, sample, asked))
        if sample and squares is not None and not bool(squares.any()):
            # The end of the last sample may be padding.
            sample, squares = 0, _squared_gradient(x, y, _chosen(y, across, 0, asked))
        total = 0.0 if squares is None else float(squares.sum())
        if squares is None or not 0 < total < float("inf"):
            return {}
        if x.shape[across] > 1:
            outside = float(squares.narrow(across, 1 + sample, x.shape[across] - 1).sum())
            seen["sees_samples"] = max(seen.get("sees_samples", 0.0), (outside / total) ** 0.5)
        if positions:
            seen[name] = (float(squares.select(across, sample)[others].sum()) / total) ** 0.5
    return seen


def blocks(x: Tensor, y: Tensor) -> tuple[list[int], int]:
    """Find blocks of positions in a sequence that do not depend on one another, such as packed documents.

    The blocks are of positions in the first sample.

    The search goes from the last position backwards: before the first position on which an output depends, another
    block ends.

    Args:
        x: the input, (samples, positions, width).
        y: the output, of the same shape, with its graph, which is kept.

    Returns:
        The positions where blocks begin, and how many positions back the last position sees, if neighbours see equally
        far back (an attention window); 0 without a window. Without blocks and window ([], 0).
    """
    begins, place, before = list[int](), y.shape[1] - 1, -1
    for _ in range(_BLOCKS if x.ndim == y.ndim == 3 and x.shape[1] == y.shape[1] else 0):
        chosen = torch.zeros_like(y)
        chosen[0, place] = torch.randn(y.shape[2:], generator=torch.Generator().manual_seed(0)).to(y)
        squares = _squared_gradient(x, y, chosen)
        if squares is None or not bool(squares.any()):
            return [], 0
        rows = squares[0].sum(-1)
        rows[place] = 0.0
        seen = (rows > ROUNDING**2 * rows.max()).nonzero()
        first = min(int(seen[0]) if len(seen) else place, place)
        if before < 0 and first > 0:
            # The neighbour of the last one sees the same first position, or the one before it.
            before, place = first, place - 1
            begins.append(first)
            continue
        if before > 0 and len(begins) == 1 and first != before:
            return [], y.shape[1] - 1 - before if first == before - 1 else 0
        begins.append(first)
        if first == 0:
            return sorted({*begins}), 0
        place = first - 1
    return [], 0


def _chosen(y: Tensor, across: int, sample: int, half: slice) -> Tensor:
    """Return a tensor with random numbers at the positions `half` of one sample's outputs, and 0 elsewhere."""
    chosen = torch.zeros_like(y)
    rows = chosen.select(across, sample)[half]
    rows.copy_(torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)))
    return chosen


def _squared_gradient(x: Tensor, y: Tensor, chosen: Tensor) -> Tensor | None:
    """Return the squared entries of the gradient of <chosen, y> at x; None without a gradient."""
    try:
        (gradient,) = torch.autograd.grad(y, x, chosen, retain_graph=True, allow_unused=True)
    except RuntimeError:
        # Such as of checkpointed layers, which do without such a question.
        return None
    return None if gradient is None else gradient.detach().double().square()
