"""Batches of random text by its law, beside networks that are given texts of it."""

import hashlib
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, silu

from simulate import sample
from simulate.text import TextWindows
from tests.helpers.evidence_file import kept_case, record
from theory import Stack
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import TextLaw

pytestmark = pytest.mark.evidence

USUAL: dict[str, Any] = {
    "depth": 4, "tokens": 64, "vocab": 512, "width": 256, "heads": 8, "mask": "causal", "placement": "pre",
    "output_projection": "random", "query_key_scale": 1.0, "sequences": 16,
}  # fmt: skip
NETWORKS = {
    "LayerNorm, GELU": USUAL | {"activation": "gelu", "ffn_ratio": 4.0},
    "RMSNorm, SwiGLU": USUAL | {"normalization": "rms", "ffn": "gated", "activation": "silu", "ffn_ratio": 2.0},
}
DRAWS = 60


def beside_networks(fields: dict[str, Any]) -> dict[str, Any]:
    """Norms of gradients, of all matrices and of each over its layers, over those of networks, and standard errors."""
    stack, law = Stack(**fields), TextLaw.zipf(1.0, fields["vocab"])
    ids = law.windows(stack.sequences * DRAWS, stack.tokens, np.random.default_rng(5))
    text = TextWindows(ids=ids, digest=hashlib.sha256(ids.tobytes()).hexdigest(), source="Zipf's law")
    samples = sample(stack, draws=DRAWS, seed=12, text=text)
    squares = noise_scale(stack, text=law, patterns=16).grad_sq(stack.sequences)
    sampled = {role: np.asarray(samples[f"grad_sq_{role}"], dtype=float).reshape(DRAWS, -1).sum(1) for role in squares}
    found = {}
    for role, square in ({"all": sum(value.sum() for value in squares.values())} | squares).items():
        values = sum(sampled.values()) if role == "all" else sampled[role]
        over = float((np.sum(square) / values.mean()) ** 0.5)
        error = values.std(ddof=1) / DRAWS**0.5 / values.mean() / 2
        found[role] = {"over networks": round(over - 1, 4), "standard error": round(float(error), 4)}
    return found


def test_batches_of_text_beside_networks(kept_folder):
    """Norms are within 5%, of all and of every matrix; of single matrices that is expected to fail."""
    found = {name: kept_case(kept_folder, name, partial(beside_networks, fields)) for name, fields in NETWORKS.items()}
    record("text-law", {"draws": DRAWS, "sequences": USUAL["sequences"], "norms": found})
    for name, of_roles in found.items():
        assert of_roles["all"]["standard error"] < 0.015, name
        assert abs(of_roles["all"]["over networks"]) < 0.05, name
    if beyond := [
        (name, role) for name, row in found.items() for role, one in row.items() if abs(one["over networks"]) >= 0.05
    ]:
        pytest.xfail(f"not within 5% are {beyond} (docs/first_step.md)")


# As GPT-2's and Llama's classes draw them: N(0, 0.02), W^O and W^2 of GPT-2 by √(2L) smaller.
TIED: dict[str, Any] = {
    "depth": 4, "tokens": 64, "vocab": 512, "width": 256, "heads": 4, "mask": "causal", "placement": "pre",
    "output_projection": "random", "query_key_scale": 0.32, "embeddings": "tied", "embedding_scale": 0.02,
    "output_scale": 0.32, "init_std": 0.02,
}  # fmt: skip
TIED_NETWORKS = {
    "GPT-2": TIED | {"activation": "gelu", "ffn_ratio": 4.0, "positions": "learned", "depth_scaling": "depth"},
    "Llama": TIED | {"normalization": "rms", "ffn": "gated", "activation": "silu", "ffn_ratio": 2.0},
}
BATCHES = {16: 48, 64: 44}


