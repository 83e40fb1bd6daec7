"""What probing a module costs beside running it forward and backward."""

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from bench.store import seconds
from simulate import probe
from simulate.modules.catalogue import BUILTINS
from simulate.modules.factories import Factory

WIDTH, DEPTH, SEEDS, REPETITIONS = 256, 8, 10, 8
NAMES = ("encoder-post", "transformer-pre")
SEQUENCES = (1, 32)
_TOKENS = 16


def factory_of(name: str, sequences: int) -> Factory:
    """A built-in with a batch of so many sequences."""

    def loss(logits: Tensor) -> Tensor:
        labels = torch.zeros(logits.shape[:-1].numel(), dtype=torch.long)
        return nn.functional.cross_entropy(logits.flatten(0, -2), labels)

    def factory(width: int, depth: int) -> tuple[nn.Module, Callable[[int], Any]]:
        streams = 2 if name.startswith("transformer") else 1

        def batch(_: int) -> tuple[tuple[Tensor, ...], Callable[[Tensor], Tensor]]:
            return tuple(torch.randn(sequences, _TOKENS, width) for _ in range(streams)), loss

        return BUILTINS[name].factory(width, depth)[0], batch

    return factory


def plain(name: str, sequences: int) -> tuple[float, float]:
    """Seconds of making the modules, running and differentiating them, and those of the latter two alone."""
    start, running = time.perf_counter(), 0.0
    for number in range(SEEDS):
        torch.manual_seed(number)
        module, batch = factory_of(name, sequences)(WIDTH, DEPTH)
        inputs, loss = batch(number)
        began = time.perf_counter()
        loss(module(*inputs)).backward()
        running += time.perf_counter() - began
    return time.perf_counter() - start, running


def probed(name: str, sequences: int) -> None:
    """As many, probed."""
    probe(factory_of(name, sequences), widths=[WIDTH], depths=[DEPTH], seeds=SEEDS)


def peak(call: str) -> float:
    """MiB at most of a process of its own that does that."""
    code = (
        f"import torch; torch.set_num_threads(1); from bench.probing import *; {call}\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def report() -> dict[str, object]:
    """Medians of repetitions, taken in turn, and peak memory."""
    torch.set_num_threads(1)
    results: dict[str, object] = {"width, depth, seeds": [WIDTH, DEPTH, SEEDS]}
    for name in NAMES:
        for sequences in SEQUENCES:
            times = [
                (*plain(name, sequences), seconds(lambda n=name, s=sequences: probed(n, s))) for _ in range(REPETITIONS)
            ]
            whole, running, with_hooks = (median(column) for column in zip(*times, strict=True))
            # Of neighbours in time: what else the machine does drifts.
            ratio = median(1 + (after - before) / alone for before, alone, after in times)
            memory = [peak(f"{call}({name!r}, {sequences})") for call in ("plain", "probed")]
            results[f"{name}, {sequences * _TOKENS} tokens"] = {
                "made, forward and backward, seconds": round(whole, 3),
                "forward and backward alone, seconds": round(running, 3),
                "probed, seconds": round(with_hooks, 3),
                "forward and backward with probing over without": round(ratio, 3),
                "peak MiB, plain and probed": [round(value) for value in memory],
            }
    return results
