"""Experts in one optimizer step: the MLPs of a layer, each with the tokens that its router sends to it.

The weights p_ie of the experts are held fixed. So Σ_e p_ie F_e(u_i) is a sum of independent MLPs. Expert e has the
tokens with p_ie > 0 only, and p_ie multiplies its output and its gradient. A step moves the sum by
Σ_ej p_ie C^e_ij p_je g_j, where C^e follows from the expert's own gradients p_je g_j. Experts without tokens do not
move. Experts with the same tokens have the mean of their products p_ie p_je.

The router is left out: its step, the gradients that it passes to the layers below, and its motion with its input.
They changed numbers by less than a tenth in networks that were sampled by hand, without stored numbers.

Source: this project.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theory.first_step.motion import Gradients, MatrixGradient, Steps, TokenMotion
from theory.first_step.rules import Branch, Rule
from theory.first_step.units import FeedForward
from theory.mean_field.kernels import Array, MatrixLayout
from theory.stack.optimizers import Optimizer


@dataclass(slots=True, eq=False)
class Experts(Branch):
    """The experts of a layer, with their gradients and the change of their weighted sum in one optimizer step.

    Attributes:
        stack: the network.
        given: kernel of the branch's input, (1, N, N).
        weights: weights of the experts for all tokens, (N, E).
        seed: random seed of the samples.
        samples: largest number of samples for each expert.
        parts: a tuple for every set of tokens that experts have. Its entries are the indices of pairs of tokens, the
            number of experts, the mean product of their weights, and the MLP of one of them.
        uses: the matrices of one expert.
    """

    given: Array
    weights: Array
    seed: int
    samples: int
    parts: list[tuple[Any, int, Array, FeedForward]] = field(init=False)

    def __post_init__(self) -> None:
        sets, of_expert = np.unique(self.weights > 0, axis=1, return_inverse=True)
        self.parts = []
        for k in np.flatnonzero(sets.any(0)):
            (tokens,), chosen = np.nonzero(sets[:, k]), self.weights[:, of_expert == k]
            at = (..., tokens[:, None], tokens)
            seed, products = self.seed * self.stack.experts + int(k), chosen @ chosen.T / chosen.shape[1]
            mlp = FeedForward(self.stack, MatrixLayout(len(tokens)), self.given[at], seed, self.samples)
            self.parts.append((at, chosen.shape[1], products[at], mlp))
        self.uses = self.parts[0][3].uses

    def _each(self, *entries: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        # Yields every part, its key, and its entries of gradients or steps.
        for k, part in enumerate(self.parts):
            key = f"expert {k} "
            yield (key, *part, *({name.removeprefix(key): of[name] for name in of if key in name} for of in entries))

    def down(self, noise: Array, part: Array) -> tuple[Array, Array, Gradients]:
        """Return the loss gradients at the experts' input and matrices, from the gradient at their weighted sum.

        Args:
            noise: kernel of the gradient at the sum, (..., N, N).
            part: coefficients on the sum, passed through unchanged.
        """
        below, gradients = np.zeros_like(noise), {"W2": MatrixGradient.without_overlaps(noise)}
        for key, at, count, products, mlp in self._each():
            to_tokens, _, matrices = mlp.down(products * noise[at], part[at])
            below[at] += count * to_tokens
            gradients |= {key + role: gradient for role, gradient in matrices.items()}
        return below, part, gradients

    def up(self, moved: TokenMotion, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the weighted sum when its input and the experts take one optimizer step.

        Args:
            moved: motion of the input tokens.
            gradients: gradients at the matrices.
            steps: steps of the matrices.
        """
        c, energy = np.zeros((2, *(gram := gradients["W2"].gram).shape))
        for _, at, count, products, mlp, each, moves in self._each(gradients, steps):
            motion = mlp.up(TokenMotion(moved.coefficients[at], moved.overlaps[at], moved.energy[at]), each, moves)
            c[at] += count * products * (by_gradient := motion.coefficients)
            energy[at] += count * products * (motion.energy - by_gradient @ each["W2"].gram @ by_gradient.mT)
        return TokenMotion(c, moved.overlaps, energy + c @ gram @ c.mT)

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of every expert's outputs in one optimizer step, by "expert k ROLE"."""
        return {
            key + role: c
            for key, *_, mlp, each in self._each(gradients)
            for role, c in mlp.steps(rule, each, matrices).items()
        }

    def deviation(self, deltas: Array, steps: Steps) -> Array:
        """Return samples of the change of the weighted sum beyond C Δ, as `Branch.deviation`."""
        beyond = np.zeros_like(deltas)
        for _, (*_, tokens), count, products, mlp, moves in self._each(steps):
            factors = np.sqrt(np.diagonal(products))
            beyond[:, tokens] += count * factors * mlp.deviation(factors * deltas[:, tokens], moves)
        return beyond

    def squared_sizes(self, optimizer: Optimizer, steps: Steps, gradients: Gradients) -> dict[str, Array]:
        """Return sums over the used experts, as `Branch.squared_sizes`."""
        return self._sum(
            (count, mlp.squared_sizes(optimizer, moves, each))
            for *_, count, _, mlp, moves, each in self._each(steps, gradients)
        )

    def inner_products_by_matrix(self, steps: Steps, gradients: Gradients, others: Gradients) -> dict[str, Array]:
        """Return sums over experts, as `Branch.inner_products_by_matrix`."""
        return self._sum(
            (count, mlp.inner_products_by_matrix(moves, each, other))
            for *_, count, _, mlp, moves, each, other in self._each(steps, gradients, others)
        )

    def _sum(self, parts: Iterator[tuple[int, dict[str, Array]]]) -> dict[str, Array]:
        sums = dict[str, Array]()
        for count, values in parts:
            sums |= {role: sums.get(role, 0.0) + count * value for role, value in values.items()}
        return sums
