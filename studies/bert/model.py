"""BERT's encoder and head, of torch.nn's layers, in both placements.

Source: Devlin et al. (2019); Pre-LN after Xiong et al. (2020), section 4.1.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simulate.counts import check_count
from studies.bert.text import PADDING

MaskedPlacement = Literal["post", "pre"]

_EPSILON = 1e-12
# Of BERT's matrices and embeddings at its width; other widths have the same spread times the root of the width.
_STD, _WIDTH = 0.02, 768


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedModel:
    """A masked language model at initialization; the defaults are BERT base.

    Attributes:
        placement: of LayerNorm, "post" or "pre".
        width: d.
        depth: layers.
        heads: of every attention.
        ffn_width: of feed-forward units, which have GELU.
        vocab: number of ids.
        length: positions, each with a learned embedding.
        dropout: of what branches give, of embeddings and of attention.

    Raises:
        ValueError: a value is outside its range.
    """

    placement: MaskedPlacement = "post"
    width: int = 768
    depth: int = 12
    heads: int = 12
    ffn_width: int = 3072
    vocab: int = 30522
    length: int = 512
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.placement not in get_args(MaskedPlacement):
            raise ValueError(f"placement must be 'post' or 'pre', got {self.placement!r}.")
        for field in fields(self):
            if field.type is int:
                check_count(field.name, getattr(self, field.name), 1)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a number in [0, 1), got {self.dropout!r}.")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads = {self.heads}, got {self.width}.")

    def non_default(self) -> dict[str, str | int | float]:
        """The fields that differ from the defaults: what makes two models different."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


class MaskedLanguageModel(nn.Module):
    """Embeddings of words and positions, torch.nn's encoder layers, and the head: logits of the words to be guessed.

    The head is N(GELU(x W + b)) times the embedding's rows, plus a bias. Pre-LN has a LayerNorm behind its last layer
    as well. Matrices and embeddings are normal with deviation 0.02 at d = 768, elsewhere 0.02 √(768/d); they are drawn
    from torch's global generator, in the same order for both placements.
    """

    def __init__(self, model: MaskedModel) -> None:
        super().__init__()
        self.model = model
        pre, width = model.placement == "pre", model.width
        self.words, self.positions = nn.Embedding(model.vocab, width), nn.Embedding(model.length, width)
        self.embedding_norm, self.head_norm = (nn.LayerNorm(width, eps=_EPSILON) for _ in range(2))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, model.heads, model.ffn_width, model.dropout, "gelu", _EPSILON, batch_first=True, norm_first=pre
            )
            for _ in range(model.depth)
        )
        for layer in self.layers:
            layer.dropout = nn.Identity()  # of feed-forward units, where BERT has none
        self.final_norm = nn.LayerNorm(width, eps=_EPSILON) if pre else nn.Identity()
        self.dense, self.bias = nn.Linear(width, width), nn.Parameter(torch.zeros(model.vocab))
        self.dropout = nn.Dropout(model.dropout)
        draw(self, width)

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        """Logits (words to be guessed, V).

        Args:
            ids: (windows, length), padded at the end.
            places: of the words to be guessed, in the order of flattened ids.
        """
        given = self.head_norm(F.gelu(self.dense(self.hidden(ids, places))))
        logits: Tensor = F.linear(given, self.words.weight, self.bias)
        return logits

    def hidden(self, ids: Tensor, places: Tensor) -> Tensor:
        """What the layers give at some places, (places, d); arguments as `forward` has them."""
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        x = self.dropout(self.embedding_norm(x))
        nothing = ids == PADDING
        padding = nothing if bool(nothing.any()) else None
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        states: Tensor = self.final_norm(x.flatten(0, 1)[places])
        return states


def draw(module: nn.Module, width: int) -> None:
    """Set a module's matrices at random and its biases to zero, as BERT does, in the order of its parameters."""
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=_STD * math.sqrt(_WIDTH / width))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def masked_loss(logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats a word to be guessed."""
    return F.cross_entropy(logits, labels, reduction=reduction)
