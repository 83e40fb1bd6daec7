"""Gradients of 64 sequences of 64 tokens in closed form, beside autograd of a plain module."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, silu

from tests.helpers.evidence_file import kept_case, record, rounded
from theory import Stack
from theory.first_step.noise_scale import noise_scale

pytestmark = pytest.mark.evidence

SEQUENCES, DRAWS, REPEATED = 64, 24, 8
BASE = {
    "width": 256, "depth": 4, "tokens": 64, "vocab": 4096, "heads": 4, "query_key_scale": 1.0, "mask": "causal",
    "placement": "pre", "output_projection": "random",
}  # fmt: skip
CASES = {
    "LayerNorm, GELU": {"activation": "gelu", "vocab": 512},
    "RMSNorm, SwiGLU": {"normalization": "rms", "activation": "silu", "ffn": "gated", "vocab": 512},
    "LayerNorm, GELU, tied": {
        "activation": "gelu", "embeddings": "tied", "output_scale": 0.5, "embedding_scale": 0.5, "positions": "learned",
    },
    "RMSNorm, SwiGLU, tied": {
        "normalization": "rms", "activation": "silu", "ffn": "gated", "embeddings": "tied", "output_scale": 0.5,
        "embedding_scale": 0.5,
    },
}  # fmt: skip


def squares(stack: Stack, seed: int, *, repeated: bool = False) -> dict[str, float]:
    """Squared gradients of one network by role; words of tied embeddings differ, or are drawn one by one."""
    generator = torch.Generator().manual_seed(seed)
    d, n, rows, h = stack.width, stack.tokens, SEQUENCES * stack.tokens, stack.heads
    roles: dict[str, list[torch.Tensor]] = {}

    def parameter(role: str, *shape: int, std: float) -> torch.Tensor:
        roles.setdefault(role, []).append((std * torch.randn(shape, generator=generator)).requires_grad_())
        return roles[role][-1]

    def matrix(role: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, parameter(role, d, d, std=d**-0.5))

    def norm(x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (d,), eps=0.0) if stack.normalization == "layer" else rms_norm(x, (d,), eps=0.0)

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(SEQUENCES, n, h, d // h).transpose(1, 2)

    embedding = parameter("Wemb", stack.vocab, d, std=stack.output_scale * d**-0.5)
    if stack.embeddings == "tied":
        draw = torch.randint(stack.vocab, (rows,), generator=generator)
        words = draw if repeated else torch.randperm(stack.vocab, generator=generator)[:rows]
        x = embedding[words] * (stack.embedding_scale * d**0.5 / stack.output_scale)
    else:
        x = stack.embedding_scale * torch.randn(rows, d, generator=generator)
    x = x.reshape(SEQUENCES, n, d)
    if stack.positions == "learned":
        x = x + stack.embedding_scale * torch.randn(n, d, generator=generator)
    for _ in range(stack.depth):
        y = norm(x)
        q, k, v = (heads(matrix(role, y)) for role in ("WQ", "WK", "WV"))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(SEQUENCES, n, d)
        x = x + matrix("WO", attended)
        y = norm(x)
        units = silu(matrix("WG", y)) * matrix("W1", y) if stack.ffn == "gated" else gelu(matrix("W1", y))
        x = x + matrix("W2", units)
    labels = torch.randint(stack.vocab, (rows,), generator=generator)
    cross_entropy(norm(x).reshape(rows, d) @ embedding.T, labels).backward()
    return {role: math.fsum(float(p.grad.square().sum()) for p in values) for role, values in roles.items()}


def compared(stack: Stack, draws: list[dict[str, float]], theory: dict[str, float]) -> dict[str, dict[str, float]]:
    """Measured over predicted, of every matrix and of the norm of all, with standard errors."""
    rows = {}
    for role in (*draws[0], "norm"):
        values = np.array([sum(draw.values()) if role == "norm" else draw[role] for draw in draws])
        expected = sum(theory.values()) if role == "norm" else theory[role]
        ratio, error = values.mean() / expected, values.std(ddof=1) / len(values) ** 0.5 / expected
        # A norm is the root of its square.
        rows[role] = {"ratio": float(ratio**0.5), "sem": float(error / ratio**0.5 / 2)}
    return rows


def case(name: str) -> dict[str, object]:
    stack = Stack(**BASE | CASES[name])
    tied = stack.embeddings == "tied"
    theory = noise_scale(stack, patterns=8 if tied else 32, grouped=tied, max_time=200.0)
    draws = [squares(stack, seed) for seed in range(DRAWS)]
    predicted = theory.squares(SEQUENCES)
    shared = sum(float(part.sum()) for part in theory.product.values()) / sum(predicted.values())
    found: dict[str, object] = {
        "norms": compared(stack, draws, predicted), "shared by two sequences": shared,
        "predicted norm": theory.norm(SEQUENCES)[0],
    }  # fmt: skip
    if tied:
        again = [squares(stack, seed, repeated=True) for seed in range(REPEATED)]
        found["norms with words that repeat"] = compared(stack, again, predicted)
    return found


def test_batches(kept_folder):
    """Norms of every matrix and of all within 5%, at standard errors of 1.5% at most, where words differ."""
    torch.set_num_threads(1)
    found = {name: kept_case(kept_folder, name, partial(case, name)) for name in CASES}
    record("batches", rounded({"sequences": SEQUENCES, "draws": DRAWS, "repeated": REPEATED, "networks": found}))
    for name, numbers in found.items():
        for role, row in numbers["norms"].items():
            assert row["sem"] <= 0.015, (name, role, row)
            assert abs(row["ratio"] - 1.0) < 0.05, (name, role, row)
