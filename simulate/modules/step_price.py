"""What steps from a factory's modules take: one step at the smallest width, and the others by their parameters."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from simulate.modules.coordinates import coordinate_steps, step_sizes
from simulate.modules.factories import Factory, build, module_seed, named_size, seeded
from simulate.modules.step_optimizers import OptimizerFactory


@dataclass(frozen=True, slots=True)
class StepPrice:
    """What all modules take.

    Attributes:
        modules: how many there are.
        parameters: of the largest.
        seconds: of all. Small modules take as long as their calls do, so that it is too much where these count.
    """

    modules: int
    parameters: int
    seconds: float


def step_price(
    factory: Factory, optimizer: OptimizerFactory, *, widths: Sequence[int], depths: Sequence[int], steps: int,
    seeds: int, seed: int = 0, device: str = "cpu",
) -> StepPrice:  # fmt: skip
    """An estimate: one module is stepped once, twice over, and one of every size is made to count its parameters.

    Args:
        factory: as `coordinate_steps` takes all of these.
        optimizer: of a module.
        widths: that the factory takes.
        depths: likewise.
        steps: how many.
        seeds: modules of every size.
        seed: root seed.
        device: of module and batch.

    Raises:
        ValueError: as `coordinate_steps`.
    """
    sizes = step_sizes(widths, depths)
    least = min(sizes)
    times = []
    for _ in range(2):  # the first one loads what torch loads late
        start = time.perf_counter()
        coordinate_steps(
            factory, optimizer, widths=[least[0]], depths=[least[1]], steps=1, seeds=1, seed=seed, device=device
        )
        times.append(time.perf_counter() - start)
    counts = {}
    for width, depth in sizes:
        at = module_seed(seed, width, depth, 0)
        with seeded(at), named_size(width, depth):
            module = build(factory, width, depth, at, device).module
            counts[width, depth] = max(1, sum(parameter.numel() for parameter in module.parameters()))
    passes = (steps + 1) / 2  # one for every step and before the first; of a single step two
    seconds = min(times) * passes * seeds * sum(counts.values()) / counts[least]
    return StepPrice(seeds * len(sizes), max(counts.values()), seconds)
