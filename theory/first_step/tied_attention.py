"""The rules for attention in one optimizer step with tied embeddings, where gradients overlap with its output.

With coefficients P of the gradients on the heads' outputs, the products r_ij = g_i·v_j have a mean √d (d_k/d) (P A
V)_ij in addition to their noise. So do gradients at logits, queries and keys, given the attention weights: they are
vectors in known directions. Queries and keys move in known directions too: along these gradients, and along the
queries and keys of the tokens that ẋ overlaps with.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from theory.first_step.attention import RandomAttention, below_projection, unevenness
from theory.first_step.motion import Gradients, MatrixGradient, Steps, TokenMotion, inverse
from theory.first_step.rules import Branch, Rule, sign_coefficients, sign_energy, sign_rule
from theory.mean_field.attention.patterns import bare_logit_scale, rotated
from theory.mean_field.kernels import Array, eigen_root
from theory.stack.weights import gain, inner_ratio


class TiedRandomAttention(RandomAttention):
    """An attention branch with random queries and keys in a network with tied embeddings, in one step.

    It computes the gradients and the change in one optimizer step, given one attention sample of every head. Gradients
    of W^Q, W^K and W^V are stored for each head.
    """

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """Return the loss gradients at the attention branch's input and matrices, from the gradient at its output.

        Args:
            noise: kernel of the gradient's noise, (..., N, N).
            part: coefficients of the gradient on the branch's output, (..., N, N).
        """
        stack, share = self.stack, self.stack.key_width / self.stack.width
        outputs = (self.patterns.weights[0] @ self.values @ self.patterns.weights[0].mT).mean(-3)
        noise, part, gradients = below_projection(stack, noise, part, outputs)
        heads = HeadGradients.of(self, noise, part)
        gradients |= {role: MatrixGradient.without_overlaps(gram) for role, gram in heads.grams(self).items()}
        gradients["heads"] = MatrixGradient(noise, part, 0.0 * part)
        queries, keys = self.coordinates()
        products = (heads.at_queries @ queries.mT).sum(-3) + self.sum_over_groups(heads.at_keys @ keys.mT)
        part = (
            gain(stack, "WV") * share * self.sum_over_groups(heads.back)
            + products @ inverse(self.given) / stack.width**0.5
        )
        roles = ("WQ", "WK", "WV")
        return (
            sum((gain(stack, role) * self.whole_gram(role, gradients) for role in roles), np.zeros(1)),
            part,
            gradients,
        )

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the attention branch's output when its input and matrices take one optimizer step.

        Args:
            moved: motion of the input tokens.
            gradients: gradients at the matrices.
            steps: steps of the matrices.
        """
        stack, ratio, size = self.stack, inner_ratio(self.stack), self.stack.width**0.5
        weights, values, share = self.patterns.weights[0], self.values, stack.key_width / stack.width
        heads = HeadGradients.of(self, gradients["heads"].gram, gradients["heads"].part)
        c, overlaps, energy = (array[..., None, :, :] for array in (moved.coefficients, moved.overlaps, moved.energy))
        of_queries, of_keys, of_values = (gain(stack, role) * c + steps.get(role, 0.0) for role in ("WQ", "WK", "WV"))
        follows, none, value_gain = overlaps @ inverse(self.given), np.zeros((1, 1, 1)), share * gain(stack, "WV")
        by_logits = self.pass_through_heads(none, of_queries, of_keys)
        # v̇·v/√d, and what the certain part of the gradients at logits makes of the weights.
        certain = value_gain * overlaps + share * of_values @ heads.back @ values
        change = self._weight_change((heads.at_queries, heads.at_keys), of_queries, of_keys, follows)
        kept = (weights @ certain + size * share * change @ values) @ weights.mT
        kept = kept + share * by_logits @ heads.part @ heads.outputs
        # The same of sampled gradients, for the energy.
        r = heads.sample_products(self)
        change = self._weight_change(self.unrotated_gradients(r + heads.certain), of_queries, of_keys, follows)
        crossed = weights @ (size * certain + of_values @ self.group_sums(weights.mT @ r)) @ change.mT
        along = value_gain * overlaps @ heads.back.mT @ of_values.mT
        of_group = value_gain * energy + of_values @ gradients["WV"].gram @ of_values.mT + along + along.mT
        of_group = of_group + steps.get("WV remainder", 0.0)
        whole = weights @ of_group @ weights.mT + stack.key_width * change @ values @ change.mT + crossed + crossed.mT
        rest = energy - follows @ self.given[:, None] @ follows.mT
        fresh = self.pass_through_heads(
            none, *(gain(stack, role) * rest + steps.get(f"{role} remainder", 0.0) / share for role in ("WQ", "WK"))
        )
        returned = TokenMotion(
            (by_logits + weights @ of_values @ weights.mT).mean(-3),
            kept.sum(-3),
            whole.sum(-3) + ratio * fresh.mean(-3),
        )
        if "WO" not in gradients:
            return returned
        return returned.through(gain(stack, "WO"), 1.0 / ratio, "WO", steps, gradients)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of each matrix's outputs in one optimizer step, as a weighted sum of output gradients.

        The weights are the coefficients C, (..., heads or 1, N, N), and (..., N, N) for W^O.
        """
        if rule is not sign_rule:
            steps = Branch.steps(self, rule, gradients, matrices)
            return {role: c if role == "WO" else c[..., None, :, :] for role, c in steps.items()}
        stack, weights, steps = self.stack, self.patterns.weights[0], Steps()
        heads = HeadGradients.of(self, gradients["heads"].gram, gradients["heads"].part)
        sampled = dict(
            zip(("WQ", "WK"), self.unrotated_gradients(heads.sample_products(self) + heads.certain), strict=True)
        )
        for role in (use.role for use in self.uses if use.role in matrices):
            gram, size, d_in, d_out = gradients[role].gram, np.ones(1), stack.width, stack.key_width
            covariance = self.given[:, None]
            if role == "WO":
                gram, d_in, d_out = gram[..., None, :, :], stack.heads * stack.key_width, stack.width
                covariance = weights @ self.values @ weights.mT
            elif role in sampled:
                if stack.rotary:  # of one head a rotation is that of one pair of coordinates
                    gram = gram.mean(-3, keepdims=True)
                size = unevenness(covariance, sampled[role] @ sampled[role].mT / d_out, covariance, gram / d_out)
            c = d_in * size[:, None] * size * sign_coefficients(covariance, gram / d_out)
            remainder = d_out * d_in**2 * sign_energy(covariance, gram / d_out) - c @ gram @ c.mT
            both = {role: c, f"{role} remainder": remainder}
            steps |= {name: array.mean(-3) for name, array in both.items()} if role == "WO" else both
        return steps

    def inner_products_by_matrix(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        """Return each matrix's term of the inner product between an optimizer step and a gradient.

        The arguments are those of `Branch.inner_products_by_matrix`.
        """
        of_projection = {role: c for role, c in steps.items() if role == "WO"}
        parts = Branch.inner_products_by_matrix(self, of_projection, gradients, others)
        for role in ("WQ", "WK", "WV"):
            if role in steps:
                of_heads = (steps[role] * others[role].gram).sum((-3, -2, -1))
                parts[role] = of_heads if role == "WQ" else of_heads * self.stack.key_heads / self.stack.heads
        return parts

    def _weight_change(
        self, gradients: tuple[Array, Array], of_queries: Array, of_keys: Array, follows: Array
    ) -> Array:
        """Return the change of attention weights when queries and keys move.

        Args:
            gradients: gradients at queries and keys.
            of_queries: coefficients of the queries' motion on their gradients.
            of_keys: coefficients of the keys' motion on their gradients.
            follows: coefficients of the motion on other tokens' queries and keys.
        """
        q, k = normed = self.rotated_coordinates()
        slopes, moved = self.patterns.slopes, list[Array]()
        sides = zip((of_queries, of_keys), gradients, self.coordinates(), normed, self.sizes(), strict=True)
        for c, gradient, rows, directions, size in sides:
            side = c @ gradient + follows @ rows / self.stack.width**0.5
            side = rotated(self.stack, side) if self.stack.rotary else side
            moved.append(self.without_norm_direction(side, directions) / size)
        moved_q, moved_k = moved
        logits = bare_logit_scale(self.stack) * (moved_q @ k.mT + q @ moved_k.mT)
        return self.softmax_slope(logits if slopes is None else logits * slopes[0])

    def unrotated_gradients(self, r: Array) -> tuple[Array, Array]:
        """Return the loss gradients at queries and keys before positions rotate them.

        Gradients at keys are sums over the heads that share them.

        Args:
            r: products of gradients and values.
        """
        slopes = self.patterns.slopes
        at_logits = self.softmax_slope(r) * (1.0 if slopes is None else slopes[0])
        at_queries, at_keys = self.at_queries_and_keys(at_logits)
        q, k = self.rotated_coordinates()
        both = self.without_norm_direction(at_queries, q), self.without_norm_direction(self.group_sums(at_keys), k)
        return self.unrotated(both[0]), self.unrotated(both[1])

    def without_norm_direction(self, rows: Array, directions: Array) -> Array:
        """Remove from vectors at queries or keys the component that the query or key norm removes.

        Args:
            rows: the rows.
            directions: normalized queries or keys.
        """
        if self.patterns.sizes is None:
            return rows
        along = np.linalg.diagonal(rows @ directions.mT)[..., None] / self.stack.key_width
        if self.stack.query_key_norm == "all":
            along = along.mean(-3, keepdims=True)
        return rows - along * directions

    def coordinates(self) -> tuple[Array, Array]:
        """Return queries and keys at the outputs of W^Q and W^K, before norms and rotation.

        Their shapes are (heads, N, r).
        """
        both = zip(self.rotated_coordinates(), self.sizes(), strict=True)
        queries, keys = (self.unrotated(rows) * size for rows, size in both)
        return queries, keys

    def unrotated(self, rows: Array) -> Array:
        """Undo the rotation of queries or keys by rotary positions."""
        return rotated(self.stack, rows, -1) if self.stack.rotary else rows

    def sum_over_groups(self, of_heads: Array) -> Array:
        """Return the sum over groups of heads; heads that share keys and values count once."""
        return np.asarray(of_heads.sum(-3) * self.stack.key_heads / self.stack.heads)

    def whole_gram(self, role: str, gradients: Gradients) -> Array:
        """Return inner products, between tokens, of the gradients at a matrix's output, over all heads."""
        gram = gradients[role].gram
        return gram if role == "WO" else gram.sum(-3) if role == "WQ" else self.sum_over_groups(gram)


