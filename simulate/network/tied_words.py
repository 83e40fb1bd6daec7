"""Tied embeddings: the rows of W_emb that are a batch's words are its inputs, scaled; all others are fresh.

Those others are independent of everything below the output, so that a fresh matrix with its columns of the batch's
words put in place is the tied one, in the conditioned engine too.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theory.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The words of a batch.

    Attributes:
        ids: word ids, below V, (draws, rows).
        first: for every row the first one with the same word, (draws, rows).
        rows: their rows of W_emb, σ_e d^(−1/2) x_0 without positions, (draws, rows, d).
    """

    ids: Int[Tensor, "draws rows"]
    first: Int[Tensor, "draws rows"]
    rows: Float[Tensor, "draws rows width"]

    def put_in(
        self, logits: Float[Tensor, "draws counted vocab"], output: Float[Tensor, "draws counted width"]
    ) -> Float[Tensor, "draws counted vocab"]:
        """Logits with those of the batch's words replaced by products with their own rows."""
        place = torch.arange(self.ids.shape[1], device=self.ids.device)
        # A word that has been put in goes to a place that is cut off: gradients of duplicates would count twice.
        vocab = logits.shape[2]
        where = self.ids.masked_fill(self.first != place, vocab)[:, None].expand(-1, output.shape[1], -1)
        padded = torch.nn.functional.pad(logits, (0, 1))
        return padded.scatter(2, where, output @ self.rows.mT)[:, :, :vocab]

    def gradient_sq(
        self, stack: Stack, input_gradient: Float[Tensor, "draws rows width"], row_gradient: Tensor
    ) -> Float[Tensor, " draws"]:
        """Squared norm of the gradient of these rows of W_emb, by both of their uses.

        Args:
            stack: the network.
            input_gradient: ∂L/∂x_0 through the layers.
            row_gradient: ∂L/∂(rows) at the output, 0 but at first occurrences.
        """
        where = self.first[:, :, None].expand_as(input_gradient)
        through = torch.zeros_like(input_gradient).scatter_add(1, where, input_gradient)
        return (
            (through * (stack.embedding_scale * stack.width**0.5 / stack.output_scale) + row_gradient)
            .square()
            .sum((1, 2))
        )
