"""The rules of a sub-layer of two streams (ResiDual): y = f(p) is added to p, which is normalized, and to u."""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

import numpy as np

from theory.mean_field.kernels import Array, Number, Tokens
from theory.mean_field.sublayers import (
    Above,
    Branch,
    Energies,
    LastNorm,
    NormOverlaps,
    Passed,
    Pullback,
    Stream,
    dropped_overlaps,
)
from theory.stack import Stack


def doubled(stream: Stream[Array]) -> Stream[Array]:
    """Both streams at the inputs, where they are the same."""
    return Stream(np.tile(stream.kernel, (2, 2)), None if stream.means is None else np.tile(stream.means, 2))


def two_streams(stack: Stack, tokens: Tokens[Array], stream: Stream[Array], branch: Branch[Array]) -> Passed[Array]:
    """One sub-layer of two streams: y = f(p) is added to p, which is normalized, and to u.

    What one stream's rules do to both, and to their products p_i·u_j.
    """
    n = tokens.count
    made, branch_pullback, recorded = branch(tokens, stream.kernel[..., :n, :n])
    dropped = tokens.scale_diagonal(made, 1.0 / (1.0 - stack.dropout))
    summed = Stream(stream.kernel + np.tile(dropped, (2, 2)), stream.means)
    total = Stream(summed.kernel[..., :n, :n], None if stream.means is None else stream.means[:n])
    after, scales = part_normed(stack, summed, slice(None, n), stack.composition.stream_norm)

    def pullback(gradient: Array, above: Above[Array]) -> tuple[Array, Energies, Above[Array]]:
        gradient = gradient / scales
        both = tokens.scale_diagonal(joined(gradient, n), 1.0 / (1.0 - stack.dropout))
        removed = _removed_of_two(stack, gradient, summed, above) if isinstance(above, LastNorm) else None
        below, energies = branch_pullback(both, dropped_overlaps(tokens, removed, 1.0 - stack.dropout))
        gradient[..., :n, :n] += below
        return gradient, energies, above

    return Passed(after, total, pullback, recorded)


def read_out(stack: Stack, tokens: Tokens[Array], stream: Stream[Array]) -> tuple[Array, Number, Pullback[Array]]:
    """The kernel of p + N(u), what a norm divides it by, which is 1, and the way back."""
    n, final_norm = tokens.count, stack.composition.final_norm
    after, both = part_normed(stack, stream, slice(n, None), final_norm)
    tracked = stack.query_key_scale and final_norm
    last = LastNorm(stream.centred().kernel[..., n:, n:]) if tracked else None
    return joined(after.kernel, n), 1.0, lambda gradient, _: (np.tile(gradient, (2, 2)) / both, {}, last)


def _removed_of_two(stack: Stack, gradient: Array, summed: Stream[Array], last: LastNorm) -> NormOverlaps[Array]:
    """What the norm of z = p + y and the last norm of u removed of the gradient of both streams together.

    Args:
        stack: the network.
        gradient: kernel of the 2N gradients below the norm of z.
        summed: both streams with y added.
        last: u at the last norm.
    """
    kernel = summed.centred().kernel.copy()
    n = kernel.shape[-1] // 2
    # Later branches are orthogonal to z, so that u there has the same products with it.
    kernel[..., n:, n:] = last.kernel
    roots = np.linalg.diagonal(kernel) + stack.norm_epsilon
    first = (gradient / roots[..., :, None]).reshape(*gradient.shape[:-2], 2, n, 2, n)
    second = joined(gradient * kernel / (roots[..., :, None] * roots[..., None, :]), n)
    return NormOverlaps(first.sum((-4, -2)), second)


def part_normed(stack: Stack, stream: Stream[Array], part: slice, norm: bool) -> tuple[Stream[Array], Array]:
    """`normed` of one of two streams: the products with the other are divided by one of the roots."""
    after = stream.centred(part) if norm else stream
    root = np.ones(after.kernel.shape[:-1])
    if norm:
        energies = np.linalg.diagonal(after.kernel)
        root[..., part] = np.sqrt(energies[..., part] + stack.norm_epsilon)
    scales = root[..., :, None] * root[..., None, :]
    return Stream(after.kernel / scales, after.means), scales


def joined(kernel: Array, count: int) -> Array:
    """The kernel of p + u from that of the 2N tokens p and u; for gradients, what both together pass on."""
    return kernel.reshape(*kernel.shape[:-2], 2, count, 2, count).sum((-4, -2))
