"""What a report on one module takes beside its own forward and backward pass, on a GPU where there is one."""

import time
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from checks.models.judge import probe

REPETITIONS = 5
# Width, layers, words, sequences and their length: 31 million parameters at four sizes of a batch, and 406 million.
SIZES = (
    (512, 8, 6000, 1, 128), (512, 8, 6000, 4, 256), (512, 8, 6000, 16, 512), (512, 8, 6000, 16, 2048),
    (1024, 24, 50304, 8, 1024),
)  # fmt: skip
# Of these a CPU takes minutes.
ON_CPU = 2


class Layer(nn.Module):
    """Of a GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and feed-forward units, each behind a norm."""
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """GPT-2 in few lines, its output matrix its own."""

    def __init__(self, width: int, depth: int, vocab: int, context: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                ends = "proj" in name or "down" in name
                nn.init.normal_(parameter, std=0.02 / ((2 * depth) ** 0.5 if ends else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, words: Tensor) -> Tensor:
        """Logits."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def report() -> dict[str, object]:
    """Medians of repetitions taken in turn, and peak memory where the device says it; one thread on a CPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    results: dict[str, object] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu, one thread"}
    for width, depth, vocab, sequences, tokens in SIZES if device == "cuda" else SIZES[:ON_CPU]:
        torch.manual_seed(1)
        module = Gpt(width, depth, vocab, tokens).to(device)
        words = torch.randint(vocab, (sequences, tokens), device=device)
        millions = sum(parameter.numel() for parameter in module.parameters()) / 1e6
        results[f"{millions:.0f} million parameters, {words.numel()} tokens"] = _sizes(module, words, device)
    return results


def _sizes(module: nn.Module, words: Tensor, device: str) -> dict[str, float]:
    def loss(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    def plain() -> None:
        loss(module(words)).backward()
        module.zero_grad(set_to_none=True)

    def probed() -> None:
        probe(module, words, loss=loss)

    seconds: dict[str, list[float]] = {"plain": [], "probed": []}
    peaks = {}
    for repetition in range(REPETITIONS + 1):
        for name, run in (("plain", plain), ("probed", probed)):
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
                peaks[name] = torch.cuda.max_memory_allocated() / 2**20
            # The first starts everything up.
            if repetition:
                seconds[name].append(time.perf_counter() - start)
    ratio = median(p / q for p, q in zip(seconds["probed"], seconds["plain"], strict=True))
    of = {
        "forward and backward, seconds": round(median(seconds["plain"]), 4),
        "report, seconds": round(median(seconds["probed"]), 3), "report over both passes": round(ratio, 1),
    }  # fmt: skip
    return of | {f"peak MiB, {name}": round(value) for name, value in peaks.items()}
