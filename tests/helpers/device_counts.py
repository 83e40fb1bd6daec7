"""Launches and waits of samples and training on a pretended GPU; `python -m tests.helpers.device_counts` prints them.

All are counts of operations, the same on every machine, of a version of torch.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

from simulate.network import replays
from simulate.runs.cell import Cell
from simulate.runs.sample import sample_blocks
from studies.training.train import train
from tests.helpers.pretended_gpu import PretendedGpu
from theory import Stack

DEPTHS = 1, 2
"""What a layer takes is the difference over that of these depths."""

SMALL: dict[str, Any] = {"width": 16, "tokens": 8, "vocab": 8}

Counts = dict[str, float]


def counted(run: Callable[[], object]) -> Counter[str]:
    """What a call takes."""
    with PretendedGpu() as gpu:
        run()
    return Counter(launches=gpu.launches, doubles=gpu.doubles, waits=gpu.waits.total())


def of_sampling(engine: Any, **fields: Any) -> Counts:
    """A batch of one block of a Post-LN stack: what a layer takes, and what all else does."""
    cells = [Cell(Stack(**SMALL | fields, depth=depth), engine, "cuda") for depth in DEPTHS]
    shallow, deep = (counted(lambda c=cell: sample_blocks(c, 0, [0])) for cell in cells)
    found: Counts = {}
    for name in ("launches", "doubles", "waits"):
        layer = (deep[name] - shallow[name]) / (DEPTHS[1] - DEPTHS[0])
        found |= {f"{name} a layer": layer, f"{name} beside": shallow[name] - DEPTHS[0] * layer}
    return found


def of_graphs(depth: int = 6, **fields: Any) -> Counts:
    """What a layer takes once graphs are made, as deep stacks have them after many calls."""
    cells = [Cell(Stack(**SMALL | fields, depth=count), "conditioned", "cuda") for count in (depth, depth + 1)]
    with mock.patch.object(replays, "CALLS_BEFORE", 2):
        shallow, deep = (counted(lambda c=cell: sample_blocks(c, 0, [0])) for cell in cells)
    return {f"{name} a layer": float(deep[name] - shallow[name]) for name in ("launches", "waits")}


def of_blocks(engine: Any, blocks: int = 64) -> Counts:
    """What one block more adds to a batch of many, whose calls of generators alone hang on their number."""
    cell = Cell(Stack(**SMALL, depth=DEPTHS[0]), engine, "cuda")
    one, many = (counted(lambda n=count: sample_blocks(cell, 0, range(n))) for count in (1, blocks))
    return {f"{name} a block": (many[name] - one[name]) / (blocks - 1) for name in ("launches", "waits")}


def of_training(engine: Any) -> Counts:
    """What the second step more takes than the first, of a layer and an output, whose 4 matrices are used 8 times."""
    stack, rest = Stack(**SMALL, depth=1), {"draws": 2, "seed": 0, "engine": engine, "device": "cuda"}
    few, more = (counted(lambda n=steps: train(stack, steps=n, learning_rate=0.01, **rest)) for steps in (1, 2))
    found = {f"{name} a step": float(more[name] - few[name]) for name in ("launches", "doubles", "waits")}
    return found | {"waits beside": few["waits"] - 2 * found["waits a step"]}  # one step has two passes


def all_counts() -> dict[str, Counts]:
    """Every count of both engines."""
    queries = {"query_key_scale": 1.0, "heads": 4}
    return {
        f"{what}, {engine}": count(engine)
        for engine in ("dense", "conditioned")
        for what, count in (
            ("sampling", of_sampling),
            ("sampling with queries", lambda name: of_sampling(name, **queries)),
            ("more blocks", of_blocks),
            ("training", of_training),
        )
    } | {"sampling by graphs, conditioned": of_graphs(), "sampling with queries by graphs": of_graphs(**queries)}


if __name__ == "__main__":
    json.dump(all_counts(), sys.stdout, indent=1)
