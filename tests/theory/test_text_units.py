"""What words have in common by chance: beside networks that are given all texts of a law at once."""

import numpy as np
import torch
from torch.nn.functional import linear, rms_norm, silu

from gradbounds import Stack, TextLaw, noise_scale

DRAWS = 250
NARROW = Stack(
    width=48, depth=1, tokens=2, vocab=256, placement="pre", branches="feed_forward", normalization="rms", ffn="gated",
    activation="silu", ffn_ratio=2.0, init_std=48**-0.5,
)  # fmt: skip
LAW = TextLaw.zipf(1.0, NARROW.vocab)


def shared(stack: Stack, seed: int) -> dict[str, np.ndarray]:
    """|E g|² of one network over all words and labels of the law, by role and layer: what two sequences share."""
    generator, d = torch.Generator().manual_seed(seed), stack.width
    units, found = round(stack.ffn_ratio * d), {}

    def parameter(role: str, *shape: int) -> torch.Tensor:
        value = (torch.randn(shape, generator=generator) * d**-0.5).requires_grad_()
        found.setdefault(role, []).append(value)
        return value

    frequencies = torch.tensor(LAW.frequencies, dtype=torch.float32)
    x = torch.randn((stack.vocab, d), generator=generator)
    for _ in range(stack.depth):
        y = rms_norm(x, (d,), eps=0.0)
        inner = silu(linear(y, parameter("WG", units, d))) * linear(y, parameter("W1", units, d))
        x = x + linear(inner, parameter("W2", d, units))
    logits = linear(rms_norm(x, (d,), eps=0.0), parameter("Wemb", stack.vocab, d))
    (-frequencies @ logits.log_softmax(-1) @ frequencies).backward()
    return {role: np.array([float(one.grad.square().sum()) for one in values]) for role, values in found.items()}


def test_what_sequences_share():
    """C of every matrix within 4 standard errors and 3% at d = 48, κ = 0.04."""
    draws = [shared(NARROW, seed) for seed in range(DRAWS)]
    theory = noise_scale(NARROW, text=LAW).product
    for role in draws[0]:
        values = np.stack([draw[role] for draw in draws])
        mean, error = values.mean(0), values.std(0, ddof=1) / DRAWS**0.5
        assert (error < 0.04 * mean).all(), (role, error / mean)
        off = abs(np.atleast_1d(theory[role]) - mean)
        assert (off <= 4 * error + 0.03 * mean).all(), (role, theory[role] / mean, error / mean)
