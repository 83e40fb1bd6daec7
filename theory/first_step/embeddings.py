"""The tables that inputs are rows of: one of words, and one of positions where these are learned."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from theory.first_step.motion import TokenMotion, mean_kernel
from theory.first_step.rules import MatrixUse, Rule, parts_of, sign_rule
from theory.mean_field.kernels import Array
from theory.stack import Stack


@dataclass(slots=True, eq=False)
class Embeddings:
    """x_0,i = w_i, or w_i + p_i, of words that all differ, before a norm if there is one.

    Attributes:
        uses: the tables, by the one row of each that a token holds: H has 1 there, and H Hᵀ is 1 for equal rows.
    """

    stack: Stack
    scales: Array
    uses: list[MatrixUse] = field(init=False)

    def __post_init__(self) -> None:
        stack, none = self.stack, np.zeros((1, self.stack.rows))
        shapes = table_shapes(stack)
        places = np.tile(np.eye(stack.tokens), (stack.sequences, stack.sequences))
        rows = {"inputs": np.eye(stack.rows), "positions": places, "segments": np.ones((stack.rows, stack.rows))}
        self.uses = [MatrixUse(name, shape, rows[name][None], none) for name, shape in shapes.items()]

    def steps(self, rule: Rule, gradients: dict[str, Array], matrices: Collection[str]) -> dict[str, Array]:
        """C of the tables that move, by name, and "inputs remainder" of signs."""
        chosen = [use for use in self.uses if use.role in matrices]
        if rule is not sign_rule or not chosen:
            return {use.role: rule(use, gradients[use.role]) for use in chosen}
        width, gradient = self.stack.width, mean_kernel(gradients["inputs"])
        steps = {
            use.role: use.rows * (2 / np.pi * width) ** 0.5 / _sizes(use.rows @ gradients[use.role] @ use.rows)
            for use in chosen
        }  # fmt: skip
        # The sum of a token's rows moves by all their signs.
        energy = np.zeros_like(gradient)
        for table in chosen:
            for other in chosen:
                products = table.rows[0] @ gradient @ other.rows[0]
                sizes = [_sizes(use.rows[0] @ gradient @ use.rows[0]) for use in (table, other)]
                energy += 2 / np.pi * width * np.arcsin(np.clip(products / (sizes[0] * sizes[1].T), -1.0, 1.0))
        c = sum((mean_kernel(step) for step in steps.values()), np.zeros(1))
        return steps | {"inputs remainder": energy - c @ gradient @ c.T}

    def parts(self, steps: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
        """What every table that moves adds to the product of a step with gradients, by name."""
        return parts_of(self.uses, steps, gradients)

    def up(self, gradients: dict[str, Array], steps: dict[str, Array]) -> TokenMotion:
        """How tokens move at the stack's bottom."""
        n = self.stack.rows
        c = sum((steps[use.role] for use in self.uses if use.role in steps), np.zeros((1, n, n)))
        energy = c @ gradients["inputs"] @ c.mT
        energy = energy + steps.get("inputs remainder", 0.0)
        return TokenMotion(c / self.scales, energy / self.scales)


def table_shapes(stack: Stack) -> dict[str, tuple[int, int]]:
    """(rows, d) of every table that a stack's inputs are sums of rows of, by name."""
    shapes = {"inputs": (stack.vocab, stack.width)}
    shapes |= {"positions": (stack.tokens, stack.width)} if stack.positions.startswith("learned") else {}
    return shapes | ({"segments": (1, stack.width)} if stack.positions == "learned_segment" else {})


def _sizes(gradients: Array) -> Array:
    """Norms of rows' gradients, from their Gram matrix, (..., N, 1)."""
    return np.sqrt(np.maximum(np.linalg.diagonal(gradients), np.finfo(float).tiny))[..., None]
