"""Attention on the way down and up of one step: with fixed weights, and with the weights of random queries and keys.

Of one head, o_i = Σ_j A_ij v_j, and A_i = softmax of logits a_ij = q_i·k_j/√d_k, with D_i = diag A_i − A_i A_i' the
softmax's derivative. Given logits, queries and keys, a gradient g_i at o_i asks for r_ij = g_i·v_j, Gaussian with
Cov(r_ij, r_kl) = G_ik V_jl, and ∂a_i = D_i r_i is the gradient at the logits. When tokens move, so does

    ȯ_i = Σ_j A_ij v̇_j + Σ_j Ȧ_ij v_j,    Ȧ_i = D_i ȧ_i,    ȧ_ij = (q̇_i·k_j + q_i·k̇_j)/√d_k.

Queries move along their gradients by q̇_i = Σ_m T^Q_im ∂L/∂q_m, with T^Q = gain c + C of W^Q, keys by T^K and values by
T^V likewise. What of ȯ_i is along g_m has then the coefficient

    A T^V A' + T^Q ∘ M[k_j·k_l/d_k] + q_i·q_m/d_k ∘ M[T^K],     M_im[N] = Σ_jl N_jl (D_i V D_m)_jl,

the adjoint of the gradient kernel's way down, and its mean over heads goes on. Energies of what is random to a matrix
pass likewise. But what Σ_j Ȧ_ij v_j owes to gradients is no multiple of them: it lies along the values, of which a head
has as many as tokens, so that its energy is larger than that of a multiple by d_k over their number. It is a mean over
sampled r.

Assumes d → ∞ at fixed d_k, so that there are many heads; corrections are O(d_k/d).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from theory.first_step.motion import TokenMotion, mean_kernel
from theory.first_step.rules import (
    MatrixUse,
    Rule,
    parts_of,
    sign_coefficients,
    sign_energy,
    sign_rule,
    steps_of,
)
from theory.first_step.samples import gaussian_samples
from theory.mean_field.attention.patterns import Patterns, bare_logit_scale, rotated, turning
from theory.mean_field.attention.sampled import Inner, head_gain, turned
from theory.mean_field.kernels import Array, MatrixLayout, cholesky
from theory.stack import Stack
from theory.stack.weights import gain, weight_shapes

# Of r for every head, for the energy of what follows no gradient.
_DRAWS = 4


@dataclass(slots=True, eq=False)
class FixedAttention:
    """Attention with fixed weights A: A x W^V W^O.

    Attributes:
        uses: its matrices, in the order in which a token meets them.
    """

    stack: Stack
    tokens: MatrixLayout
    given: Array
    uses: list[MatrixUse] = field(init=False)

    def __post_init__(self) -> None:
        shapes, mean = weight_shapes(self.stack), self.tokens.attend(self.given)
        seen = gaussian_samples(mean[0], np.random.default_rng(0))
        self.uses = [MatrixUse("WV", shapes["WV"], self.stack.width * mean, seen)]
        if "WO" in shapes:
            value_gain = gain(self.stack, "WV")
            self.uses.append(MatrixUse("WO", shapes["WO"], shapes["WO"][0] * mean * value_gain, seen * value_gain**0.5))

    def down(self, gradient: Array) -> tuple[Array, dict[str, Array]]:
        """From the Gram matrix of gradients at its output to that at its input, and those at its matrices."""
        gradients = {}
        for use in reversed(self.uses):
            gradients[use.role] = gradient
            gradient = gradient * gain(self.stack, use.role)
        return self.tokens.attend_back(gradient), gradients

    def up(self, moved: TokenMotion, gradients: dict[str, Array], steps: dict[str, Array]) -> TokenMotion:
        """How what it returns moves."""
        c, energy = self.tokens.attend(moved.coefficients), self.tokens.attend(moved.energy)
        for use in self.uses:
            c = c * gain(self.stack, use.role) + steps.get(use.role, 0.0)
            energy = energy * gain(self.stack, use.role) + c @ gradients[use.role] @ c.mT
            energy = energy + steps.get(f"{use.role} remainder", 0.0)
        return TokenMotion(c, energy)

    def steps(self, rule: Rule, gradients: dict[str, Array], matrices: Collection[str]) -> dict[str, Array]:
        """C of the matrices that move, by role, and "ROLE remainder" of signs."""
        return steps_of(self.uses, rule, gradients, matrices)

    def parts(self, steps: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
        """What every matrix that moves adds to the product of a step with gradients, which may be another loss's."""
        return parts_of(self.uses, steps, gradients)


