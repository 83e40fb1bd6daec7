"""What predictions with random attention cost beside samples that know as much: seconds on one core, and memory."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from simulate import Samples, sample
from theory import Prediction, Stack, predict
from theory.configurations import PUBLISHED, stack_from_config
from theory.mean_field.cost import is_grouped, prediction_cost
from theory.mean_field.prediction import predicted_seconds

STACK = Stack(width=1024, depth=12, tokens=16, vocab=512, query_key_scale=1.0)
"""The case that the bars are about: n = 16, L = 12."""

PATTERNS = 2000
DRAWS = 64

_PLAIN = Stack(placement="pre", width=1024, depth=12, tokens=16, vocab=512)
_QUERIES = replace(_PLAIN, query_key_scale=1.0, heads=12, width=768, mask="causal")
_SWIGLU: dict[str, Any] = {"ffn": "gated", "activation": "silu", "norm_epsilon": 1e-5}

_LLAMA = stack_from_config(PUBLISHED["llama-3-8b"])[0]

COSTS: dict[str, tuple[Stack, int | None]] = {
    "n = 16, 12 heads": (_QUERIES, 64),
    "n = 64, 12 heads": (replace(_QUERIES, tokens=64), 8),
    "n = 256, 4 heads, L = 6": (replace(_QUERIES, tokens=256, heads=4, depth=6), 2),
    "n = 512, 1 head, L = 2": (replace(_QUERIES, tokens=512, heads=1, depth=2), 2),
    "Peri-LN, L = 48, 4 heads": (replace(_QUERIES, placement="peri", depth=48, heads=4), 16),
    "rotary, n = 16, 12 heads": (replace(_QUERIES, rotary=1.0), 8),
    "rotary, n = 64, 4 heads, L = 4": (replace(_QUERIES, rotary=1.0, tokens=64, heads=4, depth=4), 2),
    "Llama 3 8B, n = 16": (_LLAMA, 4),
    "Llama 3 8B, n = 4096, groups": (replace(_LLAMA, tokens=4096), 4),
    "causal, n = 10^5, groups": (replace(_PLAIN, mask="causal", tokens=10**5), None),
    "GPT-2, n = 16": (stack_from_config(PUBLISHED["gpt2"])[0], 16),
    "Qwen 3 0.6B, n = 16": (stack_from_config(PUBLISHED["qwen3-0.6b"])[0], 4),
    "dropped weights": (replace(_PLAIN, attention_dropout=0.1), 4096),
    "a source of 16 tokens": (replace(_QUERIES, source_tokens=16), 32),
    "tied, n = 16": (replace(_PLAIN, embeddings="tied"), 256),
    "tied, n = 32": (replace(_PLAIN, embeddings="tied", tokens=32, depth=4), 64),
    "causal, n = 512": (replace(_PLAIN, mask="causal", tokens=512), None),
    "causal, SwiGLU, n = 256": (replace(_PLAIN, mask="causal", tokens=256, **_SWIGLU), None),
    "large logits": (replace(_PLAIN, mask="causal", output_scale=10.0), None),
}
"""Networks and patterns whose extrapolated costs are held against those of all."""

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def measured(call: str) -> dict[str, float]:
    """Seconds, those of a core, and MiB of a call, in a process of its own with one thread."""
    code = (
        "import time; from bench.predictions import *; from dataclasses import replace\n"
        # Imports and what is cached once per process are not part of a call.
        "predict(Stack(depth=1, tokens=2, query_key_scale=1.0), patterns=2)\n"
        f"start, before = time.perf_counter(), time.process_time(); {call}\n"
        "seconds, busy = time.perf_counter() - start, time.process_time() - before\n"
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(seconds, busy, int(peak) / 1024)"
    )
    environment = dict(os.environ) | ONE_THREAD
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    seconds, busy, peak = map(float, done.stdout.split())
    return {"seconds": round(seconds, 2), "CPU seconds": round(busy, 2), "peak MiB": round(peak)}


def costs() -> dict[str, object]:
    """A core's seconds and MiB of predictions beside what a least batch and an estimate say beforehand."""
    libraries = measured("None")["peak MiB"]
    rows: dict[str, object] = {}
    for name, (stack, patterns) in COSTS.items():
        grouped = is_grouped(stack)
        cost = prediction_cost(stack, patterns=patterns, grouped=grouped)
        took = measured(f"predict(COSTS[{name!r}][0], patterns={patterns}, grouped={grouped})")
        rows[name] = {
            "CPU seconds": took["CPU seconds"],
            "estimated seconds": round(predicted_seconds(stack, patterns=patterns, grouped=grouped), 2),
            "MiB": took["peak MiB"] - libraries,
            "estimated MiB": round(cost.bytes / 2**20),
        }
    return rows


def error_of_prediction(prediction: Prediction) -> float:
    """The relative standard error of the first layer's W^Q gradient."""
    return float(prediction.errors["grad_sq_WQ"][0] / prediction["grad_sq_WQ"][0])


def error_of_samples(samples: Samples) -> float:
    """The same of its sampled mean."""
    values = samples["grad_sq_WQ"][:, 0].astype(float)
    return float(values.std(ddof=1) / np.sqrt(len(values)) / values.mean())


def report() -> dict[str, object]:
    """Sampled patterns, twice and four times as many, zero queries and keys, and networks."""
    patterns = {count: measured(f"predict(STACK, patterns={count})") for count in (PATTERNS, 4 * PATTERNS)}
    networks = measured(f"sample(STACK, draws={DRAWS}, seed=0)")
    predicted = error_of_prediction(predict(STACK, patterns=PATTERNS))
    sampled = error_of_samples(sample(STACK, draws=DRAWS, seed=0))
    # Errors fall like one over the root of the count.
    seconds = networks["seconds"] * (sampled / predicted) ** 2
    return {f"{count} patterns": cost for count, cost in patterns.items()} | {
        "s = 0": measured("predict(replace(STACK, query_key_scale=0.0))"),
        f"{DRAWS} networks, d = {STACK.width}": networks,
        "relative errors of W^Q, layer 1": {"patterns": round(predicted, 4), "networks": round(sampled, 4)},
        "networks over patterns, seconds to the same error": round(seconds / patterns[PATTERNS]["seconds"], 1),
    }
