"""The MLP for groups of tokens, averaged over the random variation of the products of two tokens.

A product Q_ij of two different tokens has a variance of order 1/d, by chance in the weights. It also varies over
texts (`text_counts`). MLPs are not linear in Q_ij. A gated MLP with the kernel c k(c) adds k'(0) Var c to the mean,
and the mean of c is of order 1/n: a relative n/d. A squared norm sums Q_ij times a function of Q_ij over all pairs. A
text has 1/κ pairs of different token ids for each pair of equal ids, so that the variance adds 1/(κ d) to the
gradient that two sequences share: a tenth for κ = 0.01 and d = 1000.

The backward pass evaluates two texts, which share more and fewer token ids than the mean (`repeat_extremes`).
Gradients also vary with the products by chance. This is left out: 1.3% of the part of W_emb that sequences share and
0.6% of the MLP's matrices at d = 128 and κ = 0.035, and 4% of W^Q and W^K.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from typing import cast

import numpy as np

from theory.mean_field.kernels import Array
from theory.mean_field.sublayers import Branch, BranchPullback, Overlaps, Recorded, SquaredNorms, feed_forward
from theory.mean_field.token_groups import GroupLayout
from theory.stack import Stack


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