@dataclass(slots=True, eq=False)
class RandomAttention:
    """Attention of random queries and keys, given one sampled pattern of every head.

    Attributes:
        uses: its matrices, in the order in which a token meets them.
    """

    stack: Stack
    tokens: MatrixLayout
    given: Array
    patterns: Patterns
    seed: int
    uses: list[MatrixUse] = field(init=False)
    values: Array = field(init=False)

    def __post_init__(self) -> None:
        shapes, generator = weight_shapes(self.stack), np.random.default_rng(self.seed)
        rows, seen = self.stack.width * self.given, gaussian_samples(self.given[0], generator)
        self.uses = [MatrixUse(role, shapes[role], rows, seen) for role in ("WQ", "WK", "WV")]
        self.values = gain(self.stack, "WV") * self.given[0]
        if "WO" in shapes:
            weights = self.patterns.weights[0]
            outputs = (weights @ self.values @ weights.mT).mean(0, keepdims=True)
            self.uses.append(
                MatrixUse("WO", shapes["WO"], shapes["WO"][0] * outputs, gaussian_samples(outputs[0], generator))
            )

    def down(self, gradient: Array) -> tuple[Array, dict[str, Array]]:
        """As `FixedAttention.down`."""
        stack = self.stack
        gradients = {role: part.sum(-3) for role, part in self._of_heads(gradient).items()}
        below = sum((gain(stack, role) * part for role, part in gradients.items()), np.zeros(1))
        return below, gradients | {"WO": gradient}

    def _of_heads(self, gradient: Array) -> dict[str, Array]:
        """Gram matrices of the gradients at every head's queries, keys and values, (..., heads, N, N)."""
        stack, patterns, weights = self.stack, self.patterns, self.patterns.weights[0]
        head = head_gain(stack, "W") * gradient[..., None, :, :] / stack.heads
        inner = Inner.of(weights, weights, self.values, head, None, _first(patterns.slopes))
        queries, keys = self._products()
        scale = bare_logit_scale(stack) ** 2 * stack.key_width
        grams = {
            "WQ": scale * turned(stack, keys, inner.at_queries), "WK": scale * turned(stack, queries, inner.at_keys),
        }  # fmt: skip
        if patterns.sizes is not None:
            for role, size in zip(grams, patterns.sizes, strict=True):
                grams[role] = grams[role] / (size[0][..., :, None] * size[0][..., None, :])
        return grams | {"WV": weights.mT @ head @ weights}

    def _products(self) -> tuple[Array, Array]:
        """q_i·q_m/d_k and k_j·k_l/d_k as logits have them, (heads, N, N) each."""
        queries, keys = self.patterns.queries[0], self.patterns.keys[0]
        if self.patterns.sizes is not None:
            return queries, keys
        return gain(self.stack, "WQ") * queries, gain(self.stack, "WK") * keys

    def _group_sums(self, of_heads: Array) -> Array:
        """Sums over the heads that share keys and values, at each of them."""
        groups, heads = self.stack.key_heads, self.stack.heads
        if groups == heads:
            return of_heads
        shape = (*of_heads.shape[:-3], groups, heads // groups, *of_heads.shape[-2:])
        return np.repeat(of_heads.reshape(shape).sum(-3), heads // groups, axis=-3)

    def steps(self, rule: Rule, gradients: dict[str, Array], matrices: Collection[str]) -> dict[str, Array]:
        """As `FixedAttention.steps`, of every head by itself, or of all, but for W^O: (..., heads or 1, N, N)."""
        uses = [use for use in self.uses if use.role in matrices]
        if rule is sign_rule:
            return self._sign_steps([use.role for use in uses], gradients)
        coefficients = {use.role: rule(use, gradients[use.role]) for use in uses}
        return {role: c if role == "WO" else c[..., None, :, :] for role, c in coefficients.items()}

    def _sign_steps(self, roles: list[str], gradients: dict[str, Array]) -> dict[str, Array]:
        """Of signs, which heads have each their own, for the law of gradients differs from head to head."""
        stack, width, heads = self.stack, self.stack.key_width, self._of_heads(gradients["WO"])
        steps = dict[str, Array]()
        for role in roles:
            if role == "WO":
                weights = self.patterns.weights[0]
                covariance = weights @ self.values @ weights.mT
                gradient, d_in, scale = gradients[role][..., None, :, :] / stack.width, stack.heads * width, np.ones(1)
            else:
                covariance, d_in = self.given[:, None], stack.width
                gradient = (heads[role] if role == "WQ" else self._group_sums(heads[role])) / width
                scale = np.ones(1) if role == "WV" else self._unevenness(role, gradients["WO"])
            c = d_in * scale[:, None] * scale * sign_coefficients(covariance, gradient)
            mean = gradient.reshape(-1, *gradient.shape[-3:]).mean(0)
            mean_c = c.reshape(-1, *c.shape[-3:]).mean(0)
            d_out = weight_shapes(stack)[role][1]
            remainder = d_out * (d_in**2 * sign_energy(covariance, mean) - mean_c @ mean @ mean_c.mT)
            if role == "WO":
                c, remainder = c.mean(-3), remainder.mean(-3)
            steps |= {role: c, f"{role} remainder": remainder}
        return steps

    def _unevenness(self, role: str, gradient: Array) -> Array:
        """√ of what signs gain of a position's queries or keys over what they would if all r were their mean, (N,).

        A head's gradients at queries are sums of as many r as a token sees keys, so that their sizes differ.
        """
        r, at_logits = self._sampled(head_gain(self.stack, "W") * mean_kernel(gradient) / self.stack.heads, _DRAWS)
        at_queries, at_keys = self._at_queries_and_keys(at_logits)
        rows = at_queries if role == "WQ" else self._group_sums(at_keys)
        if self.stack.rotary:
            rows = rotated(self.stack, rows, -1)
        each = rows @ rows.mT / self.stack.key_width
        mean = each.mean(0, keepdims=True)
        gains = [
            np.linalg.diagonal(sign_coefficients(self.given[:, None], part) @ part).mean((0, 1))
            for part in (each, mean)
        ]
        return np.asarray(np.sqrt(np.divide(gains[0], gains[1], out=np.ones(len(gains[0])), where=gains[1] > 0)))

    def parts(self, steps: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
        """As `FixedAttention.parts`."""
        roles, none, projection = ("WV", "WQ", "WK"), np.zeros((1, 1, 1)), head_gain(self.stack, "W")
        outputs = {
            role: projection * self._passed(*(steps[role] if role == other else none for other in roles))
            for role in roles if role in steps
        }  # fmt: skip
        outputs |= {"WO": steps["WO"]} if "WO" in steps else {}
        return {role: (c * gradients["WO"]).sum((-2, -1)) for role, c in outputs.items()}

    def up(self, moved: TokenMotion, gradients: dict[str, Array], steps: dict[str, Array]) -> TokenMotion:
        """As `FixedAttention.up`."""
        stack, roles = self.stack, ("WV", "WQ", "WK")
        gains, shapes = {role: gain(stack, role) for role in roles}, weight_shapes(stack)
        c, energy = (kernel[..., None, :, :] for kernel in (moved.coefficients, moved.energy))
        along = [c * gains[role] + steps.get(role, 0.0) for role in roles]
        fresh = [
            energy * gains[role] + stack.width / shapes[role][1] * steps.get(f"{role} remainder", 0.0) for role in roles
        ]
        c, energy = self._passed(*along), self._passed(*fresh)
        energy = energy + self._led(gradients["WO"], *along)
        if stack.output_projection == "identity":
            return TokenMotion(c, energy)
        c = c * gain(stack, "WO") + steps.get("WO", 0.0)
        energy = energy * gain(stack, "WO") + c @ gradients["WO"] @ c.mT + steps.get("WO remainder", 0.0)
        return TokenMotion(c, energy)

    def _passed(self, of_values: Array, of_queries: Array, of_keys: Array) -> Array:
        """What becomes of coefficients, or of energies, of values, queries and keys: the mean over heads."""
        stack, patterns, weights = self.stack, self.patterns, self.patterns.weights[0]
        inner = Inner.of(weights, weights, self.values, np.ones((1, 1)), None, _first(patterns.slopes))
        queries, keys = self._products()
        if patterns.sizes is not None:
            first, second = (size[0] for size in patterns.sizes)
            of_queries = of_queries / (first[..., :, None] * first[..., None, :])
            of_keys = of_keys / (second[..., :, None] * second[..., None, :])
        passed = np.zeros(weights.shape)
        scale = bare_logit_scale(stack) ** 2 * stack.key_width
        if of_values.any():
            passed = passed + weights @ of_values @ weights.mT
        if of_queries.any():
            passed = passed + scale * of_queries * _turned(stack, keys, inner.at_queries)
        if of_keys.any():
            passed = passed + scale * queries * _turned(stack, of_keys, inner.at_queries)
        return np.asarray(passed.mean(-3))

    def _sampled(self, head: Array, draws: int) -> tuple[Array, Array]:
        """R of gradients with the Gram matrix of a head, and ∂L/∂a of it, (draws, heads, N, N) each."""
        weights, slopes = self.patterns.weights[0], _first(self.patterns.slopes)
        normal = np.random.default_rng((self.seed, 1)).standard_normal((draws, *weights.shape))
        r = cholesky(head) @ normal @ cholesky(self.values).mT
        return r, self._softmax_slope(r) * (1.0 if slopes is None else slopes)

    def _softmax_slope(self, change: Array) -> Array:
        """What a change of logits, behind their cap, makes of the weights."""
        weights = self.patterns.weights[0]
        return np.asarray(weights * (change - (weights * change).sum(-1, keepdims=True)))

    def _at_queries_and_keys(self, at_logits: Array) -> tuple[Array, Array]:
        """Gradients at queries and keys as W^Q and W^K make them, but turned by positions, (..., heads, N, r) each."""
        q, k = self._rotated_coordinates()
        scale, sizes = bare_logit_scale(self.stack), self.patterns.sizes
        first, second = (np.ones((1, 1)), np.ones((1, 1))) if sizes is None else (size[0] for size in sizes)
        return scale * at_logits @ k / first[..., None], scale * at_logits.mT @ q / second[..., None]

    def _led(self, gradient: Array, of_values: Array, of_queries: Array, of_keys: Array) -> Array:
        """The energy of what follows the gradients at values, queries and keys, before W^O: a mean over sampled r."""
        stack, weights, slopes = self.stack, self.patterns.weights[0], _first(self.patterns.slopes)
        # Means over the outputs.
        of_values, of_queries, of_keys = (
            part.reshape(-1, *part.shape[-3:]).mean(0) for part in (of_values, of_queries, of_keys)
        )
        head = head_gain(stack, "W") * mean_kernel(gradient) / stack.heads
        r, at_logits = self._sampled(head, _DRAWS)
        at_q, at_k = self._at_queries_and_keys(at_logits)
        q, k = self._rotated_coordinates()
        scale, sizes = bare_logit_scale(stack), self.patterns.sizes
        first, second = (np.ones((1, 1)), np.ones((1, 1))) if sizes is None else (size[0] for size in sizes)
        moved_q, moved_k = self._moved(at_q, of_queries), self._moved(at_k, of_keys)
        logits = scale * ((moved_q / first[..., None]) @ k.mT + q @ (moved_k / second[..., None]).mT)
        change = self._softmax_slope(logits * (1.0 if slopes is None else slopes))
        of_group = of_values @ self._group_sums(weights.mT @ head @ weights) @ of_values.mT
        crossed = weights @ of_values @ weights.mT @ r @ change.mT
        energy = change @ self.values @ change.mT * stack.key_width + crossed + crossed.mT
        return np.asarray((energy.mean(0) + weights @ of_group @ weights.mT).mean(0) * stack.width / stack.key_width)

    def _moved(self, gradients: Array, coefficients: Array) -> Array:
        """Σ_m T_im of gradients at queries or keys as positions rotate them, rotated again."""
        if not self.stack.rotary:
            return coefficients @ gradients
        return rotated(self.stack, coefficients @ rotated(self.stack, gradients, -1))

    def _rotated_coordinates(self) -> tuple[Array, Array]:
        """Queries and keys as logits have them, over norms, (heads, N, r) each."""
        stack, patterns = self.stack, self.patterns
        assert patterns.coordinates is not None, "attention is random"
        q, k = (rows[0] for rows in patterns.coordinates)
        q = np.concatenate([q, np.zeros((*q.shape[:-1], k.shape[-1] - q.shape[-1]))], axis=-1)
        q, k = q * gain(stack, "WQ") ** 0.5, k * gain(stack, "WK") ** 0.5
        if patterns.sizes is not None:
            q, k = (rows / size[0][..., None] for rows, size in zip((q, k), patterns.sizes, strict=True))
        return (rotated(stack, q), rotated(stack, k)) if stack.rotary else (q, k)


def _first(array: Array | None) -> Array | None:
    return None if array is None else array[0]


def _turned(stack: Stack, products: Array, gradient: Callable[[Array], Array]) -> Array:
    """M[N] of products N of keys, or of what moves them, that positions may rotate; N need not be symmetric."""
    if not stack.rotary:
        return gradient(products)
    lags, cosines = turning(stack)
    kernel = np.zeros(())
    for lag in range(1 - stack.tokens, stack.tokens):
        kernel = np.where(lags == lag, gradient(products * cosines[np.abs(lags - lag)]), kernel)
    return kernel
