"""Exponents in d and L of every quantity of Theorem 1's networks, from one sweep of both placements, with theory's.

On a GPU, widths are 2^8 to 2^15 with the dense engine and 2^20 with the Gram engine, and depths are 2 to 256. Each
network gets the same share of ten minutes. Without a GPU, the same script runs at small sizes on the CPU.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from checks.fits import power_law
from simulate import Samples, sample
from theory import QUANTITIES, Stack, predict

BASE = Stack(width=256, depth=2, tokens=4, vocab=64)
LEAST_DRAWS, MOST_DRAWS, FIELDS = 4, 2**18, ("width", "depth")
Engine, Sweep = Literal["dense", "gram"], tuple[int, int, int, int, float]
# First and last width of the dense engine, width of the Gram engine and largest depth, as powers of two; seconds.
GPU, CPU = (8, 15, 20, 8, 600.0), (6, 9, 12, 4, 60.0)


def stacks(sweep: Sweep, placement: Any, field: str) -> list[tuple[Stack, Engine]]:
    """Return the networks along one field, with their engines: all depths have the Gram engine's width."""
    first, last, widest, depth, _ = sweep
    wide = replace(BASE, placement=placement, width=2**widest)
    if field == "depth":
        return [(replace(wide, depth=2**k), "gram") for k in range(1, depth + 1)]
    dense: list[tuple[Stack, Engine]] = [(replace(wide, width=2**k), "dense") for k in range(first, last + 1)]
    return [*dense, (wide, "gram")]


def sampled(stack: Stack, engine: Engine, device: str, seconds: float) -> Samples:
    """Sample four times as many networks again and again, while that takes at most these seconds."""
    draws = LEAST_DRAWS
    while True:
        start = time.perf_counter()
        samples = sample(stack, draws=draws, seed=0, engine=engine, device=device)
        if draws >= MOST_DRAWS or 5 * (time.perf_counter() - start) > seconds:
            return samples
        draws *= 4


def exponents(sizes: Sequence[int], each: Sequence[Samples]) -> dict[str, dict[str, float]]:
    """Fit the exponent of every quantity in the last layer, next to the exponent of theory with the same weights.

    Squared norms enter as root mean squares. The errors are of sampling only; theory's widths are infinite.
    """
    rows = {}
    for name in sorted(set.intersection(*map(set, each))):  # the norm of the output matrix is the dense engine's only
        power = 0.5 if "sq" in name else 1.0
        last = [samples[name][:, -1] if QUANTITIES[name].per_layer else samples[name] for samples in each]
        mean = np.array([values.mean(dtype=float) for values in last])
        relative = np.array([values.std(ddof=1, dtype=float) / len(values) ** 0.5 for values in last]) / mean
        fit = power_law(sizes, mean**power, power * relative * mean**power)
        row = {"exponent": round(fit.exponent, 4), "sem": round(fit.sem, 4)}
        if QUANTITIES[name].predicted:
            expected = [float(np.ravel(predict(samples.stack)[name])[-1]) for samples in each]
            row["theory"] = round(float(np.asarray(fit.weights) @ np.log(expected)) * power, 4)
        rows[name] = row
    return rows


def report(sweep: Sweep | None = None) -> dict[str, Any]:
    """Sample every network and return the exponents by placement and field, with the number of draws of each size."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sweep = sweep or (GPU if device == "cuda" else CPU)
    sample(BASE, draws=LEAST_DRAWS, seed=0, device=device)  # loads the device's libraries
    ways = {(placement, field): stacks(sweep, placement, field) for placement in ("post", "pre") for field in FIELDS}
    share = sweep[-1] / sum(map(len, ways.values()))
    tables: dict[str, Any] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    for (placement, field), networks in ways.items():
        each = [sampled(stack, engine, device, share) for stack, engine in networks]
        sizes = [getattr(stack, field) for stack, _ in networks]
        tables[f"{placement}, {field}"] = {
            "draws": {size: samples.draws for size, samples in zip(sizes, each, strict=True)},
            "exponents": exponents(sizes, each),
        }
    return tables
