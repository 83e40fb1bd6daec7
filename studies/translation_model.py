"""The encoder-decoder of the paper's experiments, of torch.nn's layers, with each of its ingredients to switch off.

Source: Xiong et al. (2020), appendix A.1, after Vaswani et al. (2017).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.parallel_text import PADDING, Ids

TranslatorPlacement = Literal["post", "pre"]
TranslatorInitialization = Literal["xavier", "pytorch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A translation model at initialization.

    Attributes:
        placement: of LayerNorm, "post" or "pre".
        width: d.
        depth: layers of the encoder, and of the decoder.
        heads: of every attention.
        ffn_width: of feed-forward units.
        vocab: number of ids.
        initialization: "xavier" draws every matrix by Glorot and Bengio's rule, as the paper; "pytorch" leaves what the
            layers of torch.nn draw.
        dropout: of what branches give, and of embeddings.
        smoothing: of labels.
        tied: whether the decoder's embedding is the output matrix.
        cross: whether the decoder attends to the encoder.
        causal: whether a target word looks only at those before it.
        repeated: whether a word has the same embedding wherever it stands.
        real_labels: whether labels are the next words, and not independent and uniform.

    Raises:
        ValueError: a value is outside its range.
    """

    placement: TranslatorPlacement = "post"
    width: int = 512
    depth: int = 6
    heads: int = 4
    ffn_width: int = 1024
    vocab: int = 10000
    initialization: TranslatorInitialization = "xavier"
    dropout: float = 0.1
    smoothing: float = 0.1
    tied: bool = True
    cross: bool = True
    causal: bool = True
    repeated: bool = True
    real_labels: bool = True

    def non_default(self) -> dict[str, str | int | float]:
        """The fields that differ from the defaults: what makes two models different."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def __post_init__(self) -> None:
        for name, allowed in (("placement", TranslatorPlacement), ("initialization", TranslatorInitialization)):
            if getattr(self, name) not in get_args(allowed):
                words = " or ".join(map(repr, get_args(allowed)))
                raise ValueError(f"{name} must be {words}, got {getattr(self, name)!r}.")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                continue
            if isinstance(field.default, int) and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{field.name} must be an integer of at least 1, got {value!r}.")
            if isinstance(field.default, float) and not (isinstance(value, int | float) and 0 <= value < 1):
                raise ValueError(f"{field.name} must be a number in [0, 1), got {value!r}.")
        if self.width % self.heads or self.width % 2:
            raise ValueError(f"width must be even and a multiple of heads = {self.heads}, got {self.width}.")


class Translator(nn.Module):
    """Embeddings, sinusoidal positions, torch.nn's encoder and decoder layers, and an output matrix.

    The matrices are drawn from torch's global generator.
    """

    def __init__(self, translation: Translation) -> None:
        super().__init__()
        t = self.translation = translation
        self.source, self.target = (nn.Embedding(t.vocab, t.width) for _ in range(2))
        sizes = (t.width, t.heads, t.ffn_width, t.dropout)
        options: dict[str, Any] = {"batch_first": True, "norm_first": t.placement == "pre"}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(*sizes, **options) for _ in range(t.depth))
        decoder = nn.TransformerDecoderLayer if t.cross else nn.TransformerEncoderLayer
        self.decoder = nn.ModuleList(decoder(*sizes, **options) for _ in range(t.depth))
        pre = t.placement == "pre"
        self.encoder_norm, self.decoder_norm = (nn.LayerNorm(t.width) if pre else nn.Identity() for _ in range(2))
        self.output = nn.Linear(t.width, t.vocab, bias=False)
        self.dropout = nn.Dropout(t.dropout)
        self._initialize()

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # dropout is of what branches give, as Vaswani et al. (2017) have it
                if self.translation.initialization == "xavier":
                    # Queries, keys and values are one parameter: each is a matrix of its own to the paper.
                    for matrix in module.in_proj_weight.data.chunk(3):
                        nn.init.xavier_uniform_(matrix)
                    nn.init.xavier_uniform_(module.out_proj.weight)
        for layer in [*self.encoder, *self.decoder]:
            layer.dropout = nn.Identity()  # of feed-forward units
            if self.translation.initialization == "xavier":
                for linear in (layer.linear1, layer.linear2):
                    nn.init.xavier_uniform_(linear.weight)
                    nn.init.zeros_(linear.bias)
        for embedding in (self.source, self.target):
            nn.init.normal_(embedding.weight, std=self.translation.width**-0.5)
        if self.translation.tied:
            self.output.weight = self.target.weight
        else:
            nn.init.normal_(self.output.weight, std=self.translation.width**-0.5)

    def _embedded(self, ids: Tensor, table: nn.Embedding) -> Tensor:
        width = self.translation.width
        if self.translation.repeated:
            rows = table(ids) * math.sqrt(width)
        else:
            rows = torch.randn(*ids.shape, width, device=ids.device, dtype=table.weight.dtype)
        rates = 10000.0 ** (-torch.arange(0, width, 2, device=ids.device) / width)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * rates
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        embedded: Tensor = self.dropout(rows + positions.to(rows.dtype))
        return embedded

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (pairs, target length, V) of the word after each, of ids (pairs, length) padded at the end."""
        x = self._embedded(target, self.target)  # first, as random numbers of dropout are drawn in this order
        memory = self._encoded(source) if self.translation.cross else None
        return self._logits(x, target, memory, source)

    def _encoded(self, source: Tensor) -> Tensor:
        """What the decoder attends to, (pairs, source length, d), of ids padded at the end."""
        memory, nothing = self._embedded(source, self.source), source == PADDING
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=nothing)
        normed: Tensor = self.encoder_norm(memory)
        return normed

    def _logits(self, x: Tensor, target: Tensor, memory: Tensor | None, source: Tensor) -> Tensor:
        mask = None
        if self.translation.causal:
            mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        padded = {"tgt_key_padding_mask": target == PADDING} if mask is None else {}
        if memory is not None:
            nothing = source == PADDING
            for layer in self.decoder:
                x = layer(x, memory, tgt_mask=mask, memory_key_padding_mask=nothing, **padded)
        else:
            for layer in self.decoder:
                # What a word behind its sentence's end attends to counts for nothing.
                x = layer(x, src_mask=mask, src_key_padding_mask=None if mask is not None else target == PADDING)
        logits: Tensor = self.output(self.decoder_norm(x))
        return logits


def translation_loss(translation: Translation, logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats over the labels that are words, with the model's smoothing."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PADDING, label_smoothing=translation.smoothing,
        reduction=reduction,
    )  # fmt: skip


def padded(sentences: Sequence[Ids]) -> Tensor:
    """Ids of sentences, (sentences, longest), padded at the end."""
    return nn.utils.rnn.pad_sequence([torch.as_tensor(ids) for ids in sentences], batch_first=True)


def parameter_count(translation: Translation) -> int:
    """How many numbers a model has, without making them."""
    with torch.device("meta"):
        return sum(p.numel() for p in Translator(translation).parameters())
