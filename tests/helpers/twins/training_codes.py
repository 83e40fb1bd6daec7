"""Matrices of decoders as training codes draw them, in plain torch, by the rule's own words.

Nothing of theory or of the sampler is used. Matrices are (d_out, d_in), as torch's modules hold them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Of a small decoder; heads share nothing."""

    width: int
    depth: int
    hidden: int
    heads: int
    vocab: int


# By role, one of each layer; `words` and `head` alone.
Weights = dict[str, list[Tensor]]


def _empty(sizes: Sizes, *, gated: bool) -> Weights:
    d, f = sizes.width, sizes.hidden
    shapes = {role: (d, d) for role in ("WQ", "WK", "WV", "WO")} | {"W1": (f, d), "W2": (d, f)}
    shapes |= {"WG": (f, d)} if gated else {}
    layers = {role: [torch.empty(shape) for _ in range(sizes.depth)] for role, shape in shapes.items()}
    return layers | {name: [torch.empty(sizes.vocab, d)] for name in ("words", "head")}


def neox(sizes: Sizes) -> Weights:
    """`small_init` for what reads the stream, words and logits; `wang_init` for what writes to it."""
    weights = _empty(sizes, gated=False)
    for role, matrices in weights.items():
        for matrix in matrices:
            if role in ("WO", "W2"):
                nn.init.normal_(matrix, mean=0.0, std=2 / sizes.depth / math.sqrt(sizes.width))
            else:
                nn.init.normal_(matrix, mean=0.0, std=math.sqrt(2 / (5 * sizes.width)))
    return weights


def torchtitan(sizes: Sizes) -> Weights:
    """Llama 3's: wo, w2 and w3 by the layer, words N(0, 1), and an output cut at three deviations."""
    weights = _empty(sizes, gated=True)
    for layer_id in range(sizes.depth):
        for role in ("WQ", "WK", "WV", "WG"):  # w1 is the gate
            nn.init.trunc_normal_(weights[role][layer_id], std=0.02)
        for role in ("WO", "W2", "W1"):  # w3 is what the gate multiplies
            nn.init.trunc_normal_(weights[role][layer_id], std=0.02 / (2 * (layer_id + 1)) ** 0.5)
    nn.init.normal_(weights["words"][0])
    final = sizes.width**-0.5
    nn.init.trunc_normal_(weights["head"][0], mean=0.0, std=final, a=-3 * final, b=3 * final)
    return weights


def olmo2(sizes: Sizes) -> Weights:
    """`init_fn: normal`, `init_std: 0.02` and `init_cutoff_factor: 3` of everything."""
    weights = _empty(sizes, gated=True)
    for matrices in weights.values():
        for matrix in matrices:
            nn.init.trunc_normal_(matrix, mean=0.0, std=0.02, a=-0.06, b=0.06)
    return weights


def olmo(sizes: Sizes) -> Weights:
    """`init_fn: mitchell`: attn_out by the width and the layer, ff_out by its inputs and the layer."""
    weights = _empty(sizes, gated=True)

    def init_normal(matrix: Tensor, std: float) -> None:
        nn.init.trunc_normal_(matrix, mean=0.0, std=std, a=-3.0 * std, b=3.0 * std)

    for role, matrices in weights.items():
        for layer_id, matrix in enumerate(matrices):
            if role == "WO":
                init_normal(matrix, 1 / (math.sqrt(2 * sizes.width * (layer_id + 1))))
            elif role == "W2":
                init_normal(matrix, 1 / (math.sqrt(2 * matrix.shape[1] * (layer_id + 1))))
            else:
                init_normal(matrix, 1 / math.sqrt(sizes.width))
    return weights


def _by_depth(sizes: Sizes, *, gated: bool) -> Weights:
    """Draw with standard deviation 0.02, divided by sqrt(2 L) for matrices that write to the stream.

    Megatron-LM's `init_method_normal` and `scaled_init_method_normal`, and nanoGPT's names that end with c_proj.weight.
    """
    weights = _empty(sizes, gated=gated)
    for role, matrices in weights.items():
        for matrix in matrices:
            c_proj = role in ("WO", "W2")
            nn.init.normal_(matrix, mean=0.0, std=0.02 / math.sqrt(2.0 * sizes.depth) if c_proj else 0.02)
    return weights


def _mup(sizes: Sizes, base_width: int, projections: float) -> Weights:
    """Hidden matrices by the width over the base's, those that write to the stream by a factor besides; others plain.

    The plain units' names are the code's; a gate is drawn like c_fc.
    """
    weights, mup_width_multiplier = _empty(sizes, gated=True), sizes.width / base_width
    for role, matrices in weights.items():
        for matrix in matrices:
            if role in ("words", "head"):
                nn.init.normal_(matrix, mean=0.0, std=0.02)
            else:
                c_proj = role in ("WO", "W2")
                factor = projections if c_proj else 1.0
                nn.init.normal_(matrix, mean=0.0, std=0.02 / math.sqrt(factor * mup_width_multiplier))
    return weights


def mup(sizes: Sizes) -> Weights:
    """nanoGPT-mup's, of the base width 64."""
    return _mup(sizes, 64, 2 * sizes.depth)


def completep(sizes: Sizes) -> Weights:
    """The same without the depth, which multiplies branches there; of the base width 64."""
    return _mup(sizes, 64, 1.0)


def nanochat(sizes: Sizes) -> Weights:
    """`init_weights`: uniform matrices of the deviation 1/sqrt(d), c_fc's 0.4 times that, and projections of zeros."""
    weights, s = _empty(sizes, gated=False), 3**0.5 * sizes.width**-0.5
    nn.init.normal_(weights["words"][0], mean=0.0, std=0.8)
    nn.init.normal_(weights["head"][0], mean=0.0, std=0.001)
    for layer in range(sizes.depth):
        for role in ("WQ", "WK", "WV"):
            nn.init.uniform_(weights[role][layer], -s, s)
        nn.init.uniform_(weights["W1"][layer], -s * 0.4, s * 0.4)
        for role in ("WO", "W2"):
            nn.init.zeros_(weights[role][layer])
    return weights


# By the name that `drawn_by` takes.
DRAWN: dict[str, Callable[[Sizes], Weights]] = {
    "neox": neox, "torchtitan": torchtitan, "olmo2": olmo2, "olmo": olmo, "megatron": partial(_by_depth, gated=True),
    "nanogpt": partial(_by_depth, gated=False), "nanochat": nanochat, "mup:64": mup, "completep:64:2": completep,
}  # fmt: skip
