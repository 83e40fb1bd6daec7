"""Modules and optimizers in mu-P, in the standard parametrization and in CompleteP, and breaches to plant in them."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradbounds as gb

VOCAB, TOKENS, BATCH, HEADS, INPUTS = 32, 8, 4, 2, 16
# The width at which mu-P and the standard parametrization are one.
BASE = 32


class Attention(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        logits = q @ k.mT * self.scale
        logits = logits.masked_fill(torch.ones(logits.shape[-2:], device=x.device).triu(1).bool(), -1e9)
        return self.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, scale: float, branch: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, scale)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.branch, self.between = branch, 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch * self.attention(self.norm1(x))
        return x + self.branch * self.down(torch.relu(self.between * self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Pre-LN and causal; logits are multiplied by `readout`."""

    def __init__(self, width: int, depth: int, scale: float, readout: float, branch: float, *, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, width)
        self.positions = nn.Parameter(torch.randn(TOKENS, width))
        self.layers = nn.ModuleList(Layer(width, scale, branch) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        self.readout = readout
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)) * self.readout


class Perceptron(nn.Module):
    """Without norms or residual connections: input, hidden layers, output."""

    def __init__(self, width: int, depth: int, readout: float) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head, self.readout = nn.Linear(width, VOCAB), readout

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.head(self.readout * x)


def of_words(module: nn.Module):
    def batch(seed):
        words, labels = torch.randint(VOCAB, (BATCH, TOKENS)), torch.randint(VOCAB, (BATCH * TOKENS,))
        return words, lambda y: functional.cross_entropy(y.flatten(0, 1), labels.to(y.device))

    return module, batch


def of_vectors(module: nn.Module):
    def batch(seed):
        labels = torch.randint(VOCAB, (BATCH * TOKENS,))
        return torch.randn(BATCH * TOKENS, INPUTS), lambda y: functional.cross_entropy(y, labels.to(y.device))

    return module, batch


def drawn(module: nn.Module, readout_std: float | None = None) -> nn.Module:
    """Entries of variance 1/fan-in for matrices, 1 for embeddings, 0 for biases."""
    for name, weight in module.named_parameters():
        if weight.ndim == 2 and not name.startswith(("words", "positions")):
            std = weight.shape[1] ** -0.5
            nn.init.normal_(weight, std=std if readout_std is None or not name.startswith("head") else readout_std)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
    return module


# In mu-P by Adam rates of hidden matrices are 1/width, output multipliers 1/width and attention has 1/d_k.
RULES = ("sp", "mup")


def transformer(width, depth, rule="mup", breach=""):
    size = width // HEADS
    mup = rule != "sp"
    scale = BASE**0.5 / size if mup and breach != "root of d_k" else size**-0.5
    tied = breach.startswith("tied")
    readout = BASE / width if mup and breach not in ("no output multiplier", "tied, no multiplier") else 1.0
    branch = 1 / depth if rule == "completep" else 1.0
    if breach in ("branches over the root of depth", "no branch multiplier"):
        branch = depth**-0.5 if "root" in breach else 1.0
    module = drawn(Transformer(width, depth, scale, readout, branch, tied=tied), BASE**-0.5 if mup else None)
    with torch.no_grad():
        if tied:
            nn.init.normal_(module.words.weight)
        if breach == "initial scale too large":
            module.layers[0].up.weight.mul_((width / BASE) ** 0.5)
        if breach == "initial scale too small":
            module.layers[0].attention.value.weight.mul_((width / BASE) ** -0.5)
        if breach == "hidden multiplier":
            module.layers[-1].between = (width / BASE) ** 0.5
        if breach == "embeddings too small":
            module.words.weight.mul_((width / BASE) ** -0.5)
            module.positions.mul_((width / BASE) ** -0.5)
    return of_words(module)


def perceptron(width, depth, rule="mup", breach=""):
    mup = rule != "sp"
    readout = BASE / width if mup and breach != "no output multiplier" else 1.0
    module = drawn(Perceptron(width, depth, readout), BASE**-0.5 if mup else None)
    with torch.no_grad():
        if breach == "initial scale too large":
            module.hidden[-1].weight.mul_((width / BASE) ** 0.5)
        if breach == "initial scale too small":
            module.hidden[-1].weight.mul_((width / BASE) ** -0.5)
    return of_vectors(module)


RATE = 1e-3


