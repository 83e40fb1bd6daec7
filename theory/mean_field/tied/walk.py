"""The order of the steps of the backward pass with tied embeddings, from the output to the inputs.

Each of the two layouts has its own gradient class with the same methods: its kernel, the part along the stream, and
the effect of norms. The order in which norms, branches and the embedding are passed is the same for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from theory.mean_field.kernels import Array, KernelLayout, Number
from theory.mean_field.passes import Forward
from theory.mean_field.sublayers import (
    Overlaps,
    SquaredNorms,
    SublayerState,
    TokenMoments,
    add_energies,
    of_stream,
    removed_at,
    scaled_overlaps,
    summed_overlaps,
)
from theory.stack import Stack

BranchRule = Callable[[Any, SublayerState[Array], Overlaps[Array]], tuple[Array, Array, SquaredNorms]]
"""A function from a branch's gradient, kernels and removed part to noise and coefficients at its input.

It also returns E‖∂L/∂W‖²/d of the branch's matrices.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Walked:
    """The result of the backward pass with tied embeddings, where gradients correlate with tokens and words.

    Attributes:
        gradient: gradient at the inputs.
        below: place of the inputs.
        at_total: gradient kernel at the last residual sum.
        across: x_j·g_i/√d for the part of the gradient that has left the stream, with x the tokens at the output.
        remains: coefficient of every output token on its input token.
        energies: E‖∂L/∂W‖²/d of every sub-layer, from above.
    """

    gradient: Any
    below: Any
    at_total: Array
    across: Array
    remains: Array
    energies: list[SquaredNorms]


def held_words(stack: Stack, forward: Forward[Array], ones: Array) -> list[Array]:
    """Return how much of its own word embedding each token contains, at the inputs and after every sub-layer.

    Args:
        stack: the network.
        forward: the forward pass.
        ones: array of ones in the shape of the results.
    """
    sizes = [stack.embedding_scale * ones]
    for inside, *_ in forward.insides:
        sizes.append(sizes[-1] * inside.step.residual / norm_root(inside.after_scales))
    return sizes


def walk_down(
    stack: Stack, tokens: KernelLayout[Array], forward: Forward[Array], top: Any, held: list[Array],
    place: Callable[[TokenMoments[Array], Array], Any], rule: BranchRule,
) -> Walked:  # fmt: skip
    """Run the backward pass with tied embeddings from the output to the inputs.

    Args:
        stack: the network.
        tokens: layout of its tokens.
        forward: the forward pass.
        top: gradient at the output.
        held: coefficients on words from `held_words`.
        place: function from the moments of a stream and its tokens' coefficients on words to a place.
        rule: function that passes the gradient through one branch.
    """
    scales = forward.output_scales
    remains = 1.0 / norm_root(scales)
    last = place(forward.stream, held[-1])
    gradient, overlaps = top.below_norm(last, scales), norm_overlaps(top, last, scales)
    collected = [top.norm_parameter_gradients(stack, tokens, last, scales)]
    # What has left the stream on the way down still overlaps with the tokens at the output.
    across = 0.0 * forward.output
    for branches, sizes in reversed(list(zip(forward.insides, held, strict=False))):
        inside = branches[0]  # all branches have the stream and the sum in common
        alpha = inside.step.residual
        of_layer = of_stream(tokens, gradient.kernel(last), stack.width) if inside.step.ends_layer else {}
        total = place(inside.total, sizes * alpha)
        overlaps = norm_overlaps(gradient, total, inside.after_scales) or overlaps
        of_norms = gradient.norm_parameter_gradients(stack, tokens, total, inside.after_scales)
        gradient = gradient.below_norm(total, inside.after_scales)
        size = norm_root(inside.after_scales)
        remains, across = remains / size, across / np.reshape(size, (*np.shape(size), 1))
        if branches is forward.insides[-1]:
            at_total = gradient.kernel(total)
        below = place(inside.stream, sizes)
        gradient, overlaps, left, energies = _below_sublayer(tokens, gradient, overlaps, total, below, branches, rule)
        across = alpha * across + left * remains[..., None, :]
        remains = remains * alpha
        collected.append(add_energies(energies, of_norms) | of_layer)
        last = below
    return Walked(gradient, below, at_total, across, remains, collected)


