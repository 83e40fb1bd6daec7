"""Attention on the way down and up of one step, where gradients have overlaps with what attention returns.

With P of the gradients on what heads return, the products r_ij = g_i·v_j have a mean √d (d_k/d) (P A V)_ij beside their
noise. So do gradients at logits, queries and keys, given the pattern: they are vectors in known directions, and so is
what queries and keys move by, along these gradients and along the queries and keys of the tokens that ẋ overlaps with.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from theory.first_step.attention import RandomAttention, fixed_uses
from theory.first_step.motion import root
from theory.first_step.rules import MatrixUse, Rule, sign_coefficients, sign_energy, sign_rule
from theory.first_step.tied.motion import Gradients, MatrixGradient, OverlapMotion, Steps, TiedBranch, inverse, steps_of
from theory.mean_field.attention.patterns import bare_logit_scale, rotated
from theory.mean_field.kernels import Array, MatrixLayout
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio, weight_shapes


@dataclass(slots=True, eq=False)
class TiedAttention(TiedBranch):
    """A x W^V W^O with fixed weights A."""

    stack: Stack
    tokens: MatrixLayout
    given: Array
    uses: list[MatrixUse] = field(init=False)

    def __post_init__(self) -> None:
        self.uses = fixed_uses(self.stack, self.tokens.attend(self.given))

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """From the gradient at the output, its noise and its coefficients on the output, to that at the input."""
        stack, ratio, value_gain = self.stack, inner_ratio(self.stack), gain(self.stack, "WV")
        values = value_gain * self.tokens.attend(self.given)
        noise, part, gradients = _below_projection(stack, noise, part, values)
        # Values that heads share are in the output as often, and so is their part of the gradient.
        shared, along = stack.heads // stack.key_heads * part, ratio * part @ values
        gradients["WV"] = MatrixGradient(noise + along @ shared.mT, shared, along)
        below = (value_gain * gradients["WV"].gram, value_gain * ratio * part)
        noise, part = (self.tokens.attend_back(array) for array in below)
        return noise, part, gradients

    def up(self, moved: OverlapMotion, gradients: Gradients, steps: Steps) -> OverlapMotion:
        """How what it returns moves."""
        parts = moved.coefficients, moved.overlaps, moved.energy
        moved = OverlapMotion(*(self.tokens.attend(array) for array in parts))
        group, ratio = self.stack.heads // self.stack.key_heads, inner_ratio(self.stack)
        moved = moved.through(gain(self.stack, "WV"), ratio / group, "WV", steps, gradients)
        if "WO" not in gradients:
            return moved
        moved = OverlapMotion(moved.coefficients, group * moved.overlaps, group * moved.energy)
        return moved.through(gain(self.stack, "WO"), 1.0 / ratio, "WO", steps, gradients)


class TiedRandomAttention(TiedBranch, RandomAttention):
    """Attention of random queries and keys, given one sampled pattern of every head; gradients are those of heads."""

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:  # type: ignore[override]
        """As `TiedAttention.down`."""
        stack, share = self.stack, self.stack.key_width / self.stack.width
        outputs = (self.patterns.weights[0] @ self.values @ self.patterns.weights[0].mT).mean(-3)
        noise, part, gradients = _below_projection(stack, noise, part, outputs)
        heads, none = HeadGradients.of(self, noise, part), 0.0 * part
        gradients |= {role: MatrixGradient(gram, none, none) for role, gram in heads.grams(self).items()}
        gradients["heads"] = MatrixGradient(noise, part, none)
        queries, keys = self.coordinates()
        products = (heads.at_queries @ queries.mT).sum(-3) + self.of_groups(heads.at_keys @ keys.mT)
        part = (
            gain(stack, "WV") * share * self.of_groups(heads.back) + products @ inverse(self.given) / stack.width**0.5
        )
        roles = ("WQ", "WK", "WV")
        return sum((gain(stack, role) * self.summed(role, gradients) for role in roles), np.zeros(1)), part, gradients

    def up(self, moved: OverlapMotion, gradients: Gradients, steps: Steps) -> OverlapMotion:  # type: ignore[override]
        """As `TiedAttention.up`."""
        stack, ratio, size = self.stack, inner_ratio(self.stack), self.stack.width**0.5
        weights, values, share = self.patterns.weights[0], self.values, stack.key_width / stack.width
        heads = HeadGradients.of(self, gradients["heads"].gram, gradients["heads"].part)
        parts = moved.coefficients, moved.overlaps, moved.energy
        c, overlaps, energy = (array[..., None, :, :] for array in parts)
        of_queries, of_keys, of_values = (gain(stack, role) * c + steps.get(role, 0.0) for role in ("WQ", "WK", "WV"))
        follows, none, value_gain = overlaps @ inverse(self.given), np.zeros((1, 1, 1)), share * gain(stack, "WV")
        by_logits = self.behind_heads(none, of_queries, of_keys)
        # v̇·v/√d, and what the certain part of the gradients at logits makes of the weights.
        certain = value_gain * overlaps + share * of_values @ heads.back @ values
        change = self._changed((heads.at_queries, heads.at_keys), of_queries, of_keys, follows)
        kept = (weights @ certain + size * share * change @ values) @ weights.mT
        kept = kept + share * by_logits @ heads.part @ heads.outputs
        # The same of sampled gradients, for the energy.
        r = heads.sampled(self)
        change = self._changed(self.at_both(r + heads.certain), of_queries, of_keys, follows)
        crossed = weights @ (size * certain + of_values @ self.group_sums(weights.mT @ r)) @ change.mT
        along = value_gain * overlaps @ heads.back.mT @ of_values.mT
        of_group = value_gain * energy + of_values @ gradients["WV"].gram @ of_values.mT + along + along.mT
        of_group = of_group + steps.get("WV remainder", 0.0)
        whole = weights @ of_group @ weights.mT + stack.key_width * change @ values @ change.mT + crossed + crossed.mT
        rest = energy - follows @ self.given[:, None] @ follows.mT
        fresh = self.behind_heads(
            none, *(gain(stack, role) * rest + steps.get(f"{role} remainder", 0.0) / share for role in ("WQ", "WK"))
        )
        returned = OverlapMotion(
            (by_logits + weights @ of_values @ weights.mT).mean(-3),
            kept.sum(-3),
            whole.sum(-3) + ratio * fresh.mean(-3),
        )
        if "WO" not in gradients:
            return returned
        return returned.through(gain(stack, "WO"), 1.0 / ratio, "WO", steps, gradients)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:  # type: ignore[override]
        """As `TiedAttention.steps`, of every head by itself, or of all, but for W^O: (..., heads or 1, N, N)."""
        chosen = [use for use in self.uses if use.role in matrices]
        if rule is not sign_rule:
            steps = steps_of(chosen, rule, {use.role: self.summed(use.role, gradients) for use in chosen}, matrices)
            return {role: c if role == "WO" else c[..., None, :, :] for role, c in steps.items()}
        stack, weights, steps = self.stack, self.patterns.weights[0], Steps()
        heads = HeadGradients.of(self, gradients["heads"].gram, gradients["heads"].part)
        sampled = dict(zip(("WQ", "WK"), self.at_both(heads.sampled(self) + heads.certain), strict=True))
        for role in (use.role for use in chosen):
            gram, size, d_in, d_out = gradients[role].gram, np.ones(1), stack.width, stack.key_width
            covariance = self.given[:, None]
            if role == "WO":
                gram, d_in, d_out = gram[..., None, :, :], stack.heads * stack.key_width, stack.width
                covariance = weights @ self.values @ weights.mT
            elif role in sampled:
                if stack.rotary:  # of one head a rotation is that of one pair of coordinates
                    gram = gram.mean(-3, keepdims=True)
                size = _unevenness(covariance, sampled[role] @ sampled[role].mT / d_out, gram / d_out)
            c = d_in * size[:, None] * size * sign_coefficients(covariance, gram / d_out)
            remainder = d_out * d_in**2 * sign_energy(covariance, gram / d_out) - c @ gram @ c.mT
            both = {role: c, f"{role} remainder": remainder}
            steps |= {name: array.mean(-3) for name, array in both.items()} if role == "WO" else both
        return steps

    def parts(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:  # type: ignore[override]
        """As `TiedBranch.parts`."""
        parts = TiedBranch.parts(self, {role: c for role, c in steps.items() if role == "WO"}, gradients, others)
        for role in ("WQ", "WK", "WV"):
            if role in steps:
                of_heads = (steps[role] * others[role].gram).sum((-3, -2, -1))
                parts[role] = of_heads if role == "WQ" else of_heads * self.stack.key_heads / self.stack.heads
        return parts

    def _changed(self, gradients: tuple[Array, Array], of_queries: Array, of_keys: Array, follows: Array) -> Array:
        """How weights change when queries and keys follow gradients and, by `follows`, those of other tokens."""
        q, k = normed = self.rotated_coordinates()
        slopes, moved = self.patterns.slopes, list[Array]()
        sides = zip((of_queries, of_keys), gradients, self.coordinates(), normed, self.sizes(), strict=True)
        for c, gradient, rows, directions, size in sides:
            side = c @ gradient + follows @ rows / self.stack.width**0.5
            side = rotated(self.stack, side) if self.stack.rotary else side
            moved.append(self.across(side, directions) / size)
        moved_q, moved_k = moved
        logits = bare_logit_scale(self.stack) * (moved_q @ k.mT + q @ moved_k.mT)
        return self.softmax_slope(logits if slopes is None else logits * slopes[0])

    def at_both(self, r: Array) -> tuple[Array, Array]:
        """Gradients at queries and, summed over the heads that share them, at keys, where positions rotate neither."""
        slopes = self.patterns.slopes
        at_logits = self.softmax_slope(r) * (1.0 if slopes is None else slopes[0])
        at_queries, at_keys = self.at_queries_and_keys(at_logits)
        q, k = self.rotated_coordinates()
        both = self.across(at_queries, q), self.across(self.group_sums(at_keys), k)
        return self.turned_back(both[0]), self.turned_back(both[1])

    def across(self, rows: Array, directions: Array) -> Array:
        """Rows at queries, or at keys, without what a norm of these takes away along them."""
        if self.patterns.sizes is None:
            return rows
        along = np.linalg.diagonal(rows @ directions.mT)[..., None] / self.stack.key_width
        if self.stack.query_key_norm == "all":
            along = along.mean(-3, keepdims=True)
        return rows - along * directions

    def sizes(self) -> tuple[Array, Array]:
        """What norms divide queries and keys by, (heads, N, 1) each."""
        sizes = self.patterns.sizes
        return (np.ones(1), np.ones(1)) if sizes is None else (sizes[0][0][..., None], sizes[1][0][..., None])

    def coordinates(self) -> tuple[Array, Array]:
        """Queries and keys as their matrices make them, (heads, N, r) each."""
        both = zip(self.rotated_coordinates(), self.sizes(), strict=True)
        queries, keys = (self.turned_back(rows) * size for rows, size in both)
        return queries, keys

    def turned_back(self, rows: Array) -> Array:
        """Queries or keys without positions' rotation."""
        return rotated(self.stack, rows, -1) if self.stack.rotary else rows

    def of_groups(self, of_heads: Array) -> Array:
        """The sum over groups of heads that have one and the same."""
        return np.asarray(of_heads.sum(-3) * self.stack.key_heads / self.stack.heads)

    def summed(self, role: str, gradients: Gradients) -> Array:
        """The Gram matrix of gradients at what comes out of a whole matrix."""
        gram = gradients[role].gram
        return gram if role == "WO" else gram.sum(-3) if role == "WQ" else self.of_groups(gram)


