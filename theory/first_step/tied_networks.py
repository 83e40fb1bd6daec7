"""Predict the first optimizer step of networks with tied embeddings, for sampled logits and labels."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from theory.first_step.motion import Steps, symmetric_products
from theory.first_step.output_matrix import input_scale, spectral_step
from theory.first_step.outputs import Outputs, curved_gradients, sample_count, sampled_outputs, step_statistics
from theory.first_step.rules import RULES, Rules
from theory.first_step.tangent import Down, TwoPassSolution
from theory.mean_field.kernels import Array
from theory.stack.optimizers import LINEAR, Optimizer

# Networks at once, and of those whose shares are asked for.
_CHUNK = 32

Parts = dict[str, Array]
"""The parts of g·u or u'Gu that belong to each matrix, by role: (L,), and for "Wemb" ()."""


def tied_statistics(
    solution: TwoPassSolution, optimizer: Optimizer, chosen: Collection[str], drawn: Outputs
) -> tuple[dict[str, Array], tuple[Parts, Parts], tuple[Parts, Parts]]:
    """Return the loss decrease, curvature and logit changes of a step, for every network with tied embeddings.

    For the first networks, parts by matrix and squared updates are returned too.

    Args:
        solution: the network's forward and backward pass.
        optimizer: name of the optimizer.
        chosen: roles of the matrices that are stepped.
        drawn: softmax and gradients at the logits.

    Returns:
        `step_statistics` of every network; parts of g·u and of u'Gu; and E|u_W|² and |W|².
    """
    each, first = list[dict[str, Array]](), list[tuple[Parts, Parts]]()
    for _, part in drawn.pieces(_CHUNK):
        step = TiedStep.of(solution, optimizer, chosen, part)
        w, speeds = step.logits(solution, part)
        each.append(step_statistics(part, w, speeds, normalized=optimizer == "normalized"))
        first = first or [step.inner_products_by_matrix(solution, part, w), step.squared_updates(solution, optimizer)]
    return {name: np.concatenate([values[name] for values in each]) for name in each[0]}, first[0], first[1]


def sampled_tied_outputs(
    solution: TwoPassSolution, generator: np.random.Generator, patterns: int, counted: NDArray[np.bool_]
) -> Outputs:
    """Sample the softmax and the loss gradients at the logits of networks with tied embeddings.

    The first classes are the positions' own words.

    Args:
        solution: the network's forward and backward pass.
        generator: random generator of logits and labels.
        patterns: number of attention samples, among which the samples are divided.
        counted: mask of the positions that count, (N,).
    """
    stack = solution.stack
    of_words = stack.output_scale * stack.width**0.5 * solution.held[-1][0]
    count = sample_count(stack, linear=False, patterns=patterns)
    return sampled_outputs(stack, solution.forward.output[0], generator, count, counted, of_words)


