"""Where the time of a block goes: the engines' own functions, timed without what they call of one another."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from simulate import Cell
from simulate.network import conditioned, gram
from simulate.network.conditioned import ConditionedEngine, ConditionedMap
from simulate.network.dense import DenseEngine, DenseMap
from simulate.network.gram import GramEngine, Units
from simulate.network.random_streams import RandomStreams
from simulate.runs.sample import sample_block

# The last part holds what is in no function above: LayerNorm, activations, sums, autograd, and what is recorded.
REST = "elementwise and the rest"
# Triangular solves are among the products: they are in one function with them.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "normals": [(RandomStreams, name) for name in ("fill_normal", "fill_part", "chi")],
    "Gram matrices": [(ConditionedEngine, "gram"), (GramEngine, "exact_gram")],
    "factorizations": [(conditioned, "factor"), (gram, "factor")],
    "products": [(kind, name) for kind in (ConditionedMap, DenseMap, Units) for name in ("forward", "pullback")],
    "norm of the output matrix": [(DenseEngine, "spectral_norm")],
}


class Clock:
    """Seconds by part; time belongs to the innermost part that runs.

    Args:
        clock: what says the time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = dict.fromkeys([*PARTS, REST], 0.0)
        self._clock = clock
        self._running, self._since = REST, clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what runs inside for a part."""
        outer = self._turn(name)
        try:
            yield
        finally:
            self._turn(outer)

    def _turn(self, name: str) -> str:
        now, before = self._clock(), self._running
        self.seconds[before] += now - self._since
        self._running, self._since = name, now
        return before

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted for a part."""

        def call(*args: object, **kwargs: object) -> object:
            with self.part(part):
                return function(*args, **kwargs)

        return call


def block_parts(cell: Cell, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Seconds per draw of every part that a block of a cell has, on this thread."""
    with ExitStack() as patches:
        parts = Clock(clock)
        for part, places in PARTS.items():
            for owner, name in places:
                patches.enter_context(patch.object(owner, name, parts.timed(part, getattr(owner, name))))
        with parts.part(REST):
            sample_block(cell, 0, 0)
    return {part: seconds / cell.draws_per_block for part, seconds in parts.seconds.items() if seconds}


def fastest_parts(cell: Cell, repetitions: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """The parts of the fastest of some blocks."""
    return min((block_parts(cell, clock) for _ in range(repetitions)), key=lambda parts: sum(parts.values()))
