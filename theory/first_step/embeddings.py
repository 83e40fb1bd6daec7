"""The embedding tables of tokens and learned positions, and their change in one optimizer step."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from theory.first_step.motion import Gradients, Steps, TokenMotion, mean_kernel
from theory.first_step.output_matrix import WordSteps
from theory.first_step.rules import Branch, MatrixUse, Rule, sign_rule
from theory.mean_field.kernels import Array, Number
from theory.stack import Stack


@dataclass(slots=True, eq=False)
class Embeddings(Branch):
    """The input embeddings, as rows of tables, with their gradients and their change in one optimizer step.

    The tables are one of tokens and, if positions are learned, one of positions. The inputs are
    x_0,i = w_i or w_i + p_i, before a norm if there is one.

    Attributes:
        stack: the network.
        scales: divisors of the kernel in that norm; 1 if there is none.
        words: 1 where two tokens have equal ids, (..., N, N).
        uses: the tables. Every token selects one row of each, so that H has a 1 there, and H Hᵀ is 1 for equal rows.
    """

    scales: Number
    words: Array

    def __post_init__(self) -> None:
        stack, none = self.stack, np.zeros((1, self.stack.rows))
        shapes = table_shapes(stack)
        places = np.tile(np.eye(stack.tokens), (stack.sequences, stack.sequences))
        rows = {
            "inputs": self.words.reshape(stack.rows, stack.rows),
            "positions": places,
            "segments": np.ones((stack.rows, stack.rows)),
        }
        self.uses = [MatrixUse(name, shape, rows[name][None], none) for name, shape in shapes.items()]

    def steps(self, rule: Rule, gradients: Gradients, matrices: Collection[str]) -> Steps:
        """Return the change of the input embeddings in one optimizer step, as a weighted sum of input gradients.

        The weights are the coefficients C by table; a row's gradient is the sum over its tokens.
        """
        if rule is not sign_rule:
            return Branch.steps(self, rule, gradients, matrices)
        chosen = [use for use in self.uses if use.role in matrices]
        squares = {use.role: np.linalg.diagonal(use.rows @ gradients[use.role].gram @ use.rows) for use in chosen}
        return {
            use.role: use.rows
            * np.sqrt(2 / np.pi * self.stack.width / np.maximum(squares[use.role], np.finfo(float).tiny))[..., None]
            for use in chosen
        }  # fmt: skip

    def sign_deviations(self, deltas: Array, steps: Steps, words: WordSteps | None = None) -> Steps:
        """Return samples of the inputs' change that is not along their gradients.

        The step is along the gradient's sign. It changes the inputs by C Δ on average, along their gradients Δ. The
        samples are the rest, as "beyond", (samples, N).

        Args:
            deltas: samples of the gradients Δ, (samples, N).
            steps: coefficients C by table.
            words: motion of the inputs by the output matrix, if inputs are its rows.
        """
        chosen = [use for use in self.uses if use.role in steps]
        signs = [
            np.sign(deltas @ use.rows[0]) if words is None or use.role != "inputs" else words.signs(deltas)
            for use in chosen
        ]
        parts = [moved - deltas @ mean_kernel(steps[use.role]).T for use, moved in zip(chosen, signs, strict=True)]
        return {"beyond": np.sum(parts, axis=0)} if parts else {}

    def up(self, gradients: Gradients, steps: Steps) -> TokenMotion:
        """Return the change of the input tokens when the embedding tables take one optimizer step."""
        n = self.stack.rows
        c = sum((steps[use.role] for use in self.uses if use.role in steps), np.zeros((1, n, n)))
        energy = c @ gradients["inputs"].gram @ c.mT + steps.get("words", 0.0)
        return TokenMotion(c / self.scales, np.zeros((1, n, n)), energy / self.scales)


def table_shapes(stack: Stack) -> dict[str, tuple[int, int]]:
    """Return the shape (rows, width) of every embedding table, by the table's name."""
    shapes = {"inputs": (stack.vocab, stack.width)}
    shapes |= {"positions": (stack.tokens, stack.width)} if stack.positions.startswith("learned") else {}
    return shapes | ({"segments": (1, stack.width)} if stack.positions == "learned_segment" else {})
