"""The way down of a gradient with overlaps, from the output to the inputs, by all tokens or by representatives of text.

Every layout has a gradient of its own, with one set of methods: its kernel, what lies along the stream, and what norms
do to it. The order in which norms, branches and the embedding are passed is the same for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.mean_field.kernels import Array, KernelLayout, Number
from theory.mean_field.passes import Forward
from theory.mean_field.sublayers import Overlaps, SquaredNorms, SublayerState, TokenMoments, removed_at, with_more
from theory.stack import Stack

Below = Callable[
    [Any, Overlaps[Array], Any, Any, Sequence[SublayerState[Array]]], tuple[Any, Overlaps[Array], Array, SquaredNorms]
]
"""From a gradient at a residual sum to the one before its sub-layer: with overlaps, what left the stream, energies."""


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """The end of the way down.

    Attributes:
        gradient: at the inputs.
        below: the place there.
        at_total: kernel of the gradient at the last residual sum.
        across: x_j·g_i/√d of what left the stream, with x the tokens at the output.
        remains: share of every token of the inputs that the tokens at the output hold.
        energies: of every sub-layer, from above.
    """

    gradient: Any
    below: Any
    at_total: Array
    across: Array
    remains: Array
    energies: list[SquaredNorms]


def held_words(stack: Stack, forward: Forward[Array], ones: Array) -> list[Array]:
    """How much of its word every token holds, at the inputs and behind every sub-layer, in the shape of `ones`."""
    sizes = [stack.embedding_scale * ones]
    for inside, *_ in forward.insides:
        sizes.append(sizes[-1] * inside.step.residual / norm_root(inside.after_scales))
    return sizes


def walk_down(
    stack: Stack, tokens: KernelLayout[Array], forward: Forward[Array], top: Any, held: list[Array],
    place: Callable[[TokenMoments[Array], Array], Any], below_sublayer: Below,
) -> Walked:  # fmt: skip
    """Carry a gradient from the output to the inputs.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        forward: the way up.
        top: the gradient at the output.
        held: as `held_words` gives it.
        place: from the moments of a stream and what its tokens hold of their words to a place.
        below_sublayer: the way through one sub-layer.
    """
    scales = forward.output_scales
    remains = 1.0 / norm_root(scales)
    last = place(forward.stream, held[-1])
    gradient, overlaps = top.below_norm(last, scales), norm_overlaps(top, last, scales)
    collected = [top.of_norm(stack, tokens, last, scales)]
    # What has left the stream on the way down still overlaps with the tokens at the output.
    across = 0.0 * forward.output
    for branches, sizes in reversed(list(zip(forward.insides, held, strict=False))):
        inside = branches[0]  # all branches have the stream and the sum in common
        alpha = inside.step.residual
        total = place(inside.total, sizes * alpha)
        overlaps = norm_overlaps(gradient, total, inside.after_scales) or overlaps
        of_norms = gradient.of_norm(stack, tokens, total, inside.after_scales)
        gradient = gradient.below_norm(total, inside.after_scales)
        size = norm_root(inside.after_scales)
        remains, across = remains / size, across / np.reshape(size, (*np.shape(size), 1))
        if branches is forward.insides[-1]:
            at_total = gradient.kernel(total)
        below = place(inside.stream, sizes)
        gradient, overlaps, left, energies = below_sublayer(gradient, overlaps, total, below, branches)
        across = alpha * across + left * remains[..., None, :]
        remains = remains * alpha
        collected.append(with_more(energies, of_norms))
    return Walked(gradient, below, at_total, across, remains, collected)


def norm_root(scales: Number) -> Array:
    """What a norm divides each token by; 1 if there is none."""
    return np.ones(1) if isinstance(scales, float) else np.sqrt(np.linalg.diagonal(scales))


def norm_overlaps(gradient: Any, place: Any, scales: Number) -> Overlaps[Array]:
    """What a norm removes of a gradient along the stream beside what is certain; None if there is no norm."""
    if isinstance(scales, float):
        return None
    above = gradient.above_norm(norm_root(scales))
    return removed_at(above.kernel(place) / scales, TokenMoments(place.kernel), scales)
