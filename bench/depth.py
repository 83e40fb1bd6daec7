"""Time a layer and draw against the depth: deep stacks fill memory with few draws, and every layer costs something.

Times are those of the processor with one thread, of batches as `simulate.sample` makes them: the first of a sample asks
the system for its memory, and the later ones have it. Where others keep a machine busy they are nearer to what it can
do than those of a clock.
"""

import ctypes
import platform
import time
from collections.abc import Callable
from itertools import count
from statistics import fmean, median
from unittest.mock import PropertyMock, patch

from simulate import Cell, sample
from simulate.free_memory import free_memory
from simulate.network.allocator import all_freed_memory_kept
from simulate.runs.cost import block_bytes
from simulate.runs.memory import BatchLimits
from simulate.runs.sample import sample_batches, sample_blocks
from theory import Stack

DEPTHS = (12, 36, 100, 300, 1000)
WIDTHS = {"conditioned": 1024, "dense": 64}
TOKENS = 8
REPETITIONS = 2

# Of a batch: half of what is free and at most 6 GiB, as where nothing is said.
LIMITS = BatchLimits()

# Draws of a batch. Blocks of deep stacks have one draw each; at L = 12 they have 64.
BATCHES, SHALLOW = (8, 16, 32, 64), 12
BATCH_REPETITIONS = 9

# A thousand layers of 64 draws, in batches of one block as they were until batches followed memory, and as they are.
DEEP, DRAWS = 1000, 64

# How often a deep batch is compared with shallow ones, and of which batches of a sample: whether they are its first.
ROUNDS, KINDS = 3, {"first batch": True, "later batches": False}


