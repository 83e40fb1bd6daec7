"""Tied embeddings in sampled networks: inputs are scaled rows of the output matrix for a batch's token ids.

The rows of all other token ids are independent of everything below the output. A newly sampled output matrix, whose
columns for the batch's token ids are replaced, is therefore exactly the tied one, also in the conditioned engine.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theory.stack import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The token ids of a batch, with their rows of the output matrix W_emb.

    Attributes:
        ids: token ids, below V, (draws, rows).
        first: for every row the first row with the same token id, (draws, rows).
        rows: the token ids' rows of W_emb, σ_e d^(−1/2) x_0 without positions, (draws, rows, d).
    """

    ids: Int[Tensor, "draws rows"]
    first: Int[Tensor, "draws rows"]
    rows: Float[Tensor, "draws rows width"]

    def put_in(
        self, logits: Float[Tensor, "draws counted vocab"], output: Float[Tensor, "draws counted width"]
    ) -> Float[Tensor, "draws counted vocab"]:
        """Return the logits, with those of the batch's token ids replaced by products with the tied embeddings.

        These are the ids' rows of W_emb.
        """
        place = torch.arange(self.ids.shape[1], device=self.ids.device)
        # A word that has been put in goes to a place that is cut off: gradients of duplicates would count twice.
        vocab = logits.shape[2]
        where = self.ids.masked_fill(self.first != place, vocab)[:, None].expand(-1, output.shape[1], -1)
        return torch.nn.functional.pad(logits, (0, 1)).scatter(2, where, output @ self.rows.mT)[:, :, :vocab]

    def gradient_sq(
        self, stack: Stack, input_gradient: Float[Tensor, "draws rows width"], row_gradient: Tensor
    ) -> Float[Tensor, " draws"]:
        """Return the squared gradient norm of the batch's tied embeddings, from their use as inputs and as outputs.

        The gradients of both uses are added before they are squared. The shape is (draws,).

        Args:
            stack: the network.
            input_gradient: the gradient ∂L/∂x_0 through the layers.
            row_gradient: the gradient ∂L/∂(rows) at the output, 0 except at first occurrences.
        """
        where = self.first[:, :, None].expand_as(input_gradient)
        through = torch.zeros_like(input_gradient).scatter_add(1, where, input_gradient)
        return (
            (through * (stack.embedding_scale * stack.width**0.5 / stack.output_scale) + row_gradient)
            .square()
            .sum((1, 2))
        )