def adam(module, width, rule="mup", breach="", rate=RATE):
    groups = []
    for name, weight in module.named_parameters():
        hidden = weight.ndim == 2 and not name.startswith(("words", "positions", "first", "head"))
        times = BASE / width if hidden and rule != "sp" else 1.0
        if breach == "rate of hidden matrices" and hidden:
            times = 1.0
        if breach == "rate of one matrix" and name in ("layers.0.down.weight", "hidden.0.weight"):
            times = 1.0
        if breach == "rate of embeddings" and name.startswith(("words", "positions", "first")):
            times = BASE / width
        if breach == "rate of gains" and name == "norm.weight":
            times = BASE / width
        groups.append({"params": [weight], "lr": rate * times})
    return torch.optim.Adam(groups, lr=rate, eps=1e-2 if breach == "epsilon" else 1e-12)


def sgd(module, width, rule="mup", breach="", rate=0.1):
    """SGD: in mu-P with an output multiplier of 1/width rates of all but hidden matrices grow like the width."""
    groups = []
    for name, weight in module.named_parameters():
        hidden = weight.ndim == 2 and not name.startswith(("words", "positions", "first", "head"))
        times = width / BASE if rule != "sp" and not hidden and name != "head.bias" else 1.0
        if breach == "rate of one matrix" and name == "hidden.0.weight":
            times = width / BASE
        groups.append({"params": [weight], "lr": rate * times})
    return torch.optim.SGD(groups, lr=rate)


# Factory, optimizer and parametrization.
HEALTHY = {
    "Transformer, Adam, mu-P": (transformer, adam, "mup"),
    "Transformer, Adam, standard": (transformer, adam, "sp"),
    "Transformer, SGD, standard": (transformer, sgd, "sp"),
    "Transformer, Adam, CompleteP": (transformer, adam, "completep"),
    "perceptron, Adam, mu-P": (perceptron, adam, "mup"),
    "perceptron, SGD, mu-P": (perceptron, sgd, "mup"),
    "perceptron, Adam, standard": (perceptron, adam, "sp"),
}

# Of the Transformer in mu-P: the kind of the alarm, and a name that it has among its causes.
BREACHES = {
    "rate of hidden matrices": ("learning rate", "layers.0.down.weight"),
    "rate of one matrix": ("learning rate", "layers.0.down.weight"),
    "rate of embeddings": ("learning rate", "words.weight"),
    "rate of gains": ("learning rate", "norm.weight"),
    "initial scale too large": ("initial scale", "layers.0.up.weight"),
    "initial scale too small": ("initial scale", "layers.0.attention.value.weight"),
    "embeddings too small": ("initial scale", "words.weight"),
    "hidden multiplier": ("multiplier", "layers.1.up.weight"),
    "no output multiplier": ("multiplier", "head.weight"),
    "tied, no multiplier": ("tied readout", "words.weight"),
    "root of d_k": ("attention", "layers.0.attention"),
    "epsilon": ("epsilon", "layers.0.attention.query.weight"),
}

# Of the Transformer in CompleteP.
OF_DEPTH = {
    "no branch multiplier": ("multiplier", "layers.*"),
    "branches over the root of depth": ("multiplier", "layers.*.attention.out"),
}


# How many times what a breach breaks is off at the largest size of `check` beside the least; others are no factor.
FACTORS = {
    "rate of hidden matrices": 4, "rate of one matrix": 4, "rate of embeddings": 4, "rate of gains": 4,
    "initial scale too large": 2, "initial scale too small": 2, "embeddings too small": 2, "hidden multiplier": 2,
    "no output multiplier": 4, "tied, no multiplier": 4, "root of d_k": 2, "no branch multiplier": 4,
    "branches over the root of depth": 2,
}  # fmt: skip


def check(factory, optimizer, rule, breach="", *, seed=0, seeds=4, steps=2, widths=None, device="cpu"):
    """The report at small sizes: three widths, or three depths of CompleteP."""
    depths, usual = ([2, 4, 8], [64]) if rule == "completep" else ([2], [32, 64, 128])
    return gb.probe(
        partial(factory, rule=rule, breach=breach),
        optimizer=lambda module, width: optimizer(module, width, rule, breach),
        parametrization=rule, widths=widths or usual, depths=depths, steps=steps, seeds=seeds, seed=seed, device=device,
    )  # fmt: skip
