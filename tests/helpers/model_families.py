"""Seven families of Transformers to probe, small, with random weights, and faults that can be planted in any of them.

Four are of `transformers`, built from configurations: Llama, GPT-2, BERT, T5. Three are written with torch alone.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from simulate.modules.catalogue import BUILTINS

VOCAB, TOKENS, BATCH, HEADS = 128, 16, 2, 4


class Block(nn.Module):
    """A Pre-LN layer, causal or not."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.causal = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class NanoGPT(nn.Module):
    """GPT-2 in few lines: std 0.02, residual projections over sqrt(2L), the output matrix that of the words."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, width), nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(Block(width, causal=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scaled = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth) if scaled else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.words.weight.T


class ViT(nn.Module):
    """Patches of an image, a class token, learned positions; matrices of std 0.02, truncated."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.empty(1, TOKENS + 1, width).normal_(std=0.02))
        self.blocks = nn.Sequential(*(Block(width, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)
        for one in self.modules():
            if isinstance(one, nn.Linear):
                nn.init.trunc_normal_(one.weight, std=0.02)
                nn.init.zeros_(one.bias)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def _words() -> Tensor:
    return torch.randint(VOCAB, (BATCH, TOKENS))


def _entropy(labels: Tensor) -> Callable[[Any], Tensor]:
    def loss(output: Any) -> Tensor:
        logits = getattr(output, "logits", output)
        return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten().to(logits.device))

    return loss


def nano_gpt(width: int, depth: int) -> tuple[nn.Module, Any]:
    return NanoGPT(width, depth), lambda _: (_words(), _entropy(_words()))


def vit(width: int, depth: int) -> tuple[nn.Module, Any]:
    return ViT(width, depth), lambda _: (torch.randn(BATCH, 3, 16, 16), _entropy(torch.randint(10, (BATCH,))))


def _library() -> Any:
    import transformers

    return transformers


def llama(width: int, depth: int) -> tuple[nn.Module, Any]:
    library = _library()
    config = library.LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=depth,
        num_attention_heads=HEADS, max_position_embeddings=TOKENS, use_cache=False,
    )  # fmt: skip
    return library.LlamaForCausalLM(config), lambda _: ({"input_ids": _words()}, _entropy(_words()))


def gpt2(width: int, depth: int) -> tuple[nn.Module, Any]:
    library = _library()
    config = library.GPT2Config(
        vocab_size=VOCAB, n_embd=width, n_layer=depth, n_head=HEADS, n_positions=TOKENS, use_cache=False,
    )  # fmt: skip
    return library.GPT2LMHeadModel(config), lambda _: ({"input_ids": _words()}, _entropy(_words()))


def bert(width: int, depth: int) -> tuple[nn.Module, Any]:
    library = _library()
    config = library.BertConfig(
        vocab_size=VOCAB, hidden_size=width, num_hidden_layers=depth, num_attention_heads=HEADS,
        intermediate_size=4 * width, max_position_embeddings=TOKENS,
    )  # fmt: skip
    return library.BertForMaskedLM(config), lambda _: ({"input_ids": _words()}, _entropy(_words()))


def t5(width: int, depth: int) -> tuple[nn.Module, Any]:
    library = _library()
    config = library.T5Config(
        vocab_size=VOCAB, d_model=width, d_kv=width // HEADS, d_ff=4 * width, num_layers=depth, num_heads=HEADS,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    both = {"input_ids": _words, "decoder_input_ids": _words}
    return library.T5ForConditionalGeneration(config), lambda _: (
        {name: draw() for name, draw in both.items()},
        _entropy(_words()),
    )


# torch.nn as BUILTINS has it, Pre-LN; dropout is what every configuration has by default.
FAMILIES: dict[str, Callable[[int, int], tuple[nn.Module, Any]]] = {
    "Llama": llama, "GPT-2": gpt2, "BERT": bert, "T5": t5, "nanoGPT-like": nano_gpt, "ViT-like": vit,
    "torch.nn": BUILTINS["encoder-pre"].factory,
}  # fmt: skip
