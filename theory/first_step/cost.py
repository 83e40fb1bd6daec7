"""Estimates of the computing time and memory that the prediction of a first optimizer step takes."""

from collections.abc import Sequence

from theory.coverage import holds_words
from theory.first_step.output_matrix import product_count
from theory.first_step.outputs import CHUNK, pattern_count, sample_count
from theory.first_step.prediction import first_step
from theory.first_step.rules import STREAM_SAMPLES
from theory.first_step.samples import SAMPLES, gaussian_sample_count
from theory.mean_field.cost import Cost, measured_seconds
from theory.stack import Stack
from theory.stack.optimizers import LINEAR, Optimizer


def first_step_cost(stack: Stack, optimizer: Optimizer, patterns: int | None = None) -> Cost:
    """Return the estimated time and memory of predicting a first optimizer step, the same on every machine.

    The prediction is `theory.first_step.prediction.first_step`.

    Args:
        stack: the network.
        optimizer: name of the optimizer.
        patterns: number of attention samples, as in `first_step`.
    """
    drawn = pattern_count(stack, patterns)
    n, networks, most = stack.rows, sample_count(stack, linear=optimizer in LINEAR, patterns=drawn), SAMPLES // drawn
    numbers, kernels = float(networks * n * stack.vocab), 1 if optimizer in LINEAR else networks
    outputs = numbers * (4e-8 + 1e-8 * (optimizer == "adam") + 1.2e-9 * n)
    memory = 2.0 * numbers + 9.0 * min(numbers, max(CHUNK, n * stack.vocab))
    layer, kept = _layer(stack, optimizer, kernels, gaussian_sample_count(n, most))
    if stack.query_key_scale:  # patterns of every head on the way up, twice down, and up with tokens that move
        passes = kernels * 5.0
        layer += stack.heads * n**2 * (passes * (4e-8 + 8e-10 * n) + 4e-7 + 3e-9 * n + 2.4e-9 * stack.key_width)
        kept += stack.heads * n**2 * (4.0 * kernels + 16.0)
        if holds_words(stack):
            layer += stack.heads * n**2 * networks * (1e-6 if optimizer in LINEAR else 2.6e-6)
    if stack.output_transform == "added":
        outputs += layer / 2 + (4e-10 * product_count(numbers, most) * numbers if optimizer == "adam" else 0.0)
    seconds = (1e-3 + outputs + stack.depth * layer) * drawn
    return Cost(seconds, 8 * (stack.depth * kept + memory))  # bytes of float64


def measured_pace(stacks: Sequence[Stack], optimizers: Sequence[Optimizer], patterns: int | None = None) -> float:
    """Return measured divided by estimated computing time, for the prediction of a first step on this machine.

    It is measured with a small network like the most expensive one.

    Args:
        stacks: the networks.
        optimizers: names of the optimizers.
        patterns: number of attention samples, as in `first_step`.
    """
    every = [(first_step_cost(stack, name, patterns).seconds, k, name)
             for k, stack in enumerate(stacks) for name in optimizers]  # fmt: skip
    if not every:
        return 1.0
    whole, k, optimizer = max(every)

    def estimate(least: Stack) -> float:
        return first_step_cost(least, optimizer, 2).seconds

    def run(least: Stack) -> None:
        first_step(least, optimizer, patterns=2)

    return measured_seconds(stacks[k], whole, estimate, run, ("depth", "tokens", "vocab")) / whole


def _layer(stack: Stack, optimizer: Optimizer, kernels: int, samples: int) -> tuple[float, float]:
    """Return the seconds of both branches of a layer, and the number of floats that they store."""
    n, gated = float(stack.rows), stack.ffn == "gated"
    drawn = samples * n
    seconds = 2e-3 + drawn * (6.4e-8 + 5e-9 * (1 + gated) * n + 1e-10 * n**2) + kernels * (1.4e-7 * n**2 + 1e-9 * n**3)
    kept = 4.0 * (2 + gated) * drawn + 12.0 * kernels * n**2
    if optimizer == "adam":
        signs = samples * (1e-8 * kernels + 5e-9 * n**2 + 1e-10 * kernels * n**2)
        seconds += (2 + gated) * signs + min(STREAM_SAMPLES, samples) * samples * (1e-8 + 1e-10 * n)
        kept += 3.0 * kernels * samples + drawn * n
    elif optimizer in ("polar", "muon"):
        matrices = 3 + gated + (stack.output_projection == "random")
        seconds += matrices * kernels * (4e-6 + 1e-7 * n**2 + 4e-9 * n**3)
    return seconds, kept
