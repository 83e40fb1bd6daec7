"""The rules of a sub-layer of two streams (ResiDual): y = f(p) is added to p, which is normalized, and to u."""

import numpy as np

from theory.mean_field.kernels import Kernel, Tokens
from theory.mean_field.sublayers import Branch, Energies, Overlaps, Passed, Stream, dropped_overlaps
from theory.stack import Stack


def two_streams(stack: Stack, tokens: Tokens, stream: Stream, branch: Branch) -> Passed:
    """One sub-layer of two streams: y = f(p) is added to p, which is normalized, and to u.

    What one stream's rules do to both, and to their products p_i·u_j.
    """
    n = tokens.count
    made, branch_pullback, recorded = branch(tokens, stream.kernel[..., :n, :n])
    dropped = tokens.scale_diagonal(made, 1.0 / (1.0 - stack.dropout))
    summed = Stream(stream.kernel + np.tile(dropped, (2, 2)), stream.means)
    total = Stream(summed.kernel[..., :n, :n], None if stream.means is None else stream.means[:n])
    after, scales = part_normed(stack, summed, slice(None, n), stack.composition.stream_norm)

    def pullback(gradient: Kernel, last: Overlaps) -> tuple[Kernel, Energies, Overlaps]:
        gradient = gradient / scales
        both = tokens.scale_diagonal(joined(gradient, n), 1.0 / (1.0 - stack.dropout))
        removed = None if last is None else _removed_of_two(stack, gradient, summed, last)
        below, energies = branch_pullback(both, dropped_overlaps(tokens, removed, 1.0 - stack.dropout))
        gradient[..., :n, :n] += below
        return gradient, energies, last

    return Passed(after, total, pullback, recorded)


def _removed_of_two(stack: Stack, gradient: Kernel, summed: Stream, last: Kernel) -> Overlaps:
    """What the norm of z = p + y and the last norm of u removed of the gradient of both streams together.

    Args:
        stack: the network.
        gradient: kernel of the 2N gradients below the norm of z.
        summed: both streams with y added.
        last: kernel of u at the last norm.
    """
    kernel = summed.centred().kernel.copy()
    n = kernel.shape[-1] // 2
    # Later branches are orthogonal to z, so that u there has the same products with it.
    kernel[..., n:, n:] = last
    roots = np.linalg.diagonal(kernel) + stack.norm_epsilon
    first = (gradient / roots[..., :, None]).reshape(*gradient.shape[:-2], 2, n, 2, n)
    return first.sum((-4, -2)), joined(gradient * kernel / (roots[..., :, None] * roots[..., None, :]), n)


def part_normed(stack: Stack, stream: Stream, part: slice, norm: bool) -> tuple[Stream, Kernel]:
    """`normed` of one of two streams: the products with the other are divided by one of the roots."""
    after = stream.centred(part) if norm else stream
    root = np.ones(after.kernel.shape[:-1])
    if norm:
        energies = np.linalg.diagonal(after.kernel)
        root[..., part] = np.sqrt(energies[..., part] + stack.norm_epsilon)
    scales = root[..., :, None] * root[..., None, :]
    return Stream(after.kernel / scales, after.means), scales


def joined(kernel: Kernel, count: int) -> Kernel:
    """The kernel of p + u from that of the 2N tokens p and u; for gradients, what both together pass on."""
    return kernel.reshape(*kernel.shape[:-2], 2, count, 2, count).sum((-4, -2))
