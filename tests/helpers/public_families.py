"""Modules of torch.nn and layers with gates or experts, as the public problems had them, right or with the fault."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.helpers.model_families import BATCH, HEADS, TOKENS, VOCAB
from tests.helpers.single_modules import Single, next_word

CLASSES = 10


def random_labels(single: Single) -> Single:
    """The same module and batch, under cross-entropy with labels at random for every position."""
    module, inputs, _ = single
    labels = torch.randint(VOCAB, (BATCH * TOKENS,))

    def loss(output: Any) -> Tensor:
        logits = getattr(output, "logits", output)
        return functional.cross_entropy(logits.flatten(0, -2), labels.to(logits.device))

    return module, inputs, loss


class OfTorch(nn.Module):
    """Words, an encoder of torch.nn whose layers are drawn each by itself, and an output matrix.

    Args:
        width: of the stream.
        depth: how many layers.
        first: whether norms stand first.
        batch_first: of the layers; the batch is (samples, positions) whatever it is.
        sees: "earlier", "all", or "later": the mask.
        pooled: whether the mean over positions is classified.
        alike: whether layers are copies of one, as the encoder makes them.
    """

    def __init__(
        self, width: int, depth: int, *, first: bool, batch_first: bool = True, sees: str = "earlier",
        pooled: bool = False, alike: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()

        def layer() -> nn.Module:
            return nn.TransformerEncoderLayer(
                width, HEADS, 4 * width, dropout=0.0, batch_first=batch_first, norm_first=first
            )

        self.words = nn.Embedding(VOCAB, width)
        norm = nn.LayerNorm(width) if first else None
        self.encoder = nn.TransformerEncoder(layer(), depth, norm, enable_nested_tensor=False)
        if not alike:
            self.encoder.layers = nn.ModuleList(layer() for _ in range(depth))
        self.head = nn.Linear(width, CLASSES if pooled else VOCAB, bias=False)
        self.sees, self.pooled = sees, pooled

    def forward(self, words: Tensor) -> Tensor:
        x, ones = self.words(words), torch.ones(words.shape[1], words.shape[1], device=words.device).bool()
        mask = {"earlier": ones.triu(1), "all": None, "later": ones.tril(-1)}[self.sees]
        x = self.encoder(x, mask)
        return self.head(x.mean(1) if self.pooled else x)


class Mixing(nn.Module):
    """A residual layer around attention or a recurrence of torch.nn, and a feed-forward block."""

    def __init__(self, width: int, *, recurrent: bool, batch_first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer: nn.Module = (
            nn.GRU(width, width, batch_first=batch_first) if recurrent
            else nn.MultiheadAttention(width, HEADS, batch_first=batch_first)
        )  # fmt: skip
        self.up, self.down, self.recurrent = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), recurrent

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y = self.mixer(y)[0] if self.recurrent else self.mixer(y, y, y, need_weights=False)[0]
        x = x + y
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Mixed(nn.Module):
    """Words, such layers or one recurrence of torch.nn with layers of its own, and an output matrix."""

    def __init__(self, width: int, body: nn.Module, *, pooled: bool) -> None:
        super().__init__()
        self.words, self.body, self.norm = nn.Embedding(VOCAB, width), body, nn.LayerNorm(width)
        self.head, self.pooled = nn.Linear(width, CLASSES if pooled else VOCAB, bias=False), pooled

    def forward(self, words: Tensor) -> Tensor:
        x = self.body(self.words(words))
        x = self.norm(x[0] if isinstance(x, tuple) else x)
        return self.head(x.mean(1) if self.pooled else x)


def _layers(width: int, depth: int, *, recurrent: bool, batch_first: bool, pooled: bool) -> nn.Module:
    body = nn.Sequential(*(Mixing(width, recurrent=recurrent, batch_first=batch_first) for _ in range(depth)))
    return Mixed(width, body, pooled=pooled)


def _words(samples: int) -> Tensor:
    return torch.randint(VOCAB, (samples, TOKENS))


def _language(make: Callable[[int, int, bool], nn.Module], samples: int = BATCH) -> Callable[..., Single]:
    def single(width: int, depth: int, *, batch_first: bool) -> Single:
        words = _words(samples)
        return make(width, depth, batch_first), words, next_word(words)

    return single


def _classifier(make: Callable[[int, int, bool], nn.Module]) -> Callable[..., Single]:
    def single(width: int, depth: int, *, batch_first: bool) -> Single:
        labels = torch.randint(CLASSES, (BATCH,))
        module = make(width, depth, batch_first)
        return module, _words(BATCH), lambda y: functional.cross_entropy(y, labels.to(y.device))

    return single


def _masked(make: Callable[[int, int, bool], nn.Module]) -> Callable[..., Single]:
    """Three words of every sample are hidden behind one word, and guessed."""

    def single(width: int, depth: int, *, batch_first: bool) -> Single:
        words = _words(BATCH)
        hidden = torch.rand(words.shape).argsort(-1) < 3
        labels = words.masked_fill(~hidden, -100)
        return (
            make(width, depth, batch_first),
            words.masked_fill(hidden, 0),
            lambda y: functional.cross_entropy(y.flatten(0, 1), labels.flatten().to(y.device)),
        )

    return single


def _encoder(*, first: bool, sees: str, pooled: bool) -> Callable[[int, int, bool], nn.Module]:
    return lambda width, depth, batch_first: OfTorch(
        width, depth, first=first, sees=sees, pooled=pooled, batch_first=batch_first
    )


def _of_layers(*, recurrent: bool, pooled: bool) -> Callable[[int, int, bool], nn.Module]:
    return lambda width, depth, batch_first: _layers(
        width, depth, recurrent=recurrent, batch_first=batch_first, pooled=pooled
    )


def _one_recurrence(width: int, depth: int, batch_first: bool) -> nn.Module:
    return Mixed(width, nn.GRU(width, width, depth, batch_first=batch_first), pooled=False)


# By name: of a width, a depth and batch_first; the loss tells which axis of the batch is that of samples.
AXIS_TOLD: dict[str, Callable[..., Single]] = {
    # As many samples as positions: or its mask has no shape that is taken.
    "encoder, Pre-LN, next word": _language(_encoder(first=True, sees="earlier", pooled=False), TOKENS),
    "encoder, Post-LN, next word": _language(_encoder(first=False, sees="earlier", pooled=False), TOKENS),
    "encoder, Pre-LN, classes": _classifier(_encoder(first=True, sees="all", pooled=True)),
    "encoder, Post-LN, classes": _classifier(_encoder(first=False, sees="all", pooled=True)),
    "MultiheadAttention, classes": _classifier(_of_layers(recurrent=False, pooled=True)),
    "GRU in layers, next word": _language(_of_layers(recurrent=True, pooled=False)),
    "GRU in layers, classes": _classifier(_of_layers(recurrent=True, pooled=True)),
    "one GRU, next word": _language(_one_recurrence),
}
# Likewise, and it does not: every label might belong to either.
AXIS_NOT_TOLD: dict[str, Callable[..., Single]] = {
    "encoder, Pre-LN, masked words": _masked(_encoder(first=True, sees="all", pooled=False)),
    "encoder, Post-LN, masked words": _masked(_encoder(first=False, sees="all", pooled=False)),
    "MultiheadAttention, masked words": _masked(_of_layers(recurrent=False, pooled=False)),
    "GRU in layers, masked words": _masked(_of_layers(recurrent=True, pooled=False)),
    "one GRU, masked words": _masked(_one_recurrence),
}


def of_torch(width: int, depth: int, **kinds: Any) -> Single:
    words = _words(BATCH)
    return OfTorch(width, depth, **kinds), words, next_word(words)


class Routed(nn.Module):
    """Four linear maps in place of one, and a gate that sends every token to `top` of them.

    Args:
        plain: the map whose sizes and deviation they have.
        top: how many.
        divided: whether weights are divided by their sum; of one that makes 1 of it, whatever the gate says.
    """

    def __init__(self, plain: nn.Module, *, top: int, divided: bool) -> None:
        super().__init__()
        weight = plain.weight if isinstance(plain, nn.Linear) else plain.weight.mT  # transformers' Conv1D
        outputs, inputs = weight.shape
        self.experts = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in range(4))
        for expert in self.experts:
            nn.init.normal_(expert.weight, std=float(weight.detach().std()))
        self.gate, self.top, self.divided = nn.Linear(inputs, 4, bias=False), top, divided

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(self.top)
        if self.divided:
            weights = weights / weights.sum(-1, keepdim=True)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        taken = every.gather(-2, chosen[..., None].expand(*chosen.shape, every.shape[-1]))
        return (weights[..., None] * taken).sum(-2)