def _below_sublayer(
    tokens: KernelLayout[Array], gradient: Any, overlaps: Overlaps[Array], total: Any, below: Any,
    branches: Sequence[SublayerState[Array]], rule: BranchRule,
) -> tuple[Any, Overlaps[Array], Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through a sub-layer with all its branches.

    The results include the gradient's removed part, its products with the branches, and squared norms.

    Args:
        tokens: layout of the tokens.
        gradient: gradient at the residual sum.
        overlaps: the part of it that norms above removed, which only attention with random queries needs.
        total: place of the residual sum.
        below: place of the stream before it.
        branches: kernels of the sub-layer, by branch.
        rule: function that passes the gradient through one branch.

    Returns:
        The gradient; its removed part; g·y/√d with y the sum of the branches' outputs; and E‖∂L/∂W‖²/d.
    """
    inside = branches[0]
    alpha, kappa, arriving = inside.step.residual, inside.step.input_scale, gradient.kernel(total)
    direct, left, energies = gradient.noise, 0.0 * gradient.noise, SquaredNorms()
    noises, parts = [], []
    for branch in branches:
        # All but what the branch made is noise to it, what other branches made too; what it made is noise below it.
        tau = branch.step.branch
        known, along = gradient.known(tau, branch.added)
        noise, part, of_branch = _below_branch(tokens, gradient, arriving - known, overlaps, below, branch, rule)
        noises.append(noise)
        parts.append(part)
        energies |= of_branch
        direct, left = direct + known, left + alpha * tau * along
    if inside.step.learned:
        added = reduce(add, (branch.added for branch in branches))
        energies["scalar"] = tokens.total(added * arriving) / inside.step.stack.width
    # Their matrices are independent: noise adds up in the mean, what is known of it in each.
    given = gradient.without_words(kappa**2 * reduce(add, noises), kappa**2 * reduce(add, parts), below)
    energies = add_energies(
        energies, given.norm_parameter_gradients(inside.step.stack, tokens, below, inside.given_scales)
    )
    overlaps = summed_overlaps(scaled_overlaps(overlaps, alpha**4), norm_overlaps(given, below, inside.given_scales))
    given = given.below_norm(below, inside.given_scales)
    return gradient.past_branches(alpha, alpha**2 * direct, given), overlaps, left, energies


def _below_branch(
    tokens: KernelLayout[Array], gradient: Any, others: Array, overlaps: Overlaps[Array], below: Any,
    inside: SublayerState[Array], rule: BranchRule,
) -> tuple[Array, Array, SquaredNorms]:  # fmt: skip
    """Propagate the gradient back through one branch, and return noise, coefficients and squared gradient norms.

    Args:
        tokens: layout of the tokens.
        gradient: gradient at the residual sum.
        others: kernel of the gradient there, without the part along the branch's output.
        overlaps: the part of it that norms above removed.
        below: place of the stream before the sub-layer.
        inside: kernels of the branch.
        rule: function that passes the gradient through the branch.
    """
    tau, place = inside.step.branch, below.without_words(inside.made)
    arrived = gradient.without_words(tau**2 * others, tau**2 * gradient.stream, place)
    of_branch = norm_overlaps(arrived, place, inside.made_scales) or scaled_overlaps(overlaps, tau**4)
    of_norms = arrived.norm_parameter_gradients(inside.step.stack, tokens, place, inside.made_scales)
    noise, part, energies = rule(arrived.below_norm(place, inside.made_scales), inside, of_branch)
    return noise, part, add_energies(energies, of_norms)


def norm_root(scales: Number) -> Array:
    """Return the number by which a norm divides each token; 1 without a norm."""
    return np.ones(1) if isinstance(scales, float) else np.sqrt(np.linalg.diagonal(scales))


def norm_overlaps(gradient: Any, place: Any, scales: Number) -> Overlaps[Array]:
    """Return the component along the residual stream that a norm removes from the gradient; None without a norm."""
    if isinstance(scales, float):
        return None
    above = gradient.above_norm(norm_root(scales))
    return removed_at(above.kernel(place) / scales, TokenMoments(place.kernel), scales)
