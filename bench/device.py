"""Time the engines on a GPU beside the loop a user would write there, and beside what the GPU allows.

Every time is the clock's, from a GPU that has nothing to do to one that has done all; the minimum of repetitions in
turn. The engines sample batches as `simulate.sample` makes them. Beside them stand the same draws on one core of the
CPU. A limit is the time that random numbers and matrix products would take alone, at the GPU's own rates in float32.
"""

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from bench import engines
from bench.engines import limit, torch_loop
from simulate import Cell, Samples, sample
from simulate.network import conditioned
from simulate.runs import memory
from simulate.runs.memory import BatchLimits
from theory import Stack

DEVICE = "cuda"
REPETITIONS = 3
MOST_DRAWS = 4096
DEEP_REPETITIONS = 2

# Over the width, the depth and the tokens.
STACKS = [
    Stack(width=width, depth=depth, tokens=tokens, vocab=512)
    for width, depth, tokens in (
        (64, 12, 16), (256, 12, 16), (1024, 12, 16), (4096, 12, 16), (1024, 12, 64), (1024, 100, 16), (1024, 1000, 16),
    )
]  # fmt: skip
# A dense thousand layers of d = 1024 are 12 GB a draw, and a CPU takes a minute for one.
DENSE_LAYERS, CPU_LAYERS = 100, 100


def clock() -> float:
    """Seconds, once the GPU has done all."""
    torch.cuda.synchronize()
    return time.perf_counter()


def fastest(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each call, the minimum over interleaved repetitions behind one that starts it up."""
    for call in calls.values():
        call()
    return engines.fastest(calls, REPETITIONS, clock)


def limits() -> dict[str, float]:
    """The GPU's rates: random numbers, float32 and float64 products, bytes read and written, per second."""
    numbers, square = torch.empty(2**26, device=DEVICE), torch.randn(8192, 8192, device=DEVICE)
    double, target = square[:4096, :4096].double(), torch.empty(2**28, device=DEVICE)
    source = torch.randn_like(target)
    seconds = fastest(
        {
            "normals": numbers.normal_,
            "flops": lambda: square @ square,
            "flops, float64": lambda: double @ double,
            "bytes": lambda: target.copy_(source),
        }
    )
    done = {"normals": 2**26, "flops": 2 * 8192**3, "flops, float64": 2 * 4096**3, "bytes": 8 * 2**28}
    return {name: done[name] / seconds[name] for name in done}


def draws_of(cell: Cell) -> int:
    """Of one batch, as sampling has it where nothing is said, but for a cap."""
    return min(MOST_DRAWS, BatchLimits().blocks(cell) * cell.draws_per_block)


def case(stack: Stack, rates: dict[str, float]) -> dict[str, Any]:
    """Seconds per draw of loop and engines for one Stack, their ratios, and the shares of their limits."""
    names = ["conditioned", *(["dense"] if stack.depth <= DENSE_LAYERS else [])]
    cells = {name: Cell(stack, name, DEVICE) for name in names}  # type: ignore[arg-type]
    draws = {name: draws_of(cell) for name, cell in cells.items()}
    calls: dict[str, Callable[[], object]] = {
        name: lambda name=name: sample(stack, draws=draws[name], seed=0, engine=name, device=DEVICE) for name in names
    }
    calls |= {} if stack.depth > DENSE_LAYERS else {"loop": lambda: torch_loop(stack, 1, DEVICE)}
    each = {name: seconds / draws.get(name, 1) for name, seconds in fastest(calls).items()}
    row: dict[str, Any] = {
        "width": stack.width, "depth": stack.depth, "tokens": stack.tokens, "vocab": stack.vocab,
        "draws of a batch": draws, "seconds per draw": each,
        "microseconds per layer and draw": {name: 1e6 * value / stack.depth for name, value in each.items()},
        "share of the limit": {name: limit(cell, rates, each[name])["share reached"] for name, cell in cells.items()},
    }  # fmt: skip
    if "loop" in each:
        row |= {f"loop over {name}": each["loop"] / each[name] for name in names}
    if stack.depth <= CPU_LAYERS:
        block = Cell(stack, "conditioned").draws_per_block
        alone = fastest({"": lambda: sample(stack, draws=block, seed=0, engine="conditioned")})[""] / block
        row["one core of the CPU over the GPU, conditioned"] = alone / each["conditioned"]
    return row


def against_depth(depth: int, ways: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """One batch of deep stacks by calls before a graph is made and bytes of a batch: time, memory, and same numbers."""
    stack = Stack(width=1024, depth=depth, tokens=16, vocab=512)
    cell, seconds, rows = Cell(stack, "conditioned", DEVICE), dict.fromkeys(ways, float("inf")), {}
    first: Samples | None = None
    for repetition in range(1 + DEEP_REPETITIONS):
        for name, (calls, size) in ways.items():  # the GPU's memory is asked for anew each time
            with patch.object(conditioned, "CALLS_BEFORE", calls), patch.object(memory, "_GPU_BATCH", size):
                draws = BatchLimits().blocks(cell) * cell.draws_per_block
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                start = clock()
                drawn = sample(stack, draws=draws, seed=0, engine="conditioned", device=DEVICE)
                seconds[name] = min(seconds[name], clock() - start) if repetition else seconds[name]
            first = drawn if first is None else first
            shared = min(draws, first.draws)
            rows[name] = {
                "draws": draws, "milliseconds per layer": 1e3 * seconds[name] / depth,
                "microseconds per layer and draw": 1e6 * seconds[name] / depth / draws,
                "GB at most": torch.cuda.max_memory_allocated() / 1e9,
                "largest relative difference to the first": max(
                    float(np.max(np.abs(drawn[q][:shared] / first[q][:shared] - 1))) for q in first
                ),
            }  # fmt: skip
            print(f"L = {depth}, {name}: {rows[name]}", file=sys.stderr, flush=True)
    return {"depth": depth, "of one batch": rows}


def deep() -> dict[str, Any]:
    """Depths where launches cost more than numbers, launch by launch and by graphs, in batches of 16 GiB and more."""
    _need_a_gpu()
    cap, never = 2**34, 10**9
    plain, usual = (never, cap), (conditioned.CALLS_BEFORE, cap)
    ways = {"launch by launch": plain, "graphs": usual}
    larger = {"graphs at once": (16, cap), "graphs, batches of 32 GiB": (conditioned.CALLS_BEFORE, 2 * cap)}
    return {
        "gpu": torch.cuda.get_device_name(), "width": 1024, "tokens": 16, "vocab": 512,
        "cases": [
            against_depth(1000, ways | larger), against_depth(100, ways | larger),
            against_depth(12, {"launch by launch": plain, "graphs": usual, "graphs at once": (16, cap)}),
        ],
    }  # fmt: skip


def _need_a_gpu() -> None:
    if not torch.cuda.is_available():
        sys.exit("bench device needs a GPU that torch sees, and there is none here")
    torch.set_num_threads(1)


def report() -> dict[str, Any]:
    """Limits of the GPU, and every case."""
    _need_a_gpu()
    rates = limits()
    return {
        "gpu": torch.cuda.get_device_name(), "limits per second": rates,
        "cases": [case(stack, rates) for stack in STACKS],
    }  # fmt: skip
