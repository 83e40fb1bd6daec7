"""Time the prediction and the sampler in one run, beside what a user would write instead.

Each time is the minimum of interleaved repetitions; ratios are what to quote, since machines drift.
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from simulate import sample
from theory import Stack, gaussian, predict

REPETITIONS = 7


def fastest(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each call, the minimum over interleaved repetitions."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(REPETITIONS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def fresh_prediction(stack: Stack) -> None:
    """A prediction whose quadratures have not been done before."""
    gaussian.softmax_overlap.cache_clear()
    gaussian.cross_entropy.cache_clear()
    predict(stack)


def torch_loop(stack: Stack, draws: int) -> None:
    """What a user would write: a fresh `torch.nn.TransformerEncoder` per draw, autograd, the last layer's norm."""
    d, n = stack.width, stack.tokens
    for _ in range(draws):
        layer = nn.TransformerEncoderLayer(
            d, 1, d, dropout=0.0, layer_norm_eps=0.0, batch_first=True, norm_first=stack.placement == "pre", bias=False
        )
        model = nn.TransformerEncoder(layer, stack.depth, enable_nested_tensor=False)
        head = nn.Linear(d, stack.vocab, bias=False)
        for name, weight in [*model.named_parameters(), *head.named_parameters()]:
            if weight.ndim == 2:
                nn.init.normal_(weight, std=d**-0.5)
            if "in_proj" in name:
                weight.data[: 2 * d] = 0.0
            if "out_proj" in name:
                nn.init.eye_(weight)
        logits = head(model(torch.randn(1, n, d)))[0]
        nn.functional.cross_entropy(logits, torch.randint(stack.vocab, (n,))).backward()
        float(model.layers[-1].linear2.weight.grad.square().sum())


def report() -> dict[str, object]:
    """Predictions in milliseconds; seconds per draw of the samplers and their ratios."""
    torch.set_num_threads(1)
    predictions = fastest(
        {
            f"{placement}, L = 1000": lambda p=placement: fresh_prediction(Stack(placement=p, depth=1000))
            for placement in ("post", "pre")
        }
    )
    samplers = {}
    for width, depth, draws in ((64, 2, 64), (256, 6, 16)):
        stack = Stack(width=width, vocab=width, depth=depth)
        calls = {
            "torch.nn loop": lambda s=stack, k=draws: torch_loop(s, k),
            "dense": lambda s=stack, k=draws: sample(s, draws=k, seed=0),
        }
        seconds = {name: value / draws for name, value in fastest(calls).items()}
        samplers[f"d = {width}, L = {depth}, n = {stack.tokens}"] = {
            "seconds per draw": seconds,
            "loop over dense": seconds["torch.nn loop"] / seconds["dense"],
        }
    return {
        "prediction, milliseconds": {name: 1000 * value for name, value in predictions.items()},
        "sampling, all quantities, against the last layer's norm alone in the loop": samplers,
    }