def squares(stack: Stack, law: TextLaw, sequences: int, seed: int) -> dict[str, float]:
    """Squared gradients of one plain module by role, on texts of its own."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    d, n, units = stack.width, stack.tokens, round(stack.ffn_ratio * stack.width)
    std = 0.02
    last = std / (2 * stack.depth) ** 0.5 if stack.depth_scaling == "depth" else std
    found: dict[str, list[torch.Tensor]] = {}

    def parameter(role: str, *shape: int, std: float = std) -> torch.Tensor:
        value = (std * torch.randn(shape, generator=generator)).requires_grad_()
        found.setdefault(role, []).append(value)
        return value

    def norm(x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (d,), eps=0.0) if stack.normalization == "layer" else rms_norm(x, (d,), eps=0.0)

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(sequences, n, stack.heads, d // stack.heads).transpose(1, 2)

    text = torch.from_numpy(law.windows(sequences, n, np.random.default_rng(seed)))
    embedding = parameter("Wemb", stack.vocab, d)
    x = embedding[text[:, :-1]]
    if stack.positions == "learned":
        x = x + parameter("positions", n, d)
    for _ in range(stack.depth):
        y = norm(x)
        q, k, v = (heads(linear(y, parameter(role, d, d))) for role in ("WQ", "WK", "WV"))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + linear(attended, parameter("WO", d, d, std=last))
        y = norm(x)
        if stack.ffn == "gated":
            inner = silu(linear(y, parameter("WG", units, d))) * linear(y, parameter("W1", units, d))
        else:
            inner = gelu(linear(y, parameter("W1", units, d)))
        x = x + linear(inner, parameter("W2", d, units, std=last))
    loss = cross_entropy((norm(x) @ embedding.T).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    every = {role: math.fsum(float(p.grad.square().sum()) for p in values) for role, values in found.items()}
    return every | {"loss": float(loss.detach())}


def beside_tied_networks(fields: dict[str, Any]) -> dict[str, Any]:
    """The same of plain modules with tied embeddings, by the size of a batch; and the mean of losses less theory's."""
    stack, law = Stack(**fields), TextLaw.zipf(1.0, fields["vocab"])
    scale, found = noise_scale(stack, text=law, patterns=8), {}
    for sequences, draws in BATCHES.items():
        each = [squares(stack, law, sequences, seed) for seed in range(draws)]
        expected = scale.squares(sequences, ["positions"])
        rows = found[f"{sequences} sequences"] = {}
        losses = np.array([draw.pop("loss") for draw in each])
        for role in ("all", *each[0]):
            values = np.array([sum(draw.values()) if role == "all" else draw[role] for draw in each])
            over = ((sum(expected.values()) if role == "all" else expected[role]) / values.mean()) ** 0.5
            error = values.std(ddof=1) / draws**0.5 / values.mean() / 2
            rows[role] = {"over networks": round(float(over) - 1, 4), "standard error": round(float(error), 4)}
        error = float(losses.std(ddof=1) / draws**0.5)
        rows["loss"] = {"theory": round(scale.loss, 4), "networks": round(float(losses.mean()), 4),
                        "standard error": round(error, 4)}  # fmt: skip
    return found


def test_tied_batches_of_text_beside_networks(kept_folder):
    """Norms are within 5%, of all and of every matrix, at errors of 1.5%; where single ones are not, it is expected."""
    found = {
        name: kept_case(kept_folder, name, partial(beside_tied_networks, fields))
        for name, fields in TIED_NETWORKS.items()
    }
    record("tied-text-law", {"draws": BATCHES, "norms": found})
    rows = [(name, batch, each) for name, of_batches in found.items() for batch, each in of_batches.items()]
    for name, batch, each in rows:
        assert each["all"]["standard error"] < 0.015, (name, batch)
        assert abs(each["all"]["over networks"]) < 0.05, (name, batch)
        loss = each["loss"]
        assert abs(loss["theory"] - loss["networks"]) < 4 * loss["standard error"], (name, batch)
    if beyond := [
        (name, batch, role) for name, batch, each in rows for role, one in each.items()
        if role != "loss" and abs(one["over networks"]) >= 0.05
    ]:  # fmt: skip
        pytest.xfail(f"not within 5% are {beyond} (docs/first_step.md)")
