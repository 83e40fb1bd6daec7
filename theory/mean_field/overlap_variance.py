"""The variance of the inner product of two tokens' vectors, and the MLP averaged over it.

It matters for networks with about as many tokens as the width.

Given the network, independent tokens x_j are independent vectors with a covariance Σ. The deviation of x_j·x_l/d from
its mean has the variance tr Σ²/d² = ρ δ²/d, with δ = tr Σ/d and ρ = d tr Σ²/(tr Σ)² of at least 1. For one pair that
is small. Gradients of queries and keys sum a product of two such products over n² pairs, in addition to n products of
a token with itself, so that ρ n/d matters where n is of the order of d.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from typing import Any, cast

import numpy as np

from theory.mean_field.activations import activation_of
from theory.mean_field.gaussian import normal_rule
from theory.mean_field.kernels import Array
from theory.mean_field.sublayers import Branch, BranchPullback, Overlaps, Passed, Recorded, SquaredNorms, feed_forward
from theory.mean_field.token_groups import GroupLayout
from theory.stack import Stack
from theory.stack.plan import Step
from theory.stack.weights import gain

# Nodes per standard deviation; a kink of an activation costs 1% of what units vary.
_DENSITY = 8.0


def propagate_overlap_variance(ratio: Array, step: Step, tokens: GroupLayout, passed: Passed[Any]) -> Array:
    """Return the factor ρ on the variance of token products after a sub-layer, given the factor before it, (batch,).

    Products of the stream pass with their slope ∂K_jl/∂Q_jl. Each random matrix adds the variance of independent
    vectors. The m hidden units of an MLP add d/m times the variance of single units' variances over tokens, given the
    tokens' common part.

    Args:
        ratio: ρ before, (batch,) or (1,).
        step: the sub-layer.
        tokens: layout of its tokens.
        passed: record of the sub-layer; for several branches at once there is no rule, and ρ stays.
    """
    if len(passed.insides) != 1:
        return ratio
    (inside,) = passed.insides
    before, added = (_differing(tokens, kernel) for kernel in (inside.stream.kernel, inside.added))
    before, added = before * step.residual**2, added * step.branch**2
    slope: Array | float = step.residual**2
    independent = added**2 + 2.0 * before * added
    if "units" in step.kinds:
        ones = np.ones_like(inside.given)
        below, *_ = passed.pullback(ones, None)
        below = tokens.over_ends(below)
        # The slope of the sum: a norm above divides both ways.
        slope = _between(tokens, below) * _between(tokens, ones * inside.after_scales)
        independent = independent + added**2 * step.stack.width / step.stack.ffn_width * _excess(
            step.stack, tokens, inside.given
        )
    after = _differing(tokens, inside.total.kernel)
    varying = slope**2 * ratio * (before / step.residual**2) ** 2 + independent
    # Of one token, or of tokens that are the same, nothing varies, and ρ weighs nothing.
    return np.divide(varying, after**2, out=np.ones_like(varying), where=after > 0)


def _between(tokens: GroupLayout, kernel: Array) -> Array:
    """Return the mean kernel entry of two different tokens, or of a token with itself if there is only one."""
    return np.asarray(tokens.off_diagonal(kernel) if tokens.count > 1 else tokens.diagonal(kernel))


def _differing(tokens: GroupLayout, kernel: Array) -> Array:
    """Return δ = K_ii − K_ij, with both entries averaged over tokens."""
    return np.asarray(np.maximum(tokens.diagonal(kernel) - _between(tokens, kernel), 0.0))


def _excess(stack: Stack, tokens: GroupLayout, given: Array) -> Array:
    """Return E v²/(E v)², with v the variance of a hidden unit over tokens, given the tokens' common part.

    For φ(u) with u = √c u_0 + √δ u_1, or φ(u) times an independent factor of the same form, v depends only on u_0.

    Args:
        stack: the network.
        tokens: layout of the tokens.
        given: kernel of the MLP's input.
    """
    activation = activation_of(stack.activation, stack.leaky_slope)
    nodes, weights = normal_rule(_DENSITY)
    first = gain(stack, "WG" if stack.ffn == "gated" else "W1")
    ratios = []
    for common, differing in zip(*np.atleast_1d(_between(tokens, given), _differing(tokens, given)), strict=True):
        common = max(float(common), 0.0)
        value = activation.value(np.sqrt(first * common) * nodes[:, None] + np.sqrt(first * differing) * nodes)
        square, variance = value**2 @ weights, value**2 @ weights - (value @ weights) ** 2
        if stack.ffn == "gated":
            c, s = common, differing
            mean = (variance * c + square * s) @ weights
            squared = (3 * variance**2 * c**2 + 2 * variance * square * c * s + square**2 * s**2) @ weights
        else:
            mean, squared = variance @ weights, variance**2 @ weights
        ratios.append(squared / mean**2 if mean > 0 else 1.0)
    return np.array(ratios)


def chance_variance(stack: Stack, kernel: Array, ratio: Array) -> Array:
    """Return the variance of the product x_i·x_j/d of two tokens that comes from chance at finite width d.

    It is ρ (q_i q_j − Q_ij²)²/(q_i q_j d), (batch, r, r): the variance of the correlation times both mean squared
    activations, because norms remove all other variation.

    Args:
        stack: the network.
        kernel: Q_ij = x_i·x_j/d of the residual stream, (batch, r, r), with q_i = Q_ii.
        ratio: ρ of `overlap_variance`, (batch,) or (1,).
    """
    energies = np.linalg.diagonal(kernel)
    both = energies[..., :, None] * energies[..., None, :]
    return np.asarray(ratio[:, None, None] / stack.width * np.maximum(both - np.square(kernel), 0.0) ** 2 / both)


def averaged_units(stack: Stack, ratio: Array, of_words: Array, rule: Branch[Array] | None = None) -> Branch[Array]:
    """Return the forward and backward pass of the MLP for token groups, averaged over random products of two tokens.

    Each average is the mean of the kernels at one standard deviation above and below.

    A product Q_ij of two different tokens has a variance of order 1/d, by chance in the weights. It also varies over
    texts (`text_counts`). MLPs are not linear in Q_ij. A gated MLP with the kernel c k(c) adds k'(0) Var c to the mean,
    and the mean of c is of order 1/n: a relative n/d. A squared norm sums Q_ij times a function of Q_ij over all pairs.
    A text has 1/κ pairs of different token ids for each pair of equal ids, so that the variance adds 1/(κ d) to the
    gradient that two sequences share: a tenth for κ = 0.01 and d = 1000.

    The backward pass evaluates two texts, which share more and fewer token ids than the mean (`repeat_extremes`).
    Gradients also vary with the products by chance. This is left out: 1.3% of the part of W_emb that sequences share
    and 0.6% of the MLP's matrices at d = 128 and κ = 0.035, and 4% of W^Q and W^K.

    Args:
        stack: the network.
        ratio: ρ of `overlap_variance`, (batch,) or (1,).
        of_words: variance of the products over texts, divided by q_i q_j, (batch, r, r); 0 if no token id repeats.
        rule: rule for given products; None for the MLP.
    """
    rule = rule or cast(Branch[Array], feed_forward(stack, often=True))

    def branch(tokens: GroupLayout, kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        energies = np.linalg.diagonal(kernel)
        both = energies[..., :, None] * energies[..., None, :]
        by_chance, by_text = chance_variance(stack, kernel, ratio), of_words * both
        # No product is more than that of equal tokens.
        limit = np.sqrt(both)
        most = np.maximum(limit - np.abs(kernel), 0.0)
        root, chance, text = (
            np.minimum(np.sqrt(variance), most) for variance in (by_chance + by_text, by_chance, by_text)
        )
        up = down = [rule(tokens, kernel + part) for part in (root, -root)]
        if of_words.any():
            # Gradients go along with the texts, and are the mean over chance.
            at_end = kernel + tokens.repeat_extremes(len(kernel)) * text
            down = [rule(tokens, np.clip(at_end + part, -limit, limit)) for part in (chance, -chance)]

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            below, energies = zip(*(back(gradient, overlaps) for _, back, _ in down), strict=True)
            squares = {role: sum(each[role] for each in energies) / 2.0 for role in energies[0]}
            return np.asarray(sum(below) / 2.0), squares

        recorded = {name: sum(part[name] for *_, part in up) / 2.0 for name in up[0][2]}
        return np.asarray(sum(after for after, *_ in up) / 2.0), pullback, recorded

    return cast(Branch[Array], branch)
