"""Every published model's prediction at several lengths, with a batch and without: an answer, and its seconds.

Seconds are a core's, of a process of its own; those announced are what the command says beforehand.
"""

import os
import re
import subprocess
import sys
import time

from bench.predictions import ONE_THREAD
from theory.configurations import PUBLISHED, context, stack_from_config

LENGTHS = 64, 512, 4096
"""Tokens of the table of models with experts."""

_ANNOUNCED = re.compile(r"about ([0-9.]+) (s|min)\b")


def asked(words: list[str], limit: float = 600.0) -> dict[str, object]:
    """What `gradbounds predict` answers to words, in seconds of a core, and all seconds that it announces.

    Args:
        words: flags.
        limit: seconds by the clock after which it is stopped.
    """
    environment = dict(os.environ) | ONE_THREAD
    before, start = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "gradbounds", "predict", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"answer": f"none in {limit:.0f} s"}
    after = os.times()
    took = after.children_user + after.children_system - before.children_user - before.children_system
    refused = [line for line in done.stderr.splitlines() if line.startswith("gradbounds: ")]
    announced = [float(number) * (60.0 if unit == "min" else 1.0) for number, unit in _ANNOUNCED.findall(done.stderr)]
    row: dict[str, object] = {
        "answer": "yes" if done.returncode == 0 else " ".join(refused) or done.stderr[-200:],
        "CPU seconds": round(took, 1), "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    return row | ({"announced": sum(announced)} if announced else {})


def experts() -> dict[str, object]:
    """Each model with experts at every length, one sequence and a batch of 64."""
    names = [name for name, config in PUBLISHED.items() if stack_from_config(config)[0].experts]
    return {
        f"{name}, {length} tokens{', batch 64' if batch else ''}": asked(
            ["--like", name, "--tokens", str(length), *(["--batch", "64"] if batch else [])]
        )
        for name in names
        for length in LENGTHS
        for batch in (False, True)
    }  # fmt: skip


def report() -> dict[str, object]:
    """Every model at 16 tokens, at its context, and at a batch of 64."""
    rows: dict[str, object] = {}
    for name, config in PUBLISHED.items():
        ways = {
            "16 tokens": ["--tokens", "16"],
            "context": ["--tokens", str(context(stack_from_config(config)[1]))],
            "batch 64": ["--batch", "64"],
        }
        rows |= {f"{name}, {way}": asked(["--like", name, *words]) for way, words in ways.items()}
    return rows
