"""The masked language model against its definition in plain products, in both placements, and its initialization."""

import math
from dataclasses import replace

import pytest
import torch

from studies.bert.model import MaskedLanguageModel, MaskedModel, masked_loss
from studies.bert.text import MASK, PADDING, WORDS

SMALL = MaskedModel(width=12, depth=2, heads=3, ffn_width=20, vocab=30, length=9, dropout=0.0)


def norm(module, x):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-12).sqrt() * module.weight + module.bias


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attention(module, heads, x, seen):
    q, k, v = (x @ w.T + b for w, b in zip(module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True))
    out, size = [], x.shape[-1] // heads
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        logits = q[:, own] @ k[:, own].T / math.sqrt(size)
        out.append(logits.masked_fill(~seen, -math.inf).softmax(-1) @ v[:, own])
    return torch.cat(out, -1) @ module.out_proj.weight.T + module.out_proj.bias


def by_hand(model, ids, places):
    """One window at a time."""
    rows = []
    for window in ids:
        x = norm(model.embedding_norm, model.words.weight[window] + model.positions.weight[: len(window)])
        for layer in model.layers:
            blocks = [
                (layer.norm1, lambda y, a=layer.self_attn, w=window: attention(a, 3, y, w != PADDING)),
                (layer.norm2, lambda y, f=layer: f.linear2(gelu(f.linear1(y)))),
            ]
            for normed, branch in blocks:
                pre = model.model.placement == "pre"
                x = x + branch(norm(normed, x)) if pre else norm(normed, x + branch(x))
        rows.append(norm(model.final_norm, x) if model.model.placement == "pre" else x)
    guessed = torch.cat(rows)[places]
    return norm(model.head_norm, gelu(model.dense(guessed))) @ model.words.weight.T + model.bias


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_model_is_its_definition(placement):
    """Logits, and the gradient of every parameter, in float64 to rounding."""
    torch.manual_seed(0)
    model = MaskedLanguageModel(replace(SMALL, placement=placement)).double()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases that count
            parameter += 0.3 * torch.randn_like(parameter)
    ids = torch.randint(WORDS, 30, (3, 9))
    ids[0, 2], ids[1, 7:] = MASK, PADDING
    places, labels = torch.tensor([2, 4, 10, 20]), torch.tensor([7, 8, 9, 5])
    gradients = []
    for logits in (model(ids, places), by_hand(model, ids, places)):
        loss = -logits.log_softmax(-1)[torch.arange(4), labels].mean()
        gradients.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(masked_loss(model(ids, places), labels), gradients[1][0], rtol=1e-12, atol=0)


def test_placements_share_their_draws_and_their_spread():
    """0.02 at d = 768, and the same times √d elsewhere; the first loss is that of logits of no size."""
    drawn = []
    for placement in ("post", "pre"):
        torch.manual_seed(0)
        drawn.append(dict(MaskedLanguageModel(replace(SMALL, placement=placement, width=192)).named_parameters()))
    assert set(drawn[1]) - set(drawn[0]) == {"final_norm.weight", "final_norm.bias"}
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    assert drawn[0]["layers.0.linear1.weight"].std().item() == pytest.approx(0.04, rel=0.1)
