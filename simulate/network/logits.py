"""Compute attention logits from queries and keys, with heads that may share keys."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from theory.stack import Stack


def attention_logits(
    stack: Stack, queries: Float[Tensor, "draws rows width"], keys: Float[Tensor, "draws others shared"]
) -> Float[Tensor, "batch heads tokens asked"]:
    """Return the attention logits before the mask, for every sequence of every random network.

    Args:
        stack: the network.
        queries: queries of all heads, one head after another.
        keys: keys of the attended tokens, in the same form.
    """
    if stack.query_key_norm == "all":
        queries, keys = _normed(stack, queries), _normed(stack, keys)
    q, k = (of_heads(stack, rows) for rows in (queries, keys))
    if stack.query_key_norm == "head":
        q, k = _normed(stack, q), _normed(stack, k)
    if stack.rotary:
        q, k = _rotated(stack, q), _rotated(stack, k)
    scale = stack.logit_factor * q.shape[-1] ** (-0.5 if stack.attention_scale == "sqrt" else -1.0)
    logits = scale * (q @ of_every_head(stack, k).mT)
    return stack.logit_softcap * (logits / stack.logit_softcap).tanh() if stack.logit_softcap else logits


def of_heads(
    stack: Stack, rows: Float[Tensor, "draws rows columns"]
) -> Float[Tensor, "batch heads tokens coordinates"]:
    """Split the rows of all sequences into sequences and attention heads.

    There are as many heads as there are columns for.
    """
    split = rows.unflatten(-1, (-1, stack.key_width)).unflatten(1, (stack.sequences, -1))
    return split.flatten(0, 1).transpose(1, 2)


def of_every_head(
    stack: Stack, shared: Float[Tensor, "batch groups tokens coordinates"]
) -> Float[Tensor, "batch heads tokens coordinates"]:
    """Repeat keys or values that groups of neighbouring heads share, so that every head has its own."""
    return shared if stack.key_heads == stack.heads else shared.repeat_interleave(stack.heads // stack.key_heads, 1)


def _normed(stack: Stack, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    return F.rms_norm(x, x.shape[-1:], eps=stack.norm_epsilon)


def _rotated(
    stack: Stack, rows: Float[Tensor, "batch heads tokens width"]
) -> Float[Tensor, "batch heads tokens width"]:
    """Rotate pairs (f, f + r/2) of a head's first r coordinates by their token's position times base^(-2 f/r)."""
    half = stack.rotary_width // 2
    steps = torch.arange(half, device=rows.device, dtype=torch.float64) / half
    angles = torch.arange(stack.tokens, device=rows.device, dtype=torch.float64)[:, None] * stack.rotary_base**-steps
    cos, sin = angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)
    first, second, rest = rows.split([half, half, rows.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
