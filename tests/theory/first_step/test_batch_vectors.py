"""Biases, norms' gains and tables of inputs of a batch, beside autograd of a plain module."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, layer_norm, linear, relu

from theory import Stack
from theory.first_step.noise_scale import noise_scale

SEQUENCES, DRAWS = 3, 100
BASE = {"width": 192, "depth": 2, "tokens": 4, "vocab": 32, "placement": "pre", "output_projection": "random"}


def squares(stack: Stack, seed: int) -> dict[str, float]:
    """Squared gradients of one network by kind: causal, with norms before or after branches, and uniform attention."""
    generator = torch.Generator().manual_seed(seed)
    d, n, rows = stack.width, stack.tokens, SEQUENCES * stack.tokens
    found: dict[str, list[torch.Tensor]] = {}

    def parameter(name: str, *shape: int, std: float = 0.0, mean: float = 0.0) -> torch.Tensor:
        value = (std * torch.randn(shape, generator=generator) + mean).requires_grad_()
        found.setdefault(name, []).append(value)
        return value

    def norm(x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (d,), parameter("gain", d, mean=1.0), parameter("shift", d), 0.0)

    def matrix(role: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, parameter(role, d, d, std=d**-0.5), parameter(f"bias_{role}", d))

    embedding = parameter("Wemb", stack.vocab, d, std=stack.output_scale * d**-0.5)
    if stack.embeddings == "tied":
        inputs = embedding[:rows] * (stack.embedding_scale / (stack.output_scale * d**-0.5))
    else:
        inputs = parameter("inputs", rows, d, std=stack.embedding_scale)
    x = inputs.reshape(SEQUENCES, n, d)
    if stack.positions == "learned":
        x = x + parameter("positions", n, d, std=stack.embedding_scale)
    seen = torch.tril(torch.ones(n, n))
    seen = seen / seen.sum(-1, keepdim=True)
    before, after = (norm, torch.clone) if stack.placement == "pre" else (torch.clone, norm)
    for _ in range(stack.depth):
        x = x + after(matrix("WO", seen @ matrix("WV", before(x))))
        x = x + after(matrix("W2", relu(matrix("W1", before(x)))))
    labels = torch.randint(stack.vocab, (rows,), generator=generator)
    cross_entropy(norm(x).reshape(rows, d) @ embedding.T, labels).backward()
    return {name: sum(float(p.grad.square().sum()) for p in values) for name, values in found.items()}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"placement": "output"},
        {"positions": "learned"},
        {"embeddings": "tied", "embedding_scale": 0.3, "output_scale": 0.5},
    ],
)
def test_every_vector_of_a_plain_module(fields):
    """Within 4 standard errors and 4% of large width: a false alarm once in some 10^3 runs."""
    stack = Stack(**BASE | {"mask": "causal"} | fields)
    theory = noise_scale(stack, patterns=64)
    draws = [squares(stack, seed) for seed in range(DRAWS)]
    expected = {role: float(value.sum()) for role, value in theory.grad_sq(SEQUENCES).items()}
    for name, (single, product) in theory.vectors.items():
        expected[name] = float(np.sum(product + (single - product) / SEQUENCES))
    assert expected.keys() >= draws[0].keys()
    for name in draws[0]:
        values = np.array([draw[name] for draw in draws])
        error = values.std(ddof=1) / DRAWS**0.5
        assert abs(values.mean() - expected[name]) < 4 * error + 0.04 * expected[name], (name, values.mean(), expected)
        assert error < 0.05 * expected[name], name
    parts = theory.squares(SEQUENCES, [name for name in draws[0] if name != "Wemb"])
    assert parts == pytest.approx({name: expected[name] for name in parts})
    root, error = theory.norm(SEQUENCES, list(theory.vectors))
    assert root**2 == pytest.approx(sum(expected.values()))
    assert (error > 0) == (stack.embeddings == "tied")
