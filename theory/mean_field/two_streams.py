"""Sub-layers with two residual streams (ResiDual), of which only the first is normalized after every sum.

The branch's output τ f(p) is added to α p, which is normalized, and to the second stream u.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

import numpy as np

from theory.mean_field.kernels import Array, KernelLayout, Number
from theory.mean_field.sublayers import (
    Above,
    Branch,
    LastNorm,
    NormOverlaps,
    Passed,
    Pullback,
    SquaredNorms,
    TokenMoments,
    dropped_overlaps,
    scaled_overlaps,
)
from theory.stack import Stack
from theory.stack.plan import Step


def as_two_streams(stream: TokenMoments[Array]) -> TokenMoments[Array]:
    """Return the moments of both residual streams at the inputs, where the two streams are equal."""
    return TokenMoments(np.tile(stream.kernel, (2, 2)), None if stream.means is None else np.tile(stream.means, 2))


def two_streams(
    step: Step, tokens: KernelLayout[Array], stream: TokenMoments[Array], branch: Branch[Array]
) -> Passed[Array]:
    """Add the output of a sub-layer to two residual streams, of which only the first is then normalized.

    The first stream p becomes norm(α p + y), and the second stream u becomes u + y, with y = τ f(p). The rules of one
    stream apply to both, and to their products p_i·u_j.

    Args:
        step: the sub-layer.
        tokens: layout of the tokens.
        stream: moments of both streams before it.
        branch: rule of the branch f.
    """
    n, stack = tokens.count, step.stack
    kept, tau_sq = 1.0 - stack.dropout, step.branch**2
    alpha = np.repeat([step.residual, 1.0], n)
    both_alphas = np.outer(alpha, alpha)
    branch_kernel, branch_pullback, recorded = branch(tokens, stream.kernel[..., :n, :n])
    added = tokens.scale_diagonal(branch_kernel, 1.0 / kept) * tau_sq
    means = None if stream.means is None else stream.means * alpha
    summed = TokenMoments(stream.kernel * both_alphas + np.tile(added, (2, 2)), means)
    total = TokenMoments(summed.kernel[..., :n, :n], None if means is None else means[:n])
    after, scales = part_normed(stack, summed, slice(None, n), stack.composition.stream_norm)

    def pullback(gradient: Array, above: Above[Array]) -> tuple[Array, SquaredNorms, Above[Array]]:
        gradient = gradient / scales
        both = tokens.scale_diagonal(as_one(gradient, n), 1.0 / kept) * tau_sq
        removed = None
        if isinstance(above, LastNorm):
            removed = scaled_overlaps(_removed_of_two(stack, gradient, summed, above), tau_sq**2)
        below, energies = branch_pullback(both, dropped_overlaps(tokens, removed, kept))
        gradient = gradient * both_alphas
        gradient[..., :n, :n] += below
        return gradient, energies, above

    return Passed(after, total, pullback, recorded)


def read_out(
    stack: Stack, tokens: KernelLayout[Array], stream: TokenMoments[Array]
) -> tuple[Array, Number, Pullback[Array]]:
    """Return the kernel of the output matrix's input, which is the sum of two streams, and its backward rule.

    The sum is p + N(u) with the final norm N. The divisor, 1, is returned between the two.
    """
    n, final_norm = tokens.count, stack.composition.final_norm
    after, both = part_normed(stack, stream, slice(n, None), final_norm)
    last = LastNorm(stream.centred().kernel[..., n:, n:]) if stack.query_key_scale and final_norm else None
    return as_one(after.kernel, n), 1.0, lambda gradient, _: (np.tile(gradient, (2, 2)) / both, {}, last)


def _removed_of_two(stack: Stack, gradient: Array, summed: TokenMoments[Array], last: LastNorm) -> NormOverlaps[Array]:
    """Return the gradient component that norms removed, in a sub-layer of two residual streams.

    The norm of z = p + y and the last norm of u removed it from the gradient of both streams.

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
    second = as_one(gradient * kernel / (roots[..., :, None] * roots[..., None, :]), n)
    return NormOverlaps(first.sum((-4, -2)), second)


def part_normed(
    stack: Stack, stream: TokenMoments[Array], part: slice, norm: bool
) -> tuple[TokenMoments[Array], Array]:
    """Apply a norm to one of two residual streams, and return the divisors of their common kernel.

    Products with the other stream are divided by one of the roots.

    Args:
        stack: the network.
        stream: moments of both streams.
        part: slice of the normalized stream's tokens.
        norm: whether there is a norm.
    """
    after = stream.centred(part) if norm else stream
    root = np.ones(after.kernel.shape[:-1])
    if norm:
        root[..., part] = np.sqrt(np.linalg.diagonal(after.kernel)[..., part] + stack.norm_epsilon) / stack.norm_gain
    scales = root[..., :, None] * root[..., None, :]
    return TokenMoments(after.kernel / scales, after.means), scales


def as_one(kernel: Array, count: int) -> Array:
    """Return the kernel of the sum of two residual streams from the kernel of both streams' tokens.

    The sum p + u has N tokens, and both streams have 2N. The rule holds for gradients, too.
    """
    return kernel.reshape(*kernel.shape[:-2], 2, count, 2, count).sum((-4, -2))
