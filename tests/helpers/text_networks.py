"""Gradients of plain modules, and of transformers' classes, on batches of a text: one JSON file a setting.

    MULTI30K=FOLDER DEVICE=cuda python -m tests.helpers.text_networks SETTING... DRAWS OUT
    MULTI30K=FOLDER python -m tests.helpers.text_networks --theory SETTING... PATTERNS OUT

DRAWS is a number, or FIRST:END for a share of them, which several machines or processes may have. MULTI30K holds
train.en, or the ids that `--ids` made of it there, and a text is never part of this repository.
"""

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, silu

from simulate.runs.files import write_whole
from simulate.runs.provenance import processor
from simulate.text import read_windows
from tests.helpers.evidence_file import DEVICE
from theory import Stack
from theory.configurations import stack_from_config
from theory.configurations.vectors import learned_vectors
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.text_law import TextLaw

VOCAB, SEQUENCES = 2048, 64
# Between two files, so that little is lost where a run is cut off.
SECONDS = 30.0

UNITS: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu", "ffn_ratio": 4.0},
    "swiglu": {"normalization": "rms", "ffn": "gated", "activation": "silu", "ffn_ratio": 2.0},
}
CLASSES: dict[str, Callable[["Setting"], dict[str, Any]]] = {
    "gpt2": lambda s: {
        "n_embd": s.width, "n_layer": s.depth, "n_head": s.width // 64, "vocab_size": VOCAB, "n_positions": s.tokens,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    },
    "llama": lambda s: {
        "hidden_size": s.width, "num_hidden_layers": s.depth, "num_attention_heads": s.width // 64,
        "num_key_value_heads": s.width // 64, "intermediate_size": 2 * s.width, "vocab_size": VOCAB,
        "max_position_embeddings": s.tokens, "tie_word_embeddings": True, "pad_token_id": None,  # no word is a zero row
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """A network and a text, as WIDTH-DEPTH-TOKENS-NETWORK-TEXT: 256-4-64-tied.swiglu-bigrams, 512-8-128-gpt2-windows.

    Attributes:
        width: d.
        depth: L.
        tokens: n of a sequence.
        network: tied.gelu, untied.swiglu, ..., as plain modules, or a family of transformers.
        text: independent words of the text's frequencies, a chain by its bigrams, or windows of it.
    """

    width: int
    depth: int
    tokens: int
    network: str
    text: str

    @classmethod
    def of(cls, name: str) -> "Setting":
        width, depth, tokens, network, text = name.split("-")
        return cls(int(width), int(depth), int(tokens), network, text)

    @property
    def stack(self) -> Stack:
        if self.network in CLASSES:
            config = {"model_type": self.network, **CLASSES[self.network](self)}
            return stack_from_config(config, tokens=self.tokens)[0]
        embeddings, units = self.network.split(".")
        fields: dict[str, Any] = UNITS[units] | {
            "width": self.width, "depth": self.depth, "tokens": self.tokens, "vocab": VOCAB, "heads": self.width // 64,
            "mask": "causal", "placement": "pre", "output_projection": "random", "embeddings": embeddings,
        }  # fmt: skip
        if embeddings == "untied":
            return Stack(**fields, query_key_scale=1.0, init_std=self.width**-0.5)
        # As the classes of GPT-2 and Llama draw them.
        scale = 0.02 * self.width**0.5
        fields |= {"positions": "learned", "depth_scaling": "depth"} if units == "gelu" else {}
        return Stack(**fields, query_key_scale=scale, output_scale=scale, embedding_scale=0.02, init_std=0.02)

    @property
    def law(self) -> TextLaw:
        ids = words()
        if self.text == "independent":
            return TextLaw.of_counts(np.bincount(ids, minlength=VOCAB))
        return TextLaw.of_text(chain(len(ids)) if self.text == "bigrams" else ids, self.tokens)

    def batch(self, seed: int) -> NDArray[np.int64]:
        """Sequences of n tokens and the one after, (SEQUENCES, n + 1)."""
        generator, ids = np.random.default_rng((seed, self.tokens)), words()
        if self.text == "windows":
            starts = generator.choice((len(ids) - 1) // self.tokens, SEQUENCES, replace=False) * self.tokens
            return np.asarray(ids[starts[:, None] + np.arange(self.tokens + 1)])
        at = generator.integers(0, len(ids), (SEQUENCES, self.tokens + 1))
        return ids[at] if self.text == "independent" else _chained(at[:, 0], self.tokens + 1, generator)


@lru_cache
def words() -> NDArray[np.int64]:
    """The text as ids below V: of the most frequent words, and 0 of all others."""
    folder = Path(os.environ.get("MULTI30K", ""))
    if (kept := folder / f"multi30k-{VOCAB}.npy").is_file():
        return np.asarray(np.load(kept), dtype=np.int64)
    return read_windows(folder / "train.en", tokens=1, vocab=VOCAB).ids[:, 0]


@lru_cache
def _places() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of all words, ordered by the word; and where those of a word start."""
    ids = words()
    return np.argsort(ids, kind="stable"), np.searchsorted(np.sort(ids), np.arange(VOCAB + 1))


def _chained(places: NDArray[np.int64], length: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Chains of so many words, each of which follows a place of the last one; the text is taken as a ring."""
    ids, (order, starts) = words(), _places()
    chains = [ids[places]]
    for _ in range(length - 1):
        counts = starts[chains[-1] + 1] - starts[chains[-1]]
        places = order[starts[chains[-1]] + (generator.random(len(places)) * counts).astype(np.int64)]
        chains.append(ids[(places + 1) % len(ids)])
    return np.stack(chains, axis=1)


def chain(length: int) -> NDArray[np.int64]:
    """One text that bigrams make, for its law: 64 chains, one after another."""
    generator = np.random.default_rng(0)
    each = -(-length // 64)
    return _chained(generator.integers(0, len(words()), 64), each, generator).ravel()[:length]


def squares(setting: Setting, seed: int, *, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Squared gradients of one network by role, on a batch of its own, and the loss."""
    if setting.network in CLASSES:
        return _squares_of_class(setting, seed, dtype)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    stack = setting.stack
    d, n, units, std = stack.width, stack.tokens, round(stack.ffn_ratio * stack.width), stack.init_std or 1.0
    last = std / (2 * stack.depth) ** 0.5 if stack.depth_scaling == "depth" else std
    parameters: dict[str, list[torch.Tensor]] = {}

    def parameter(role: str, *shape: int, std: float = std) -> torch.Tensor:
        value = torch.randn(shape, generator=generator, device=DEVICE) * std
        parameters.setdefault(role, []).append(value.to(dtype).requires_grad_())
        return parameters[role][-1]

    def norm(x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, (d,), eps=0.0) if stack.normalization == "layer" else rms_norm(x, (d,), eps=0.0)

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(SEQUENCES, n, stack.heads, d // stack.heads).transpose(1, 2)

    text = torch.from_numpy(setting.batch(seed)).to(DEVICE)
    output = parameter("Wemb", VOCAB, d, std=stack.output_scale * d**-0.5)
    inputs = output if stack.embeddings == "tied" else parameter("inputs", VOCAB, d, std=stack.embedding_scale)
    x = inputs[text[:, :-1]]
    if stack.positions == "learned":
        x = x + parameter("positions", n, d, std=stack.embedding_scale)
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
    loss = cross_entropy((norm(x) @ output.T).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    return {role: math.fsum(_square(each) for each in values) for role, values in parameters.items()} | {
        "loss": float(loss.detach())
    }


def _square(parameter: torch.Tensor) -> float:
    assert parameter.grad is not None, "it was used"
    return float(parameter.grad.double().square().sum())


def _squares_of_class(setting: Setting, seed: int, dtype: torch.dtype) -> dict[str, float]:
    """The same of one of transformers' classes; `others` are its norms' gains and biases."""
    from tests.helpers.model_classes import build, matrices

    with torch.device(DEVICE):
        model = build(setting.network, CLASSES[setting.network](setting), seed=seed).to(dtype)
    text = torch.from_numpy(setting.batch(seed)).to(DEVICE)
    loss = cross_entropy(model(input_ids=text[:, :-1]).logits.flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    by_role: dict[str, float] = {}
    for role, _, gradient in matrices(model, gradient=True):
        by_role[role] = by_role.get(role, 0.0) + float(gradient.double().square().sum())
    named = dict(model.named_parameters())
    by_role["Wemb"] = _square(next(iter(named.values())))  # the table of words is the first of both classes
    if "transformer.wpe.weight" in named:
        by_role["positions"] = _square(named["transformer.wpe.weight"])
    rest = math.fsum(map(_square, named.values())) - math.fsum(by_role.values())
    return by_role | {"others": rest, "loss": float(loss.detach())}


def draw(setting: Setting, seeds: range, file: Path) -> None:
    """Write the file of the networks of these seeds, at least every `SECONDS`; those that it has stay."""
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"draws": []}
    about = {"device": processor(DEVICE), "torch": torch.__version__}
    written = time.monotonic()
    for seed in seeds[len(kept["draws"]) :]:
        kept["draws"].append(squares(setting, seed))
        if seed == seeds[-1] or time.monotonic() - written > SECONDS:
            write_whole(file, json.dumps(about | kept).encode())
            written = time.monotonic()


def theory(setting: Setting, patterns: int, law: TextLaw | None = None) -> dict[str, Any]:
    """Squared gradients of a batch by role and the loss, of so many patterns, and standard errors of the norms.

    The law of text is the setting's own, or a given one.
    """
    stack, family = setting.stack, setting.network if setting.network in CLASSES else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale = noise_scale(stack, text=law or setting.law, patterns=patterns)
    learned = learned_vectors(stack, family) if family else ("inputs",) * (stack.embeddings == "untied")
    expected = scale.squares(SEQUENCES, [*learned, *(["positions"] if stack.positions != "none" else [])])
    errors = {
        role: float(np.linalg.norm(error)) / expected[role] / 2 for role, error in scale.grad_sq_sem(SEQUENCES).items()
    }
    if family:
        expected["others"] = sum(expected.pop(role) for role in learned if role in expected)
    return {"patterns": patterns, "squares": expected, "errors": errors, "loss": scale.loss}


def drawn(name: str, folder: Path) -> dict[str, Any]:
    """The networks of a setting that a folder has, of all shares; without draws where it has none.

    Of a class `others` are all that are no matrix, as in `theory`, with its table of positions.
    """
    files = sorted(folder.glob(f"{name}.*json"), key=lambda file: int(file.name[len(name) + 1 : -5] or 0))
    shares = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    devices = sorted({share["device"] for share in shares})
    draws = [each for share in shares for each in share["draws"]]
    draws = [
        each | {"others": each["others"] + each.get("positions", 0.0)} if "others" in each else each for each in draws
    ]
    return {"draws": draws, "device": " and ".join(devices)}


def main() -> None:
    if sys.argv[1] == "--ids":
        np.save(Path(sys.argv[2]) / f"multi30k-{VOCAB}.npy", words().astype(np.int16))
        return
    if sys.argv[1] == "--theory":
        names, patterns, folder = sys.argv[2:-2], int(sys.argv[-2]), Path(sys.argv[-1])
        for name in names:
            write_whole(folder / f"theory-{name}.json", json.dumps(theory(Setting.of(name), patterns)).encode())
        return
    torch.set_num_threads(1)
    names, folder = sys.argv[1:-2], Path(sys.argv[-1])
    first, end = (int(number) for number in f"0:{sys.argv[-2]}".split(":")[-2:])
    for name in names:
        draw(Setting.of(name), range(first, end), folder / (f"{name}.{first}.json" if first else f"{name}.json"))


if __name__ == "__main__":
    main()
