"""The rules for an attention branch in one optimizer step: its gradients, and the change of its output.

The attention weights are fixed, or queries and keys are random.

For one head, o_i = Σ_j A_ij v_j, and A_i = softmax of logits a_ij = q_i·k_j/√d_k, with D_i = diag A_i − A_i A_i' the
softmax's derivative. Given logits, queries and keys, a gradient g_i at o_i has the products r_ij = g_i·v_j, Gaussian
with Cov(r_ij, r_kl) = G_ik V_jl, and ∂a_i = D_i r_i is the gradient at the logits. When tokens move, so does

    ȯ_i = Σ_j A_ij v̇_j + Σ_j Ȧ_ij v_j,    Ȧ_i = D_i ȧ_i,    ȧ_ij = (q̇_i·k_j + q_i·k̇_j)/√d_k.

Queries move along their gradients by q̇_i = Σ_m T^Q_im ∂L/∂q_m, with T^Q = gain c + C of W^Q; keys move in the same
way by T^K and values by T^V. The part of ȯ_i along g_m then has the coefficient

    A T^V A' + T^Q ∘ M[k_j·k_l/d_k] + q_i·q_m/d_k ∘ M[T^K],     M_im[N] = Σ_jl N_jl (D_i V D_m)_jl,

the adjoint of the gradient kernel's backward map, and its mean over heads is passed on. Energies of the part that is
random to a matrix pass in the same way. But the part of Σ_j Ȧ_ij v_j that is due to gradients is not a multiple of
them: it lies along the values, of which a head has as many as tokens, so that its energy is larger than that of a
multiple by d_k divided by their number. It is a mean over sampled r.

Assumes d → ∞ at fixed d_k, so that there are many heads; corrections are O(d_k/d).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import reduce
from operator import mul

import numpy as np

from theory.coverage import holds_words
from theory.first_step.motion import Gradients, MatrixGradient, Steps, TokenMotion, mean_kernel
from theory.first_step.rules import Branch, MatrixUse, Rule, sign_coefficients, sign_remainder, sign_rule, sign_steps
from theory.mean_field.attention.patterns import Patterns, bare_logit_scale, rotated
from theory.mean_field.attention.sampled import Inner, head_gain
from theory.mean_field.kernels import Array, MatrixLayout, eigen_root
from theory.stack import Stack
from theory.stack.weights import gain, inner_ratio, weight_shapes

# Of r for every head, for the energy of what follows no gradient.
_DRAWS = 4


@dataclass(slots=True, eq=False)
class FixedAttention(Branch):
    """An attention branch with fixed attention weights, with its gradients and its change in one optimizer step.

    It is A x W^V W^O, with the attention weights A. The step changes W^V and W^O.

    Attributes:
        stack: the network.
        tokens: layout of its tokens.
        given: kernel of the branch's input, (1, N, N).
        uses: its matrices, in the order of the forward pass.
    """

    tokens: MatrixLayout
    given: Array

    def __post_init__(self) -> None:
        shapes, attended, seen = (
            weight_shapes(self.stack),
            self.tokens.attend(self.given),
            np.ones((1, self.stack.rows)),
        )
        self.uses = [MatrixUse("WV", shapes["WV"], self.stack.width * attended, seen)]
        if "WO" in shapes:
            self.uses.append(MatrixUse("WO", shapes["WO"], shapes["WO"][0] * attended * gain(self.stack, "WV"), seen))

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """Return the loss gradients at the attention branch's input and matrices, from the gradient at its output.

        Args:
            noise: kernel of the gradient's noise, (..., N, N).
            part: coefficients of the gradient on the branch's output, (..., N, N).

        Returns:
            Noise and coefficients at the input, and the gradients at the matrices.
        """
        stack, ratio, value_gain = self.stack, inner_ratio(self.stack), gain(self.stack, "WV")
        values = value_gain * self.tokens.attend(self.given)
        noise, part, gradients = below_projection(stack, noise, part, values)
        # Values that heads share are in the output as often, and so is their part of the gradient.
        shared, along = stack.heads // stack.key_heads * part, ratio * part @ values
        gradients["WV"] = MatrixGradient(noise + along @ shared.mT, shared, along)
        below = (value_gain * gradients["WV"].gram, value_gain * ratio * part)
        noise, part = (self.tokens.attend_back(array) for array in below)
        return noise, part, gradients

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the attention branch's output when its input and matrices take one optimizer step.

        Args:
            moved: motion of the input tokens.
            gradients: gradients at the matrices.
            steps: steps of the matrices.
        """
        parts = moved.coefficients, moved.overlaps, moved.energy
        moved = TokenMotion(*(self.tokens.attend(array) for array in parts))
        group, ratio = self.stack.heads // self.stack.key_heads, inner_ratio(self.stack)
        moved = moved.through(gain(self.stack, "WV"), ratio / group, "WV", steps, gradients)
        # Over all coordinates of heads' values, in which values that heads share stand as often.
        moved = TokenMotion(moved.coefficients, group * moved.overlaps, group * moved.energy)
        if "WO" not in gradients:
            return moved
        return moved.through(gain(self.stack, "WO"), 1.0 / ratio, "WO", steps, gradients)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of each matrix's outputs in one optimizer step, as a weighted sum of output gradients.

        The weights are the coefficients C of `theory.first_step.rules`; sign steps also have "ROLE remainder".

        Without tied embeddings, the last matrix has no remainder here, since it is sampled with the whole stream.
        """
        if rule is sign_rule and holds_words(self.stack):
            return sign_steps([use for use in self.uses if use.role in matrices], gradients)
        steps = Branch.steps(self, rule, gradients, matrices)
        inner = [use for use in self.uses[:-1] if use.role in steps and rule is sign_rule]
        return steps | {
            f"{use.role} remainder": sign_remainder(use, gradients[use.role].gram, steps[use.role]) for use in inner
        }


def below_projection(stack: Stack, noise: Array, part: Array, outputs: Array) -> tuple[Array, Array, Gradients]:
    """Propagate the loss gradient back through W^O, from the attention branch's output to the heads' outputs.

    The gradient at W^O is returned too, if the network has this matrix.

    Args:
        stack: the network.
        noise: kernel of the gradient's noise above W^O.
        part: coefficients of the gradient on the output of W^O.
        outputs: kernel of the heads' outputs over all coordinates.
    """
    if "WO" not in weight_shapes(stack):
        return noise, part, Gradients()
    size = gain(stack, "WO")
    along = part @ (size * outputs)
    at = MatrixGradient(noise + along @ part.mT, part, along)
    return size * at.gram, size / inner_ratio(stack) * part, {"WO": at}


@dataclass(slots=True, eq=False)
class RandomAttention(Branch):
    """An attention branch with random queries and keys, with its gradients and its change in one step.

    The step is an optimizer step, and one sample of attention weights is given for every head.

    Attributes:
        stack: the network.
        given: kernel of the branch's input, (1, N, N).
        patterns: the attention samples.
        seed: random seed of sampled gradients.
        uses: its matrices, in the order of the forward pass.
        values: kernel of the values, (N, N).
    """

    given: Array
    patterns: Patterns
    seed: int
    values: Array = field(init=False)
    _of_queries: Array = field(init=False)
    _rotated: tuple[Array, Array] | None = field(init=False, default=None)
    _sampled: tuple[Array, Array, Array, Array] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        shapes = weight_shapes(self.stack)
        rows, seen = self.stack.width * self.given, np.ones((1, self.stack.rows))
        self.uses = [MatrixUse(role, shapes[role], rows, seen) for role in ("WQ", "WK", "WV")]
        self.values, weights = gain(self.stack, "WV") * self.given[0], self.patterns.weights[0]
        # Every gradient and every change of queries multiply these products.
        of_queries, size = self._inner(np.ones((1, 1))).at_queries(self._products()[1]), self.sizes()[0]
        self._of_queries = of_queries / (size * size.mT)
        if "WO" in shapes:
            outputs = (weights @ self.values @ weights.mT).mean(0, keepdims=True)
            self.uses.append(MatrixUse("WO", shapes["WO"], shapes["WO"][0] * outputs, seen))

    @property
    def last(self) -> MatrixUse | None:
        """The output projection W^O, the matrix that adds to the residual stream; None for attention without one.

        Without W^O no matrix does, because W^V mixes the values of several tokens.
        """
        return self.uses[-1] if self.uses[-1].role == "WO" else None

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """Return the loss gradients at the attention branch's input and matrices, from the gradient at its output.

        None of these gradients overlaps with the residual stream.

        Args:
            noise: kernel of the gradient at the output, (..., N, N).
            part: coefficients on the output, passed through unchanged.
        """
        at_heads = head_gain(self.stack, "W") * noise[..., None, :, :] / self.stack.heads
        grams = {role: of_heads.sum(-3) for role, of_heads in self.gradients_below_heads(at_heads).items()}
        below = sum((gain(self.stack, role) * gram for role, gram in grams.items()), np.zeros(1))
        return (
            below,
            part,
            {role: MatrixGradient.without_overlaps(gram) for role, gram in (grams | {"WO": noise}).items()},
        )

    def gradients_below_heads(self, head: Array) -> dict[str, Array]:
        """Return inner products of gradients between tokens, at every head's queries, keys and values.

        They follow from the same products at the heads' outputs.

        Args:
            head: Gram matrices at the heads' outputs, (..., heads or 1, N, N).
        """
        weights, size = self.patterns.weights[0], self.sizes()[1]
        scale = bare_logit_scale(self.stack) ** 2 * self.stack.key_width
        at_keys = self._inner(head).at_keys(self._products()[0]) / (size * size.mT)
        return {"WQ": scale * head * self._of_queries, "WK": scale * at_keys, "WV": weights.mT @ head @ weights}

    def _inner(self, head: Array) -> Inner:
        """Return gradients at queries and keys, from Gram matrices at the heads' outputs, (..., heads or 1, N, N)."""
        weights = self.patterns.weights[0]
        return Inner.of(weights, weights, self.values, head, None, self._factors())

    def _products(self) -> tuple[Array, Array]:
        """Return q_i·q_m/d_k and k_j·k_l/d_k as they enter the logits, (heads, N, N) each."""
        queries, keys = self.patterns.queries[0], self.patterns.keys[0]
        if self.patterns.sizes is not None:
            return queries, keys
        return gain(self.stack, "WQ") * queries, gain(self.stack, "WK") * keys

    def group_sums(self, of_heads: Array) -> Array:
        """Return, for each query head, the sum over all query heads that share its keys and values."""
        groups, heads = self.stack.key_heads, self.stack.heads
        if groups == heads:
            return of_heads
        shape = (*of_heads.shape[:-3], groups, heads // groups, *of_heads.shape[-2:])
        return np.repeat(of_heads.reshape(shape).sum(-3), heads // groups, axis=-3)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of each matrix's outputs in one optimizer step, as a weighted sum of output gradients.

        The weights are the coefficients C of `theory.first_step.rules`; sign steps also have "ROLE remainder", except
        for W^O.
        """
        if rule is not sign_rule:
            return Branch.steps(self, rule, gradients, matrices)
        steps = Steps()
        for use in (use for use in self.uses if use.role in matrices):
            d_in, d_out = use.shape
            rows, gradient = use.rows / d_in, gradients[use.role].gram / d_out
            scale = self._unevenness(use.role, gradients["WO"].gram)
            c = d_in * scale[:, None] * scale * sign_coefficients(rows, gradient)
            steps[use.role] = c
            if use is not self.last:
                steps[f"{use.role} remainder"] = sign_remainder(use, gradients[use.role].gram, c)
        return steps

    def _unevenness(self, role: str, gradient: Array) -> Array:
        """Return √(gain of sign steps at a position / their gain with all heads and r at their mean), (N,).

        Heads have different attention weights, and gradients at queries are sums of as many r as a token sees keys. So
        the law of a gradient's coordinate is a mixture of Gaussians, from which a sign step gains less than from one
        Gaussian.

        Args:
            role: role of the matrix.
            gradient: gradient kernel at the output of W^O.
        """
        weights, rows = self.patterns.weights[0], self.given[0]
        if role == "WO":
            rows, each = weights @ self.values @ weights.mT, mean_kernel(gradient)
        elif role == "WV":
            each = self.group_sums(weights.mT @ self._at_head(gradient) @ weights)
        else:
            _, at_queries, at_keys = self._sampled_gradients(gradient)
            vectors = at_queries if role == "WQ" else self.group_sums(at_keys)
            each = (vectors @ vectors.mT).reshape(-1, *rows.shape)
        return unevenness(rows, each, mean_kernel(rows), mean_kernel(each))

    def inner_products_by_matrix(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        """Return each matrix's term of the inner product between an optimizer step and a gradient.

        The arguments are those of `Branch.inner_products_by_matrix`.
        """
        roles, none, projection = ("WV", "WQ", "WK"), np.zeros((1, 1, 1)), head_gain(self.stack, "W")
        outputs = {
            role: projection * self._mean_through_heads(*(steps[role] if role == other else none for other in roles))
            for role in roles if role in steps
        }  # fmt: skip
        outputs |= {"WO": steps["WO"]} if "WO" in steps else {}
        return {role: (c * others["WO"].gram).sum((-2, -1)) for role, c in outputs.items()}

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the attention branch's output when its input and matrices take one optimizer step.

        Args:
            moved: motion of the input tokens.
            gradients: gradients at the matrices.
            steps: steps of the matrices.
        """
        stack, roles, shapes = self.stack, ("WV", "WQ", "WK"), weight_shapes(self.stack)
        gains = {role: gain(stack, role) for role in roles}
        along = [moved.coefficients * gains[role] + steps.get(role, 0.0) for role in roles]
        fresh = [
            moved.energy * gains[role] + stack.width / shapes[role][1] * steps.get(f"{role} remainder", 0.0)
            for role in roles
        ]
        c, energy = (
            self._mean_through_heads(*along),
            self._mean_through_heads(*fresh) + self._energy_along_gradients(gradients["WO"].gram, *along),
        )
        if stack.output_projection == "identity":
            return TokenMotion(c, moved.overlaps, energy)
        c = c * gain(stack, "WO") + steps.get("WO", 0.0)
        energy = energy * gain(stack, "WO") + c @ gradients["WO"].gram @ c.mT
        return TokenMotion(c, moved.overlaps, energy)

    def _mean_through_heads(self, of_values: Array, of_queries: Array, of_keys: Array) -> Array:
        """Return coefficients or energies after attention, averaged over heads.

        Args:
            of_values: coefficients or energies of values.
            of_queries: coefficients or energies of queries.
            of_keys: coefficients or energies of keys.
        """
        parts = (part[..., None, :, :] for part in (of_values, of_queries, of_keys))
        return np.asarray(self.pass_through_heads(*parts).mean(-3))

    def pass_through_heads(self, of_values: Array, of_queries: Array, of_keys: Array) -> Array:
        """Return how changes of values, queries and keys change the output of every attention head.

        The changes are given as coefficients or energies.

        Args:
            of_values: coefficients or energies of values, (..., heads or 1, N, N).
            of_queries: coefficients or energies of queries, (..., heads or 1, N, N).
            of_keys: coefficients or energies of keys, (..., heads or 1, N, N).
        """
        weights, size = self.patterns.weights[0], self.sizes()[1]
        passed, scale = np.zeros(weights.shape), bare_logit_scale(self.stack) ** 2 * self.stack.key_width
        if of_values.any():
            passed = passed + weights @ of_values @ weights.mT
        if of_queries.any():
            passed = passed + scale * of_queries * self._of_queries
        if of_keys.any():
            of_keys = of_keys / (size * size.mT)
            passed = passed + scale * self._products()[0] * self._inner(np.ones((1, 1))).at_queries(of_keys)
        return passed

    def _factors(self) -> Array | None:
        """Return the factors on a logit's change: the cap's slope, and the mean effect of rotary positions."""
        factors = [factor[0] for factor in (self.patterns.slopes, self.patterns.turns) if factor is not None]
        return reduce(mul, factors) if factors else None

    def _at_head(self, gradient: Array) -> Array:
        """Return the gradient kernel at one head's output, (N, N), from the kernel at the output of W^O."""
        return np.asarray(head_gain(self.stack, "W") * mean_kernel(gradient) / self.stack.heads)

    def _sampled_gradients(self, gradient: Array) -> tuple[Array, Array, Array]:
        """Return samples of r, (samples, heads, N, N), and the gradients at queries and keys before their rotation.

        All matrices and optimizers have one gradient, whose samples are kept.

        Args:
            gradient: gradient kernel at the output of W^O.
        """
        if self._sampled is None or not np.array_equal(self._sampled[0], gradient):
            normal = np.random.default_rng((self.seed, 1)).standard_normal((_DRAWS, *self.patterns.weights[0].shape))
            r = eigen_root(self._at_head(gradient)) @ normal @ eigen_root(self.values).mT
            at_logits = self.softmax_slope(r) * self._cap_slopes()
            vectors = self.at_queries_and_keys(at_logits)
            at_q, at_k = (rotated(self.stack, each, -1) for each in vectors) if self.stack.rotary else vectors
            self._sampled = gradient, r, at_q, at_k
        return self._sampled[1:]

    def _cap_slopes(self) -> Array | float:
        return 1.0 if self.patterns.slopes is None else self.patterns.slopes[0]

    def softmax_slope(self, change: Array) -> Array:
        """Return the change of the attention weights for a given small change of the (capped) attention logits."""
        weights = self.patterns.weights[0]
        return np.asarray(weights * (change - (weights * change).sum(-1, keepdims=True)))

    def at_queries_and_keys(self, at_logits: Array) -> tuple[Array, Array]:
        """Return the loss gradients at the outputs of W^Q and W^K, from the gradients at the attention logits.

        The gradients are still rotated by positions, (..., heads, N, r) each.

        Args:
            at_logits: gradients at the logits, (..., heads, N, N).
        """
        q, k = self.rotated_coordinates()
        scale, (first, second) = bare_logit_scale(self.stack), self.sizes()
        return scale * at_logits @ k / first, scale * at_logits.mT @ q / second

    def sizes(self) -> tuple[Array, Array]:
        """Return the numbers by which query and key norms divide queries and keys; 1 without such norms.

        Their shapes are (heads, N, 1), or (1, 1, 1) without norms.
        """
        first, second = self.patterns.sizes or (np.ones((1, 1, 1)), np.ones((1, 1, 1)))
        return first[0][..., None], second[0][..., None]

    def _energy_along_gradients(self, gradient: Array, of_values: Array, of_queries: Array, of_keys: Array) -> Array:
        """Return the energy of the motion along gradients at values, queries and keys, before W^O.

        It is a mean over sampled r.

        Args:
            gradient: gradient kernel at the output of W^O.
            of_values: coefficients of values on their gradients.
            of_queries: coefficients of queries on their gradients.
            of_keys: coefficients of keys on their gradients.
        """
        stack, weights = self.stack, self.patterns.weights[0]
        of_values, of_queries, of_keys = (mean_kernel(part) for part in (of_values, of_queries, of_keys))
        r, at_q, at_k = self._sampled_gradients(gradient)
        q, k = self.rotated_coordinates()
        scale, (first, second) = bare_logit_scale(stack), self.sizes()
        moved_q, moved_k = self.rotated_motion(at_q, of_queries) / first, self.rotated_motion(at_k, of_keys) / second
        change = self.softmax_slope(scale * (moved_q @ k.mT + q @ moved_k.mT) * self._cap_slopes())
        values = weights @ of_values
        of_group = values @ self.group_sums(weights.mT @ self._at_head(gradient) @ weights) @ values.mT
        crossed = values @ weights.mT @ r @ change.mT
        energy = change @ self.values @ change.mT * stack.key_width + crossed + crossed.mT
        return np.asarray((energy.mean(0) + of_group).mean(0) * stack.width / stack.key_width)

    def rotated_motion(self, gradients: Array, coefficients: Array) -> Array:
        """Return the change of queries or keys in one step, rotated by the tokens' positions.

        It is Σ_m T_im ∂L/∂q_m, with the coefficients T and the gradients before the rotation of queries.
        """
        moved = coefficients @ gradients
        return rotated(self.stack, moved) if self.stack.rotary else moved

    def rotated_coordinates(self) -> tuple[Array, Array]:
        """Return queries and keys after norms and rotation, as they enter the attention logits.

        Their shapes are (heads, N, r).
        """
        if self._rotated is not None:
            return self._rotated
        stack, patterns = self.stack, self.patterns
        assert patterns.coordinates is not None, "attention is random"
        q, k = (rows[0] for rows in patterns.coordinates)
        q = np.concatenate([q, np.zeros((*q.shape[:-1], k.shape[-1] - q.shape[-1]))], axis=-1)
        k = np.repeat(k, stack.heads // len(k), axis=0)
        first, second = self.sizes()
        q, k = q * gain(stack, "WQ") ** 0.5 / first, k * gain(stack, "WK") ** 0.5 / second
        self._rotated = (rotated(stack, q), rotated(stack, k)) if stack.rotary else (q, k)
        return self._rotated


def unevenness(rows: Array, each: Array, mean_rows: Array, mean: Array) -> Array:
    """Return the factor by which differences between heads weaken a step along the gradient's sign.

    It is √(gain of sign steps at a position / their gain if all Gram matrices were equal to their means), (N,).

    Args:
        rows: covariances of the rows.
        each: Gram matrices of the gradients.
        mean_rows: mean of `rows`.
        mean: mean of `each`.
    """
    kernels = (rows, each), (mean_rows, mean)
    after, before = (mean_kernel(sign_coefficients(kernel, gram) * gram).sum(-1) for kernel, gram in kernels)
    known = before > 1e-12 * before.max(initial=0.0)  # a position without a gradient has a rounding error
    return np.asarray(np.sqrt(np.divide(np.maximum(after, 0.0), before, out=np.ones(len(before)), where=known)))
