"""What the theory of a first step takes, counted before anything is sampled."""

from dataclasses import replace

from theory.first_step.output_matrix import product_count
from theory.first_step.outputs import CHUNK, pattern_count, sample_count
from theory.first_step.rules import STREAM_SAMPLES
from theory.first_step.samples import SAMPLES, gaussian_sample_count
from theory.mean_field.cost import Cost, prediction_cost
from theory.stack import Stack
from theory.stack.optimizers import LINEAR, Optimizer

_NUMBER = 8
"""Bytes."""


def first_step_cost(stack: Stack, optimizer: Optimizer, patterns: int | None = None) -> Cost:
    """What `theory.first_step.prediction.first_step` takes, within a factor of three."""
    drawn = pattern_count(stack, patterns)
    n, networks = stack.rows, sample_count(stack, linear=optimizer in LINEAR, patterns=drawn)
    numbers, kernels = float(networks * n * stack.vocab), 1 if optimizer in LINEAR else networks
    looked_at = float(min(numbers, max(CHUNK, n * stack.vocab)))
    outputs = Cost(
        calls=500.0 + 60.0 * numbers / looked_at, entries=(50.0 + 30.0 * (optimizer == "adam")) * numbers,
        slow=5.0 * numbers, products=24.0 * n * numbers,
        bytes=_NUMBER * (2.0 * numbers + 9.0 * looked_at),
    )  # fmt: skip
    layer = _layer(stack, optimizer, kernels, SAMPLES // drawn)
    if stack.query_key_scale:
        layer = layer + _random_attention(stack, optimizer, kernels)
    if stack.output_transform == "added":
        outputs = outputs + _transform(stack, optimizer, numbers, SAMPLES // drawn) + layer.times(0.5)
    kept = Cost(bytes=stack.depth * layer.bytes + outputs.bytes)
    below = prediction_cost(replace(stack, query_key_scale=0.0, query_key_norm="none"))
    return (outputs + layer.times(stack.depth) + below).times(drawn) + kept


def _transform(stack: Stack, optimizer: Optimizer, numbers: float, most: int) -> Cost:
    """Signs of the output matrix behind a transform, by samples of what it is given, for a step and for its parts."""
    if optimizer != "adam":
        return Cost()
    products = 2.0 * product_count(numbers, most) * numbers
    return Cost(products=4.0 * products, entries=4.0 * products / stack.rows)


def _random_attention(stack: Stack, optimizer: Optimizer, kernels: int) -> Cost:
    """Patterns of every head on the way up, twice down, and up with tokens that move."""
    n, heads = stack.rows, stack.heads
    of_heads, draws = float(heads * n**2), 4.0
    passes = kernels * (5.0 if optimizer in LINEAR else 7.0)
    return Cost(
        calls=600.0, entries=of_heads * (25.0 * passes + 60.0 * draws), slow=of_heads,
        products=of_heads * (n * (16.0 * passes + 16.0 * draws) + 12.0 * draws * stack.key_width),
        matrices=2.0 * draws * heads if optimizer == "adam" else 4.0,
        bytes=_NUMBER * of_heads * (4.0 * kernels + 4.0 * draws),
    )  # fmt: skip


def _layer(stack: Stack, optimizer: Optimizer, kernels: int, most: int) -> Cost:
    """Both branches; what they keep of it."""
    n, samples, gated = stack.rows, gaussian_sample_count(stack.rows, most), stack.ffn == "gated"
    drawn, behind = float(samples * n), 1 + gated
    cost = Cost(
        calls=800.0, entries=(20.0 + 3.0 * behind * n) * drawn + 80.0 * kernels * n**2, slow=(3.0 + gated) * drawn,
        products=(2.0 * n + 6.0) * drawn * n + 20.0 * kernels * n**3, matrices=40.0 + samples,
        bytes=_NUMBER * (4.0 * (2 + gated) * drawn + 12.0 * kernels * n**2),
    )  # fmt: skip
    matrices = 3 + gated + (stack.output_projection == "random")
    if optimizer == "adam":
        signs = Cost(
            entries=6.0 * kernels * samples + 3.0 * drawn * n, products=2.0 * kernels * drawn * n,
            bytes=_NUMBER * (3.0 * kernels * samples + drawn * n),
        )  # fmt: skip
        across = float(min(STREAM_SAMPLES, samples) * samples)
        cost = cost + signs.times(1.0 + behind) + Cost(entries=6.0 * across, products=2.0 * across * n)
    elif optimizer in ("polar", "muon"):
        cost = cost + Cost(
            matrices=12.0 * kernels, entries=60.0 * kernels * n**2, products=80.0 * kernels * n**3
        ).times(float(matrices))
    return cost
