"""Decoders as training codes have them, in plain torch: drawn by the rule's own words, and run a token row at a time.

Nothing of theory or of the sampler is used. Matrices are (d_out, d_in), as torch's modules hold them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
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


def megatron(sizes: Sizes) -> Weights:
    """`init_method_normal(0.02)`, and `scaled_init_method_normal` for what writes to the stream."""
    weights = _empty(sizes, gated=True)
    for role, matrices in weights.items():
        for matrix in matrices:
            scaled = role in ("WO", "W2")
            nn.init.normal_(matrix, mean=0.0, std=0.02 / math.sqrt(2.0 * sizes.depth) if scaled else 0.02)
    return weights


def nanogpt(sizes: Sizes) -> Weights:
    """Everything of 0.02, and the parameters whose name ends with c_proj.weight over sqrt(2 L)."""
    weights = _empty(sizes, gated=False)
    for role, matrices in weights.items():
        for matrix in matrices:
            c_proj = role in ("WO", "W2")
            nn.init.normal_(matrix, mean=0.0, std=0.02 / math.sqrt(2 * sizes.depth) if c_proj else 0.02)
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
    "neox": neox, "torchtitan": torchtitan, "olmo2": olmo2, "olmo": olmo, "megatron": megatron, "nanogpt": nanogpt,
    "nanochat": nanochat, "mup:64": mup, "completep:64:2": completep,
}  # fmt: skip


def _rotated(x: Tensor, share: float, base: float) -> Tensor:
    """The first `share` of a head's coordinates turned by position, halves against halves; x is (heads, n, d_k)."""
    turned = int(share * x.shape[-1])
    rest, x = x[..., turned:], x[..., :turned]
    frequencies = base ** (-torch.arange(0, turned, 2) / turned)
    angles = torch.arange(x.shape[-2])[:, None] * frequencies
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    first, second = x.chunk(2, -1)
    return torch.cat([x * cos + torch.cat([-second, first], -1) * sin, rest], -1)


@dataclass(frozen=True)
class Architecture:
    """What is done with the weights.

    Attributes:
        parallel: whether both branches read the same tokens (GPT-NeoX).
        rms: whether norms are RMSNorm.
        after: whether they stand behind the branches, and on queries and keys (OLMo 2).
        rotary: share of a head's coordinates that turn, with `base`.
        epsilon: of every norm.
        attention_scale: power of d_k by which attention's logits are multiplied.
        branches: factor on what every branch adds.
        logits: factor on what the output matrix is given.
    """

    parallel: bool = False
    rms: bool = True
    after: bool = False
    rotary: float = 1.0
    base: float = 10_000.0
    epsilon: float = 1e-5
    attention_scale: float = -0.5
    branches: float = 1.0
    logits: float = 1.0

    def norm(self, x: Tensor) -> Tensor:
        whole = x.shape[-1:]
        return F.rms_norm(x, whole, eps=self.epsilon) if self.rms else F.layer_norm(x, whole, eps=self.epsilon)

    def attention(self, weights: Weights, layer: int, x: Tensor, heads: int) -> Tensor:
        queries, keys, values = (x @ weights[role][layer].T for role in ("WQ", "WK", "WV"))
        if self.after:
            queries, keys = self.norm(queries), self.norm(keys)
        queries, keys, values = (one.view(len(x), heads, -1).transpose(0, 1) for one in (queries, keys, values))
        queries, keys = (_rotated(one, self.rotary, self.base) for one in (queries, keys))
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=queries.shape[-1] ** self.attention_scale
        )
        return mixed.transpose(0, 1).reshape(len(x), -1) @ weights["WO"][layer].T

    def units(self, weights: Weights, layer: int, x: Tensor) -> Tensor:
        inner = x @ weights["W1"][layer].T
        inner = F.silu(x @ weights["WG"][layer].T) * inner if "WG" in weights else F.gelu(inner)
        return inner @ weights["W2"][layer].T

    def __call__(self, weights: Weights, words: Tensor, heads: int) -> tuple[Tensor, list[Tensor]]:
        """Logits of a sequence, and the stream after every layer."""
        before = (lambda x: x) if self.after else self.norm
        behind = self.norm if self.after else (lambda x: x)
        x, streams = weights["words"][0][words], []
        for layer in range(len(weights["WQ"])):
            attended = self.branches * behind(self.attention(weights, layer, before(x), heads))
            read = x if self.parallel else x + attended
            x = x + attended + self.branches * behind(self.units(weights, layer, before(read)))
            streams.append(x)
        return self.logits * self.norm(x) @ weights["head"][0].T, streams


def measured(drawn: Weights, architecture: Architecture, heads: int, tokens: int) -> dict[str, list[float]]:
    """Squared norms of every matrix's gradient, and the mean square of the stream, by layer, of one network.

    Words are different, and labels of all positions independent and uniform.
    """
    layers = {role: matrices for role, matrices in drawn.items() if role not in ("words", "head")}
    for matrices in layers.values():
        for matrix in matrices:
            matrix.requires_grad_()
    vocab = len(drawn["words"][0])
    logits, streams = architecture(drawn, torch.randperm(vocab)[:tokens], heads)
    F.cross_entropy(logits, torch.randint(vocab, (tokens,))).backward()
    squares = {f"grad_sq_{role}": [float(one.grad.square().sum()) for one in ms] for role, ms in layers.items()}
    return squares | {"hidden_energy": [float(x.detach().square().mean()) for x in streams]}
