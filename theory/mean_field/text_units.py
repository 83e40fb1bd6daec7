"""Feed-forward units of a text, whose words have products by chance that vary by 1/√d, and over texts (`text_counts`).

A squared norm is a sum over all pairs of tokens. Of two words Q_ij may vanish in the mean, where its square does not,
and for one pair of the same word there are 1/κ of them. So units with Q_ij F(Q_ij) have 1/(κ d) more of what two
sequences share: a tenth for κ = 0.01 and d = 1000. Without repeated words and labels two tokens share too little.

On the way back texts are at both `ends` of how often they hold the same words. Left out is how gradients go along with
what products are by chance: 1.3% of what sequences share of W_emb, and 0.6% of units' matrices, at d = 128 and
κ = 0.035; and of W^Q and W^K some 4%.
"""

from __future__ import annotations  # those of pullbacks would be evaluated in every layer

from typing import cast

import numpy as np

from theory.mean_field.kernels import Array
from theory.mean_field.sublayers import Branch, BranchPullback, Overlaps, Recorded, SquaredNorms, feed_forward
from theory.mean_field.text_groups import TextLayout
from theory.stack import Stack


def chance_variance(stack: Stack, kernel: Array, ratio: Array) -> Array:
    """What Q_ij varies by, ρ (q_i q_j − Q_ij²)²/(q_i q_j d), (batch, r, r); norms leave what correlations vary by.

    Args:
        stack: the network.
        kernel: Q_ij = x_i·x_j/d, likewise; q_i = Q_ii.
        ratio: ρ of `overlap_variance`, (batch,) or (1,).
    """
    energies = np.linalg.diagonal(kernel)
    both = energies[..., :, None] * energies[..., None, :]
    left = np.maximum(both - np.square(kernel), 0.0)
    return np.asarray(ratio[:, None, None] / stack.width * left**2 / both)


def units_of_text(stack: Stack, ratio: Array, of_words: Array) -> Branch[Array]:
    """Feed-forward units in the mean over what tokens have in common by chance, that of both ends: a branch's rule.

    Args:
        stack: the network.
        ratio: ρ, as in `chance_variance`.
        of_words: what products vary by over texts, over what both tokens have, (batch, r, r).
    """
    rule = cast(Branch[Array], feed_forward(stack))

    def branch(tokens: TextLayout, kernel: Array) -> tuple[Array, BranchPullback[Array], Recorded]:
        energies = np.linalg.diagonal(kernel)
        both = energies[..., :, None] * energies[..., None, :]
        by_chance, by_text = chance_variance(stack, kernel, ratio), of_words * both
        # No product is more than that of equal tokens.
        limit = np.sqrt(both)
        most = np.maximum(limit - np.abs(kernel), 0.0)
        root, chance, text = (
            np.minimum(np.sqrt(variance), most) for variance in (by_chance + by_text, by_chance, by_text)
        )
        up = [rule(tokens, kernel + part) for part in (root, -root)]
        # Gradients go along with the texts, and are the mean over chance.
        at_end = kernel + tokens.ends(len(kernel)) * text
        down = [rule(tokens, np.clip(at_end + part, -limit, limit)) for part in (chance, -chance)]

        def pullback(gradient: Array, overlaps: Overlaps[Array]) -> tuple[Array, SquaredNorms]:
            below, energies = zip(*(back(gradient, overlaps) for _, back, _ in down), strict=True)
            squares = {role: sum(each[role] for each in energies) / 2.0 for role in energies[0]}
            return np.asarray(sum(below) / 2.0), squares

        hidden = sum(recorded["hidden"] for *_, recorded in up) / 2.0
        return np.asarray(sum(after for after, *_ in up) / 2.0), pullback, {"hidden": hidden}

    return cast(Branch[Array], branch)
