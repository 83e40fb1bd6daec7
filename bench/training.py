"""Time steps of training without matrices beside the loop a user would write, on one core each.

Seconds are of the processor, the minimum of repetitions in turn, so that other work on the machine counts little. The
loop has linear layers without biases, norms without gains, no W^O, attention to the mean of all tokens, and torch's own
SGD with momentum. At d = 16384 one layer is trained: six do not fit into 24 GB.
"""

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from simulate import Cell
from simulate.training.cells import draws_at_once
from simulate.training.train import train
from theory import Stack

STEPS = 10
RATE = {"learning_rate": 1e-5, "momentum": 0.5}
BESIDE = [(4096, 6), (16384, 1)]
WIDE = [2**12, 2**14, 2**16, 2**18]


class Loop(nn.Module):
    """A Post-LN stack whose tokens attend to their mean."""

    def __init__(self, width: int, depth: int, vocab: int) -> None:
        super().__init__()
        shapes = [(width, width)] * (3 * depth) + [(width, vocab)]
        # Without the initialization of their own, which would be drawn and thrown away.
        self.layers = nn.ModuleList(nn.utils.skip_init(nn.Linear, *shape, bias=False) for shape in shapes)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of every token."""
        *layers, head = self.layers
        for value, first, second in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
            x = nn.functional.layer_norm(x + value(x.mean(0, keepdim=True)), x.shape[-1:])
            x = nn.functional.layer_norm(x + second(torch.relu(first(x))), x.shape[-1:])
        return head(x)


def torch_loop(stack: Stack) -> None:
    """One draw: a fresh module, ten steps on one batch."""
    torch.set_num_threads(1)
    model = Loop(stack.width, stack.depth, stack.vocab)
    sgd = torch.optim.SGD(model.parameters(), lr=RATE["learning_rate"], momentum=RATE["momentum"])
    x, labels = torch.randn(stack.tokens, stack.width), torch.randint(stack.vocab, (stack.tokens,))
    for _ in range(STEPS):
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        sgd.step()
    float(nn.functional.cross_entropy(model(x), labels).detach())


def draws_of(stack: Stack) -> int:
    """How many draws share a batch of tensors."""
    return draws_at_once(Cell(stack, "conditioned"))


def fastest(calls: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Seconds of the processor of each call, the minimum over repetitions in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def stack_of(width: int, depth: int) -> Stack:
    """What is trained."""
    return Stack(placement="post", width=width, depth=depth, tokens=8, vocab=64)


def without_matrices(stack: Stack) -> Callable[[], object]:
    """A block of draws."""
    return lambda: train(stack, steps=STEPS, draws=draws_of(stack), seed=0, engine="conditioned", **RATE)


def report() -> dict[str, Any]:
    """Every number of the page."""
    wide = {}
    for width in WIDE:
        stack = stack_of(width, 6)
        repetitions = 3 if width < WIDE[-1] else 2
        wide[width] = fastest({"": without_matrices(stack)}, repetitions)[""] / draws_of(stack)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # before the loop takes more
    beside = []
    for width, depth in BESIDE:
        stack = stack_of(width, depth)
        loop = lambda stack=stack: torch_loop(stack)  # noqa: E731
        best = fastest({"without matrices": without_matrices(stack), "loop": loop}, 3)
        best["without matrices"] /= draws_of(stack)
        ratio = best["loop"] / best["without matrices"]
        beside.append(
            {"width": width, "depth": depth} | {f"{k}, s a draw": v for k, v in best.items()} | {"ratio": ratio}
        )
    slope = float(np.polyfit(np.log(list(wide)), np.log(list(wide.values())), 1)[0])
    return {
        "tokens": 8,
        "steps": STEPS,
        "beside the loop": beside,
        "seconds a draw by width, L = 6": wide,
        "slope in d": slope,
        "peak GiB": peak,
    }