@dataclass(frozen=True, slots=True, eq=False)
class TiedStep:
    """One optimizer step of networks with tied embeddings, with its effect on logits and loss.

    Attributes:
        down: gradients of the backward pass.
        steps: steps of the matrices of every sub-layer.
        left: Gram matrix of the rows L = (x_L, g_0), (M, 2N, 2N). The gradient of the output matrix is LᵀR, with R
            the gradient r at the logits and, in the columns of the words, the ratio of x_0 to such a column.
        embedding: coefficients of the output matrix's step on L, or 0, (M, 2N, V).
        remainder: products of the step's part orthogonal to L in the columns of the words, (M, N, N).
        of_output: optimizer of the output matrix, and the factor on its step, which `embedding` and `remainder`
            include.
    """

    down: Down
    steps: list[Steps]
    left: Array
    embedding: Array
    remainder: Array
    of_output: tuple[Optimizer, float]

    @classmethod
    def of(
        cls, solution: TwoPassSolution, optimizer: Optimizer, chosen: Collection[str], drawn: Outputs,
        rules: Rules = RULES, of_output: tuple[Optimizer, float] | None = None,
    ) -> "TiedStep":  # fmt: skip
        """Compute the step that an optimizer takes in chosen matrices.

        Args:
            solution: the network's forward and backward pass.
            optimizer: name of the optimizer.
            chosen: roles of the matrices that are stepped.
            drawn: softmax and gradients at the logits.
            rules: the optimizers' rules.
            of_output: optimizer of the output matrix, and the factor on its step; None for the same, and 1.
        """
        stack, n = solution.stack, solution.stack.rows
        down = _down(solution, drawn.r)
        words = np.broadcast_to(input_scale(stack) * np.eye(n, stack.vocab), drawn.r.shape)
        across = down.across * stack.width**0.5
        tokens = np.broadcast_to(stack.width * solution.forward.output, across.shape)
        left = np.concatenate([
            np.concatenate([tokens, across.mT], -1),
            np.concatenate([across, down.bottom.kernel(solution.first)], -1),
        ], -2)  # fmt: skip
        right = np.concatenate([drawn.r, words], -2)
        embedding, remainder = 0.0 * right, np.zeros((1, n, n))
        name, factor = of_output = of_output or (optimizer, 1.0)
        if "Wemb" in chosen:
            step, beyond = _embedding_step(solution, name, left, right, rules)
            embedding, remainder = factor * step, factor**2 * beyond
        return cls(down, solution.steps(rules[optimizer], down, chosen), left, embedding, remainder, of_output)

    def logits(self, solution: TwoPassSolution, drawn: Outputs) -> tuple[Array, Array]:
        """Return the change of the logits in the step, and the variance of its random part.

        The shapes are (M, N, V) and (M, P).
        """
        stack, n, d = solution.stack, solution.stack.rows, solution.stack.width
        kappa = input_scale(solution.stack)
        of_outputs, of_inputs = (kappa * rows.mT for rows in (self.embedding[:, :n, :n], self.embedding[:, n:, :n]))
        moved = solution.bottom(self.down, d**0.5 * of_outputs, of_inputs)
        energy = moved.motion.energy + kappa**2 * self.remainder
        moved = solution.up(self.down, self.steps, replace(moved, motion=replace(moved.motion, energy=energy)))
        w = stack.output_scale**2 * moved.motion.coefficients @ drawn.r
        w[..., :n] = stack.output_scale * moved.words
        w = w + self.left[:, :n] @ self.embedding
        speeds = np.linalg.diagonal(moved.motion.energy) * stack.output_scale**2 / d
        return w, np.broadcast_to(speeds, drawn.r.shape[:2])[:, drawn.counted]

    def inner_products_by_matrix(self, solution: TwoPassSolution, drawn: Outputs, w: Array) -> tuple[Parts, Parts]:
        """Return each matrix's part of a step's loss decrease, and of the loss curvature in its direction.

        The decrease is g·u and the curvature u'Gu, by role.

        The latter is the product of U_W with the gradient of another loss, whose gradients at the logits are H_i
        w_i/P. All of it is quadratic in gradients at the logits, so that differences give products of two of them.

        Args:
            solution: the network's forward and backward pass.
            drawn: softmax and gradients at the logits.
            w: change of the logits, (M, N, V).
        """
        both = []
        for other in (drawn.r, curved_gradients(drawn, w)):
            # Of like size, so that no difference is rounding.
            size = np.sqrt((drawn.r**2).sum((-2, -1), keepdims=True) / (other**2).sum((-2, -1), keepdims=True))
            plus, minus = (_down(solution, drawn.r + sign * size * other) for sign in (1, -1))
            others = [
                {role: symmetric_products(above[role], below[role]) for role in above}
                for above, below in zip(plus.matrices, minus.matrices, strict=True)
            ]
            products = solution.inner_products_by_matrix(self.steps, self.down.matrices, others)
            arrays = {role: (product / size[:, 0, 0]).mean(-1) for role, product in products.items()}
            if self.embedding.any():
                whole = float((other * w).sum((-2, -1)).mean())
                arrays["Wemb"] = np.array(whole - sum(float(part.sum()) for part in arrays.values()))
            both.append(arrays)
        return both[0], both[1]

    def squared_updates(self, solution: TwoPassSolution, optimizer: Optimizer) -> tuple[Parts, Parts]:
        """Return the mean squared norms of the step and of the weights, for every matrix and the output matrix.

        They are E|u_W|² and |W|², by role.
        """
        squares, sizes = solution.squared_updates(optimizer, self.steps, self.down)
        if self.embedding.any():
            stack, signs = solution.stack, float(solution.stack.vocab * solution.stack.width)
            along = float((self.embedding * (self.left @ self.embedding)).sum((-2, -1)).mean())
            squares["Wemb"] = np.array(self.of_output[1] ** 2 * signs if self.of_output[0] == "adam" else along)
            sizes["Wemb"] = np.array(stack.output_scale**2 * stack.vocab)
        return squares, sizes


def _down(solution: TwoPassSolution, r: Array) -> Down:
    """Return the backward pass from gradients at the logits, whose first classes are the words of the inputs."""
    n, scale = solution.stack.rows, solution.stack.output_scale
    return solution.down(scale**2 * (r[..., n:] @ r[..., n:].mT), scale * r[..., :n])


def _embedding_step(
    solution: TwoPassSolution, optimizer: Optimizer, left: Array, right: Array, rules: Rules
) -> tuple[Array, Array]:
    """Return `embedding` and `remainder` of `TiedStep`.

    Args:
        solution: the network's forward and backward pass.
        optimizer: name of the optimizer.
        left: Gram matrix of L, (M, 2N, 2N).
        right: R, (M, 2N, V).
        rules: the optimizers' rules.
    """
    stack, n = solution.stack, solution.stack.rows
    if optimizer == "adam":
        # Coordinates of all rows are Gaussian, and so is a column's gradient: what a sign is of it is closed.
        sizes = np.sqrt(np.maximum(((left @ right) * right).sum(-2, keepdims=True), 0.0) / stack.width)
        step = (2 / np.pi) ** 0.5 * np.divide(right, sizes, out=np.zeros_like(right), where=sizes > 0)
        words = step[..., :n]
        along = words.mT @ left @ words / stack.width
        return step, stack.width * (2 / np.pi * np.arcsin(np.clip(np.pi / 2 * along, -1.0, 1.0)) - along)
    step = right if optimizer in LINEAR else spectral_step(rules[optimizer], stack, left, right)
    return step, np.zeros((1, n, n))
