"""What steps of an optimizer that are judged cost beside microsoft/mup's coordinate check, which draws them."""

import importlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from checks.models.judge import probe

WIDTHS, DEPTH, SEEDS, REPETITIONS = ((32, 64, 128), (128, 256, 512)), 4, 2, 15
STEPS = (2, 4)
_VOCAB, _SEQUENCES, _LENGTH, _HEADS = 256, 4, 64, 4


class _Layer(nn.Module):
    """Pre-LN, of nn.Linear, as what scales its logits by 1/d_k has to be."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after it."""
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, scale=8 / q.shape[-1])
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class _Words(nn.Module):
    """Words, layers, an output matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(_VOCAB, width), nn.Linear(width, _VOCAB, bias=False)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(DEPTH))

    def forward(self, words: Tensor) -> Tensor:
        """Logits."""
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def _words() -> tuple[Tensor, Tensor]:
    words = torch.randint(_VOCAB, (_SEQUENCES, _LENGTH + 1))
    return words[:, :-1], words[:, 1:].flatten()


def _adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=1e-3)


def judged_steps(steps: int, widths: Sequence[int]) -> None:
    """The whole report, exponents and alarms included."""

    def factory(width: int, _: int) -> tuple[nn.Module, Callable[[int], Any]]:
        def batch(_: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            words, labels = _words()
            return words, lambda logits: nn.functional.cross_entropy(logits.flatten(0, 1), labels)

        return _Words(width), batch

    probe(factory, optimizer=_adam, widths=widths, depths=[DEPTH], steps=steps, seeds=SEEDS, parametrization="mup")


def recorded_steps(steps: int, widths: Sequence[int]) -> None:
    """What microsoft/mup records for its picture: mean |x| of every module's output before each of so many steps.

    Raises:
        ImportError: the package mup is not on the path.
    """
    check = importlib.import_module("mup.coord_check")
    models = {width: partial(_Words, width) for width in widths}
    check._get_coord_data(
        models, [_words()], _adam, nsteps=steps, cuda=False, nseeds=SEEDS, flatten_output=True,
        show_progress=False,
    )  # fmt: skip


def report() -> dict[str, object]:
    """CPU seconds of both, in turn, and the median of their ratios.

    Raises:
        ImportError: the package mup is not on the path.
    """
    torch.set_num_threads(1)
    results: dict[str, object] = {
        "depth": DEPTH, "seeds": SEEDS, "repetitions": REPETITIONS, "tokens": _SEQUENCES * _LENGTH,
        "beside": "microsoft/mup, mup.coord_check._get_coord_data, and torch.optim.Adam in both",
    }  # fmt: skip
    # What is imported at the first step is no part of the cost.
    for check in (recorded_steps, judged_steps):
        check(1, (8, 16, 32))
    for widths, steps in product(WIDTHS, STEPS):
        times = []
        for _ in range(REPETITIONS):
            begun = time.process_time()
            recorded_steps(steps, widths)
            between = time.process_time()
            judged_steps(steps, widths)
            times.append((between - begun, time.process_time() - between))
        theirs, ours = (median(column) for column in zip(*times, strict=True))
        results[f"widths {' '.join(map(str, widths))}, {steps} steps"] = {
            "mup, CPU seconds": round(theirs, 2),
            "judged, CPU seconds": round(ours, 2),
            "judged over mup": round(median(after / before for before, after in times), 2),
        }
    return results