def fastest(calls: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Processor seconds of each call, the minimum over interleaved repetitions."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def first_and_later(cell: Cell, count: int) -> tuple[float, float]:
    """Processor seconds of the first batch of a sample, and of the ones after it, which have its memory."""
    seconds = []
    with all_freed_memory_kept():
        for batch in range(1 + REPETITIONS):
            start = time.process_time()
            sample_blocks(cell, 0, range(batch * count, (batch + 1) * count))
            seconds.append(time.process_time() - start)
    return seconds[0], min(seconds[1:])


def against_depth(engine: str, placement: str) -> dict[str, object]:
    """Milliseconds of a layer and draw in the first batch of a sample and in later ones, by depth; the batch's draws.

    The dense engine is timed at a smaller width: at d = 1024 a thousand layers of one draw have 12 GB of weights.
    """
    width = WIDTHS[engine]
    cells = {
        depth: Cell(Stack(placement=placement, width=width, depth=depth, tokens=TOKENS), engine)  # type: ignore[arg-type]
        for depth in DEPTHS
    }
    sizes = {depth: LIMITS.blocks(cell) for depth, cell in cells.items()}
    draws = {depth: sizes[depth] * cell.draws_per_block for depth, cell in cells.items()}
    seconds = {depth: first_and_later(cell, sizes[depth]) for depth, cell in cells.items()}
    first, later = (
        {str(depth): 1000 * seconds[depth][which] / (depth * draws[depth]) for depth in DEPTHS} for which in (0, 1)
    )
    return {
        "engine": engine, "placement": placement, "width": width, "tokens": TOKENS,
        "milliseconds per layer and draw, first batch": first,
        "milliseconds per layer and draw, later batches": later,
        "draws in a batch": {str(depth): count for depth, count in draws.items()},
        "estimated MB of a batch": {str(d): round(sizes[d] * block_bytes(cell) / 1e6) for d, cell in cells.items()},
        "largest over L = 12, first batch": max(first.values()) / first["12"],
        "largest over L = 12, later batches": max(later.values()) / later["12"],
    }  # fmt: skip


def side_by_side(total: int = DRAWS) -> dict[str, object]:
    """Processor seconds of draws of each placement at d = 1024, n = 8, L = 1000: a block at a time, and in batches."""
    calls: dict[str, Callable[[], object]] = {}
    for placement in ("post", "pre"):
        stack = Stack(placement=placement, width=1024, depth=DEEP, tokens=TOKENS)  # type: ignore[arg-type]
        cell = Cell(stack)
        blocks = range(cell.blocks(total))
        calls[f"{placement}, a block at a time"] = lambda cell=cell, blocks=blocks: sample_batches(
            cell, 0, blocks, BatchLimits(at_once=1)
        )
        calls[f"{placement}, batches"] = lambda stack=stack: sample(stack, draws=total, seed=0)
    seconds = fastest(calls, 1)
    return {
        "width": 1024, "tokens": TOKENS, "depth": DEEP, "draws": total, "engine": cell.engine,
        "most draws in a batch": min(total, LIMITS.blocks(cell) * cell.draws_per_block),
        "processor seconds": seconds,
        "milliseconds per layer and draw": {name: 1000 * value / (DEEP * total) for name, value in seconds.items()},
        "times faster": {
            p: seconds[f"{p}, a block at a time"] / seconds[f"{p}, batches"] for p in ("post", "pre")
        },
    }  # fmt: skip


def by_batch(placement: str) -> dict[str, object]:
    """Milliseconds of a layer and draw of a shallow stack in batches such as deep ones have: so many blocks of a draw.

    What is left of the cost of depth when depth is taken away.
    """
    stack = Stack(placement=placement, width=1024, depth=SHALLOW, tokens=TOKENS)  # type: ignore[arg-type]
    cell = Cell(stack)
    draws_of_block = cell.draws_per_block

    def single(count: int) -> Callable[[], object]:
        def call() -> object:
            with patch.object(Cell, "draws_per_block", new_callable=PropertyMock, return_value=1):
                return sample_blocks(cell, 0, range(count))

        return call

    calls: dict[str, Callable[[], object]] = {"one block": lambda: sample_blocks(cell, 0, [0])}
    calls |= {str(count): single(count) for count in BATCHES}
    seconds = fastest(calls, BATCH_REPETITIONS)
    draws = {name: draws_of_block if name == "one block" else int(name) for name in calls}
    each = {name: 1000 * seconds[name] / (SHALLOW * draws[name]) for name in calls}
    return {
        "placement": placement, "width": 1024, "tokens": TOKENS, "depth": SHALLOW, "draws of one block": draws_of_block,
        "milliseconds per layer and draw, by blocks of one draw in a batch": each,
        "over one block": {name: value / each["one block"] for name, value in each.items()},
    }  # fmt: skip


def batches() -> dict[str, object]:
    """Both placements by the size of a batch."""
    return {"by batch": [by_batch(placement) for placement in ("post", "pre")]}


def give_back() -> None:
    """Return all memory that the process freed to the system, as far as glibc's allocator is what has it."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def deep_over_shallow(placement: str) -> dict[str, object]:
    """Milliseconds of a layer and draw at L = 1000 over those at L = 12, in first batches of samples and in later ones.

    Each deep batch stands between shallow ones of as many layers and draws in sum, half of them before and half after,
    and is compared with the mean of these. A batch of seconds holds whatever slowed the machine while it lasted, so the
    shallow ones must too: the fastest of many does not, and the ratio to it grows with the scatter of the times alone.
    Of the ratios the median counts; the least and the largest show their scatter. Before a first batch the process
    gives back all memory that it freed, and libraries are loaded before any.
    """
    cells = {d: Cell(Stack(placement=placement, width=1024, depth=d, tokens=TOKENS)) for d in (SHALLOW, DEEP)}  # type: ignore[arg-type]
    sizes = {d: LIMITS.blocks(cell) for d, cell in cells.items()}
    layers = {d: d * sizes[d] * cells[d].draws_per_block for d in cells}
    half = round(layers[DEEP] / layers[SHALLOW] / 2)
    batches = count()

    def milliseconds(depth: int, *, first: bool = False) -> float:
        if first:
            give_back()
        batch, start = next(batches), time.process_time()
        sample_blocks(cells[depth], 0, range(batch * sizes[depth], (batch + 1) * sizes[depth]))
        return 1000 * (time.process_time() - start) / layers[depth]

    def shallow() -> dict[str, list[float]]:
        return {name: [milliseconds(SHALLOW, first=first) for _ in range(half)] for name, first in KINDS.items()}

    rounds = []
    with all_freed_memory_kept():
        milliseconds(SHALLOW)
        for _ in range(ROUNDS):
            before = shallow()
            deep = {name: milliseconds(DEEP, first=first) for name, first in KINDS.items()}
            after = shallow()
            rounds.append({name: (fmean(before[name] + after[name]), deep[name]) for name in KINDS})
    ratios = {name: [pairs[name][1] / pairs[name][0] for pairs in rounds] for name in KINDS}
    return {
        "placement": placement, "draws in a batch": {str(d): layers[d] // d for d in layers},
        "milliseconds per layer and draw": {
            name: {str(depth): [pairs[name][k] for pairs in rounds] for k, depth in enumerate((SHALLOW, DEEP))}
            for name in KINDS
        },
        "deep over shallow": {
            name: {"median": median(each), "least": min(each), "largest": max(each)} for name, each in ratios.items()
        },
    }  # fmt: skip


def deepest() -> dict[str, object]:
    """Both placements, the least and the greatest depth."""
    return {"width": 1024, "tokens": TOKENS, "deepest": [deep_over_shallow(p) for p in ("post", "pre")]}


def report() -> dict[str, object]:
    """Both engines and placements by depth, and a thousand layers in both ways."""
    by_depth = [against_depth(engine, placement) for engine in WIDTHS for placement in ("post", "pre")]
    return {"MB that are free": round(free_memory() / 1e6), "by depth": by_depth, "a thousand layers": side_by_side()}
