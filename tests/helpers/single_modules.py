"""Single modules with a batch and a loss, healthy ones of nine families, and faults to plant in them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simulate.modules.catalogue import BUILTINS
from simulate.modules.layers import layer_lists
from tests.helpers.model_families import BATCH, FAMILIES, HEADS, TOKENS, VOCAB

Single = tuple[nn.Module, Any, Callable[[Any], Tensor]]


class Attention(nn.Module):
    """Causal, with its logits, softmax and product written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.scale, self.over, self.causal = (width // HEADS) ** -0.5, -1, True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        logits = q @ k.mT * self.scale
        if self.causal:
            logits = logits.masked_fill(torch.ones(logits.shape[-2:], device=x.device).triu(1).bool(), -1e9)
        return self.o((logits.softmax(self.over) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Pre-LN; without attention, if so."""

    def __init__(self, width: int, *, attends: bool) -> None:
        super().__init__()
        self.attention = Attention(width) if attends else None
        self.norm1, self.norm2 = nn.LayerNorm(width) if attends else None, nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        if self.attention is not None:
            x = x + self.attention(self.norm1(x))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Words, layers whose matrices have entries of variance 1/fan-in, an output matrix of its own."""

    def __init__(self, width: int, depth: int, *, attends: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList(Layer(width, attends=attends) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        for name, one in self.named_parameters():
            if one.ndim == 2:
                nn.init.normal_(one, std=one.shape[1] ** -0.5 if "words" not in name else 1.0)
            elif name.endswith("bias"):
                nn.init.zeros_(one)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def next_word(words: Tensor) -> Callable[[Any], Tensor]:

    def loss(output: Any) -> Tensor:
        logits = getattr(output, "logits", output)
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten().to(logits.device))

    return loss


def of_a_family(family: Callable[[int, int], tuple[nn.Module, Any]]) -> Callable[[int, int], Single]:
    def single(width: int, depth: int) -> Single:
        module, batch = family(width, depth)
        return (module, *batch(0))

    return single


def _language(family: Callable[[int, int], nn.Module]) -> Callable[[int, int], Single]:
    def single(width: int, depth: int) -> Single:
        module, words = family(width, depth), torch.randint(VOCAB, (BATCH, TOKENS))
        return module, words, next_word(words)

    return single


def _encoder(placement: str) -> Callable[[int, int], Single]:
    def single(width: int, depth: int) -> Single:
        module, _ = BUILTINS[f"encoder-{placement}"].factory(width, depth)
        labels = torch.randint(512, (BATCH * TOKENS,))
        x = torch.randn(BATCH, TOKENS, width)
        return module, x, lambda y: functional.cross_entropy(y.flatten(0, 1), labels.to(y.device))

    return single


# The last three are of transformers.
HEALTHY: dict[str, Callable[[int, int], Single]] = {
    "decoder": _language(lambda width, depth: Decoder(width, depth, attends=True)),
    "nanoGPT-like": _language(lambda width, depth: FAMILIES["nanoGPT-like"](width, depth)[0]),
    "without attention": _language(lambda width, depth: Decoder(width, depth, attends=False)),
    "ViT-like": of_a_family(FAMILIES["ViT-like"]),
    "torch.nn, Pre-LN": _encoder("pre"),
    "torch.nn, Post-LN": _encoder("post"),
    "Llama": _language(lambda width, depth: FAMILIES["Llama"](width, depth)[0]),
    "GPT-2": _language(lambda width, depth: FAMILIES["GPT-2"](width, depth)[0]),
    "BERT": of_a_family(FAMILIES["BERT"]),
}
OF_TRANSFORMERS = ("Llama", "GPT-2", "BERT")
CAUSAL = ("decoder", "nanoGPT-like", "Llama", "GPT-2")


def _wrapped(layer: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    plain = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        y = plain(*args, **kwargs)
        return (change(y[0]), *y[1:]) if isinstance(y, tuple) else change(y)

    layer.forward = forward


def norm_of(layer: nn.Module) -> nn.Module:
    return next(part for part in layer.modules() if "norm" in type(part).__name__.lower())


def _norm_twice(layer: nn.Module, _: int) -> None:
    norm = norm_of(layer)
    plain = norm.forward
    norm.forward = lambda x: x * plain(x)


def _epsilon(layer: nn.Module, _: int) -> None:
    norm = norm_of(layer)
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 1e4)


def _matrix_of_biases(layer: nn.Module) -> nn.Module:
    return next(one for one in layer.modules() if getattr(one, "bias", None) is not None and one.weight.ndim == 2)


def _repeated(layer: nn.Module, _: int) -> None:
    weight = next(one for one in layer.parameters() if one.ndim == 2)
    half = len(weight) // 2
    weight.data[half : 2 * half] = weight.data[:half].clone()


def _scaled_logits(layer: nn.Module, width: int) -> None:
    attention = next(one for one in layer.modules() if hasattr(one, "scale") or hasattr(one, "scaling"))
    name = "scale" if hasattr(attention, "scale") else "scaling"
    setattr(attention, name, getattr(attention, name) * (width // HEADS))


def _dead(layer: nn.Module, _: int) -> None:
    next(one for name, one in layer.named_parameters() if name in DEAD).data.fill_(-20.0)


DEAD = ("up.bias", "linear1.bias", "intermediate.dense.bias", "mlp.c_fc.bias")

# Kind of the alarm, families in which it makes sense, and what does it to a layer of a width.
LOCAL: dict[str, tuple[str, tuple[str, ...], Callable[[nn.Module, int], None]]] = {
    "sees later positions": ("leak", CAUSAL, lambda layer, _: _wrapped(layer, lambda y: y + 0.1 * y.flip(1))),
    "sees other samples": ("leak", tuple(HEALTHY), lambda layer, _: _wrapped(layer, lambda y: y + 0.1 * y.roll(1, 0))),
    "norm times its input": ("norm", tuple(HEALTHY), _norm_twice),
    "epsilon of 10^4": ("norm", tuple(HEALTHY), _epsilon),
    "rows that repeat": ("copies", tuple(HEALTHY), _repeated),
    "bias that nobody wrote": (
        "bias", ("nanoGPT-like", "without attention", "ViT-like", "GPT-2", "BERT"),
        lambda layer, _: nn.init.normal_(_matrix_of_biases(layer).bias, std=30.0),
    ),
    "logits multiplied": ("attention", ("decoder", "Llama", "GPT-2", "BERT"), _scaled_logits),
    "softmax over queries": (
        "attention", ("decoder",), lambda layer, _: setattr(layer.attention, "over", -2),
    ),
    "units that are 0": (
        "units", ("decoder", "nanoGPT-like", "ViT-like", "torch.nn, Pre-LN", "torch.nn, Post-LN", "BERT"), _dead,
    ),
}  # fmt: skip


def _no_mask(module: nn.Module, layers: list[nn.Module]) -> None:
    for layer in layers:
        for part in layer.modules():
            if hasattr(part, "causal"):
                part.causal = False


def _copied(module: nn.Module, layers: list[nn.Module]) -> None:
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())


def _loud_head(module: nn.Module, layers: list[nn.Module]) -> None:
    head = getattr(module, "head", None) or getattr(module, "words", None) or getattr(module, "lm_head", None)
    head.weight.data.normal_(std=3.0)


def _forgotten(module: nn.Module, layers: list[nn.Module]) -> None:
    for layer in layers:
        layer.spare = nn.Parameter(torch.ones(3, 3))


# Likewise of the whole.
GLOBAL: dict[str, tuple[str, tuple[str, ...], Callable[[nn.Module, list[nn.Module]], None]]] = {
    "no causal mask": ("leak", ("decoder", "nanoGPT-like"), _no_mask),
    "layers with the same numbers": ("copies", tuple(k for k in HEALTHY if "torch.nn" not in k), _copied),
    "logits of the output too large": ("loss", ("decoder", "nanoGPT-like", "ViT-like", "Llama"), _loud_head),
    "a parameter that nothing uses": ("no gradient", tuple(HEALTHY), _forgotten),
}


def made(family: str, width: int = 32, depth: int = 4, seed: int = 11) -> Single:
    torch.manual_seed(seed)
    return HEALTHY[family](width, depth)


def planted(family: str, fault: str, number: int, width: int, depth: int) -> Single:
    """A family's module with a fault, in the layer of that number (from 1) where it is local."""
    module, inputs, loss = HEALTHY[family](width, depth)
    layers = list(layer_lists(module, (), 0)[0].layers)
    with torch.no_grad():
        if fault in LOCAL:
            LOCAL[fault][2](layers[number - 1], width)
        else:
            GLOBAL[fault][2](module, layers)
    return module, inputs, loss