def _below_projection(stack: Stack, noise: Array, part: Array, outputs: Array) -> tuple[Array, Array, Gradients]:
    """The gradient at what heads return, of that kernel over all coordinates; and that at W^O if there is one."""
    if "WO" not in weight_shapes(stack):
        return noise, part, Gradients()
    size = gain(stack, "WO")
    along = part @ (size * outputs)
    at = MatrixGradient(noise + along @ part.mT, part, along)
    return size * at.gram, size / inner_ratio(stack) * part, {"WO": at}


def _unevenness(kernel: Array, each: Array, mean: Array) -> Array:
    """√ of what signs gain of a position over what they would if gradients had their mean Gram matrix, (N,)."""
    gains = [
        np.linalg.diagonal(sign_coefficients(kernel, gram) @ gram).mean(tuple(range(gram.ndim - 2)))
        for gram in (each, mean)
    ]
    quotient = np.divide(gains[0], gains[1], out=np.ones(len(gains[0])), where=gains[1] > 0)
    return np.asarray(np.sqrt(np.maximum(quotient, 0.0)))


@dataclass(frozen=True, slots=True, eq=False)
class HeadGradients:
    """Gradients at what heads return, (..., heads or 1, N, N).

    Attributes:
        gram: of every head, with all of it.
        part: coefficients on what heads return.
        outputs: products of what they return over d_k.
        back: coefficients of gradients at values on these, summed over the heads that share them.
        at_values: the Gram matrix of gradients at values, likewise.
        certain: the mean of r.
        at_queries: the gradients at queries that it makes.
        at_keys: and those at keys, summed over the heads that share them.
    """

    gram: Array
    part: Array
    outputs: Array
    back: Array
    at_values: Array
    certain: Array
    at_queries: Array
    at_keys: Array

    @classmethod
    def of(cls, branch: TiedRandomAttention, noise: Array, part: Array) -> "HeadGradients":
        """From noise and coefficients at what all heads return, (..., N, N) each."""
        stack, weights, values = branch.stack, branch.patterns.weights[0], branch.values
        share, noise, part = stack.key_width / stack.width, noise[..., None, :, :] / stack.heads, part[..., None, :, :]
        outputs, back = weights @ values @ weights.mT, branch.group_sums(weights.mT @ part @ weights)
        certain = share * stack.width**0.5 * part @ weights @ values
        at_values = branch.group_sums(weights.mT @ noise @ weights) + share * back @ values @ back.mT
        gram = noise + share * part @ outputs @ part.mT
        return cls(gram, part, outputs, back, at_values, certain, *branch.at_both(certain))

    def grams(self, branch: TiedRandomAttention) -> dict[str, Array]:
        """At queries, keys and values of every head, the latter two of all heads that share them."""
        random = branch.below_heads(self.gram)
        keys = branch.group_sums(random["WK"]) + self.at_keys @ self.at_keys.mT
        return {"WQ": random["WQ"] + self.at_queries @ self.at_queries.mT, "WK": keys, "WV": self.at_values}

    def sampled(self, branch: TiedRandomAttention) -> Array:
        """One sample of r without its mean."""
        normal = np.random.default_rng((branch.seed, 1)).standard_normal(self.gram.shape)
        return np.asarray(root(self.gram) @ normal @ root(branch.values).mT)
