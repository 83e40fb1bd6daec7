"""Random stacks from all fields of `Stack` at once, by a seed that is fixed beforehand."""

import json
from typing import Any

import numpy as np

from theory import Stack
from theory.stack.initializations import INITIALIZATIONS
from theory.stack.placements import COMPOSITIONS

# Root seeds: of stacks that the domain was looked at with, and of those that then tell how often it is wrong.
EXPLORED, CALIBRATED = (20_261, 20_262, 20_263), 20_264

# Probability that a field which relaxes the paper's setting is not at its default.
_RELAXED = 0.25

_CHOICES: dict[str, tuple[Any, ...]] = {
    "activation": ("gelu", "gelu_tanh", "silu", "tanh", "leaky_relu", "relu_squared", "identity"),
    "ffn": ("gated",),
    "ffn_ratio": (0.5, 2.0, 4.0),
    "initialization": ("fan_in", "he", "xavier_uniform", "pytorch"),
    "output_projection": ("random",),
    "normalization": ("rms", "rms", "none"),
    "mask": ("causal", "causal", "given"),
    "embedding_norm": ("added",),
    "positions": ("sinusoidal", "learned"),
    "embeddings": ("tied",),
    "labels": ("zipf",),
    "loss_on": ("last",),
    "sequences": (2, 3),
    "source_tokens": (1, 2, 4, 6),
}


def random_stack(generator: np.random.Generator) -> Stack:
    """One stack; fields that do not go together are drawn again, all of them.

    Widths are 256 to 2048, or 256 and 512 where entries are uniform, which only dense matrices can have; L = 1 to 6,
    n = 1 to 8, V = 2 to 256. Each field that relaxes the paper's setting does so with probability 1/4, and queries
    and keys are random with probability 1/2. A norm that has an epsilon needs none.
    """
    while True:
        try:
            return Stack(**_fields(generator))
        except ValueError:
            continue


def _fields(generator: np.random.Generator) -> dict[str, Any]:
    def relaxed(probability: float = _RELAXED) -> bool:
        return bool(generator.random() < probability)

    fields: dict[str, Any] = {name: _one_of(generator, some) for name, some in _CHOICES.items() if relaxed()}
    fields["placement"] = _one_of(generator, tuple(COMPOSITIONS))
    uniform = INITIALIZATIONS[fields.get("initialization", "fan_in")].uniform
    fields["width"] = _one_of(generator, (256, 512) if uniform else (256, 512, 1024, 2048))
    fields["depth"], fields["tokens"] = (int(one) for one in generator.integers(1, (7, 9)))
    fields["vocab"] = round(2 ** generator.uniform(1, 8))
    if relaxed():
        fields["output_scale"] = float(round(10 ** generator.uniform(-1, 1), 3))
    if relaxed():
        fields["norm_epsilon"] = float(round(10 ** generator.uniform(-3, 0), 4))
    for name, most in (("dropout", 0.5), ("attention_dropout", 0.3), ("label_smoothing", 1.0)):
        if relaxed():
            fields[name] = float(round(generator.uniform(0, most), 3))
    if relaxed(0.5):
        fields["query_key_scale"] = float(round(generator.uniform(0, 2.5), 2))
        fields["heads"] = int(2 ** generator.integers(0, 8))
        fields["query_key"] = "tied" if relaxed() else "untied"
        fields["attention_scale"] = "linear" if relaxed() else "sqrt"
    elif relaxed():
        fields["heads"] = int(2 ** generator.integers(0, 8))
    if fields.get("heads", 1) > 1 and relaxed():
        fields["kv_heads"] = int(2 ** generator.integers(0, int(np.log2(fields["heads"]))))
    return fields | _mask(generator, fields) | _inputs(generator, fields["tokens"])


def _mask(generator: np.random.Generator, fields: dict[str, Any]) -> dict[str, Any]:
    """A window of half of the causal masks, or the rows of a given one, in which each token sees one at least."""
    tokens = fields["tokens"]
    if fields.get("mask") == "causal" and generator.random() < 0.5:
        return {"window": int(generator.integers(1, tokens + 1))}
    if fields.get("mask") == "given":
        rows = (generator.random((tokens, tokens)) < 0.5).astype(int)
        rows[np.arange(tokens), generator.integers(tokens, size=tokens)] = 1
        return {"mask_rows": json.dumps(rows.tolist())}
    return {}


def _one_of(generator: np.random.Generator, some: tuple[Any, ...]) -> Any:
    return some[int(generator.integers(len(some)))]


def _inputs(generator: np.random.Generator, tokens: int) -> dict[str, Any]:
    """Correlated inputs, or a covariance of their own; for the most part neither."""
    kind = generator.random()
    if kind < _RELAXED / 2:
        least = -1 / (tokens - 1) if tokens > 1 else 0.0
        return {"input_correlation": float(round(generator.uniform(max(least, -0.5) + 1e-3, 0.9), 3))}
    if kind < _RELAXED:
        factor = generator.standard_normal((tokens, tokens + 2)) / np.sqrt(tokens + 2)
        return {"input_gram": json.dumps(np.round(factor @ factor.T, 6).tolist())}
    return {}


def random_stacks(seed: int, first: int, last: int) -> list[Stack]:
    """The stacks numbered `first` to `last` - 1, each with a generator of its own."""
    return [random_stack(np.random.default_rng([seed, number])) for number in range(first, last)]