@dataclass(frozen=True, slots=True, eq=False)
class HeadGradients:
    """The loss gradients at the outputs of all attention heads, as inner products between tokens.

    The shapes are (..., heads or 1, N, N).

    Attributes:
        gram: Gram matrix of every head's whole gradient.
        part: coefficients on the heads' outputs.
        outputs: products of the heads' outputs divided by d_k.
        back: coefficients of the gradients at values on the values, summed over the heads that share them.
        at_values: Gram matrix of the gradients at values, summed over the heads that share them.
        certain: mean of r.
        at_queries: gradients at queries due to the mean of r.
        at_keys: gradients at keys due to the mean of r, summed over the heads that share them.
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
        """Create the gradients of all heads from the gradient at the heads' concatenated outputs.

        The noise and the coefficients have shape (..., N, N) each.
        """
        stack, weights, values = branch.stack, branch.patterns.weights[0], branch.values
        share, noise, part = stack.key_width / stack.width, noise[..., None, :, :] / stack.heads, part[..., None, :, :]
        outputs, back = weights @ values @ weights.mT, branch.group_sums(weights.mT @ part @ weights)
        certain = share * stack.width**0.5 * part @ weights @ values
        at_values = branch.group_sums(weights.mT @ noise @ weights) + share * back @ values @ back.mT
        gram = noise + share * part @ outputs @ part.mT
        return cls(gram, part, outputs, back, at_values, certain, *branch.unrotated_gradients(certain))

    def grams(self, branch: TiedRandomAttention) -> dict[str, Array]:
        """Return inner products of gradients between tokens, at the queries, keys and values of every head.

        Those at keys and values are sums over the heads that share them.
        """
        random = branch.gradients_below_heads(self.gram)
        keys = branch.group_sums(random["WK"]) + self.at_keys @ self.at_keys.mT
        return {"WQ": random["WQ"] + self.at_queries @ self.at_queries.mT, "WK": keys, "WV": self.at_values}

    def sample_products(self, branch: TiedRandomAttention) -> Array:
        """Return one random sample of the inner products of output gradients and values, without their mean.

        The products are r_ij.
        """
        normal = np.random.default_rng((branch.seed, 1)).standard_normal(self.gram.shape)
        return np.asarray(eigen_root(self.gram) @ normal @ eigen_root(branch.values).mT)
