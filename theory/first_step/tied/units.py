"""Feed-forward units on the way down and up of one step, where gradients have overlaps with what units return.

Gradients at the units h = φ(u) are P h/√d and noise ν, those at the pre-activations f ∘ (P h/√d + ν) with the factors
f = φ'(u). The part of u̇ that is random to all else is Gaussian with a known covariance with u, so that it is a multiple
of u and a rest. All means are over samples of u.
"""

from collections.abc import Collection

import numpy as np

from theory.first_step.motion import (
    Gradients,
    MatrixGradient,
    Steps,
    TokenMotion,
    inverse,
    mean_kernel,
    root,
    sample_mean,
)
from theory.first_step.rules import Branch, MatrixUse, Rule, sign_rule, sign_steps
from theory.first_step.units import FeedForward
from theory.mean_field.kernels import Array
from theory.mean_field.tied.units import response
from theory.stack.weights import gain


class TiedFeedForward(FeedForward):
    """φ(x W1) W2 or (φ(x WG) ∘ x W1) W2, with means over samples of the units, of which gradients hold a part."""

    def __post_init__(self) -> None:
        FeedForward.__post_init__(self)
        *before, second = self.uses
        none, rows = np.ones((1, 1)), self.stack.ffn_width * sample_mean(self.units.drawn, self.units.drawn)[None]
        self.uses = [MatrixUse(use.role, use.shape, use.rows, none) for use in before]
        self.uses.append(MatrixUse("W2", second.shape, rows, self.units.drawn))

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """As `FixedAttention.down`."""
        stack, ratio, size = self.stack, self.stack.ffn_width / self.stack.width, gain(self.stack, "W2")
        along = part @ (size * self.uses[-1].rows / stack.ffn_width)
        gradients = {"W2": MatrixGradient(noise + along @ part.mT, part, along)}
        noise, part = size * gradients["W2"].gram, size / ratio * part
        below, of_tokens = np.zeros(1), np.zeros(1)
        for role, factor in self.units.factors.items():
            role_gain, kernel = gain(stack, role), self.given * gain(stack, role)
            if stack.ffn == "gated" and role == "W1":
                answer = part * sample_mean(self.units.active, self.units.active)
            else:
                of_lines = gain(stack, "W1") * self.given if role == "WG" else 1.0
                answer = response(part * of_lines, kernel, self.units.before[role], self.units.active, self.units.slope)
            certain = factor * (self.units.drawn @ part.mT)
            gram = noise * sample_mean(factor, factor) + ratio * sample_mean(certain, certain)
            gradients[role] = MatrixGradient(gram, answer, ratio * answer @ kernel)
            below, of_tokens = below + role_gain * gram, of_tokens + ratio * role_gain * answer
        return below, of_tokens, gradients

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """As `FixedAttention.up`."""
        stack, ratio, size = self.stack, self.stack.ffn_width / self.stack.width, gain(self.stack, "W2")
        noise, certain, follows = self._noise(gradients), self._certain(gradients), moved.overlaps @ inverse(self.given)
        signs = self._signs(gradients, steps)
        along = {role: gain(stack, role) * moved.coefficients + steps.get(role, 0.0) for role in self.units.factors}
        # Networks' own coefficients may differ by orders of magnitude, as one over their gradients.
        apart = bool(signs) or any(len(role_c) > 1 for role_c in along.values())
        c, energy, change = np.zeros(1), np.zeros(1), np.zeros(1)
        by_noise, turned = np.zeros(1), 0.0 * self.given
        for role, factor in self.units.factors.items():
            role_c, slopes = along[role], sample_mean(factor, factor)
            change = change + factor * (self.units.before[role] @ follows.mT + (factor * certain) @ role_c.mT)
            rest = ratio * gain(stack, role) * (moved.energy - follows @ self.given @ follows.mT)
            c, energy = c + role_c * slopes, energy + rest * slopes
            if apart:
                by_noise = by_noise + factor * ((factor * self._drawn(gradients)) @ role_c.mT)
            else:
                turned = turned + factor[:, :, None] * mean_kernel(role_c) * factor[:, None, :]
        for role, moves in signs.items():
            c, change = c + self._along_noise(role, moves, gradients), change + self.units.factors[role] * moves
        energy = energy + ratio * sample_mean(change + by_noise, change + by_noise)
        energy = energy + (turned @ mean_kernel(noise) @ turned.mT).mean(0)
        of_units = TokenMotion(c, ratio * sample_mean(change, self.units.drawn), energy)
        return of_units.through(size, 1.0 / ratio, "W2", steps, gradients)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """As `FixedAttention.steps`; but of signs before an activation "ROLE signs", which are no multiples of Δ."""
        if rule is not sign_rule:
            return Branch.steps(self, rule, gradients, matrices)
        steps = sign_steps(self.uses[-1:] if "W2" in matrices else (), gradients)
        return steps | {f"{role} signs": np.ones(1) for role in self.units.factors if role in matrices}

    def inner_products_by_matrix(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        """As `Branch.inner_products_by_matrix`."""
        parts = Branch.inner_products_by_matrix(self, steps, gradients, others)
        ratio = self.stack.ffn_width / self.stack.width
        for role, moves in self._signs(gradients, steps).items():
            seen = (self.units.factors[role] * moves * self._certain(others)).sum(-1).mean(-1)
            c = self._along_noise(role, moves, gradients)
            parts[role] = ratio * seen + (c * self._noise(others)).sum((-2, -1))
        return parts

    def _noise(self, gradients: Gradients) -> Array:
        """The kernel of ν."""
        return np.asarray(gain(self.stack, "W2") * gradients["W2"].gram)

    def _certain(self, gradients: Gradients) -> Array:
        """Samples of P h, (..., samples, N)."""
        part = gain(self.stack, "W2") * self.stack.width / self.stack.ffn_width * gradients["W2"].part
        return np.asarray(self.units.drawn @ part.mT)

    def _drawn(self, gradients: Gradients) -> Array:
        """Samples of √d ν."""
        noise = self._noise(gradients) * self.stack.width / self.stack.ffn_width
        normal = np.random.default_rng((self.seed, 1)).standard_normal((len(noise), *self.units.drawn.shape))
        return np.asarray(normal @ root(noise).mT)

    def _signs(self, gradients: Gradients, steps: Steps) -> dict[str, Array]:
        """√d H sign(HᵀΔ) of samples of Δ, for Gaussian H, of the matrices that move so."""
        signs = dict[str, Array]()
        for role in (role for role in self.units.factors if f"{role} signs" in steps):
            gradient = self.units.factors[role] * (self._certain(gradients) + self._drawn(gradients))
            moved = gradient @ self.given
            sizes = np.sqrt(np.maximum((moved * gradient).sum(-1, keepdims=True), 0.0))
            scale = (2 / np.pi) ** 0.5 * self.stack.width**1.5
            signs[role] = scale * np.divide(moved, sizes, out=np.zeros_like(moved), where=sizes > 0)
        return signs

    def _along_noise(self, role: str, moves: Array, gradients: Gradients) -> Array:
        """Coefficients on ν of what signs make of the units, by Stein's lemma."""
        moved = sample_mean(self.units.factors[role] * moves, self._drawn(gradients))
        return np.asarray(self.stack.ffn_width / self.stack.width * moved @ inverse(self._noise(gradients)))
