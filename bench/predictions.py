"""What predictions with random attention cost beside samples that know as much: seconds on one core, and memory."""

import os
import subprocess
import sys

import numpy as np

from simulate import Samples, sample
from theory import Prediction, Stack, predict

STACK = Stack(width=1024, depth=12, tokens=16, vocab=512, query_key_scale=1.0)
"""The case that the bars are about: n = 16, L = 12."""

PATTERNS = 2000
DRAWS = 64

_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def measured(call: str) -> dict[str, float]:
    """Seconds and MiB of a call, in a process of its own with one thread."""
    code = (
        "import time; from bench.predictions import *; from dataclasses import replace\n"
        # Imports and what is cached once per process are not part of a call.
        "predict(Stack(depth=1, tokens=2, query_key_scale=1.0), patterns=2)\n"
        f"start = time.perf_counter(); {call}\n"
        "seconds = time.perf_counter() - start\n"
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(seconds, int(peak) / 1024)"
    )
    environment = dict(os.environ) | _ONE_THREAD
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    seconds, peak = done.stdout.split()
    return {"seconds": round(float(seconds), 2), "peak MiB": round(float(peak))}


def error_of_prediction(prediction: Prediction) -> float:
    """The relative standard error of the first layer's W^Q gradient."""
    return float(prediction.errors["grad_sq_WQ"][0] / prediction["grad_sq_WQ"][0])


def error_of_samples(samples: Samples) -> float:
    """The same of its sampled mean."""
    values = samples["grad_sq_WQ"][:, 0].astype(float)
    return float(values.std(ddof=1) / np.sqrt(len(values)) / values.mean())


def report() -> dict[str, object]:
    """Sampled patterns, twice and four times as many, the closed form, zero queries and keys, and networks."""
    patterns = {count: measured(f"predict(STACK, patterns={count})") for count in (PATTERNS, 4 * PATTERNS)}
    networks = measured(f"sample(STACK, draws={DRAWS}, seed=0)")
    predicted = error_of_prediction(predict(STACK, patterns=PATTERNS))
    sampled = error_of_samples(sample(STACK, draws=DRAWS, seed=0))
    # Errors fall like one over the root of the count.
    seconds = networks["seconds"] * (sampled / predicted) ** 2
    return {f"{count} patterns": cost for count, cost in patterns.items()} | {
        "closed form": measured("predict(STACK, annealed=True)"),
        "s = 0": measured("predict(replace(STACK, query_key_scale=0.0))"),
        f"{DRAWS} networks, d = {STACK.width}": networks,
        "relative errors of W^Q, layer 1": {"patterns": round(predicted, 4), "networks": round(sampled, 4)},
        "networks over patterns, seconds to the same error": round(seconds / patterns[PATTERNS]["seconds"], 1),
    }
