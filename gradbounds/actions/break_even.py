"""Where a step takes the loss back to its start, for a network too large to be stepped: from smaller ones like it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import stats
from scipy.optimize import curve_fit

from simulate.curvature.first_step import sampled_steps
from theory import Stack
from theory.first_step.cost import first_step_cost
from theory.first_step.prediction import first_step
from theory.stack.optimizers import Optimizer
from theory.stack.weights import weight_shapes

WIDTHS, DEPTHS = (64, 128, 256), (2, 4, 8)
"""Of the networks that are stepped."""

# Seconds of a step whatever its size, forward passes that as much work is as one, with those of the search, and
# multiplications and additions a second, in float64.
_OF_A_STEP, _PASSES, _SPEED = 0.15, 25.0, 4.4e9

# Coordinates of a head at least: with fewer a quarter of them has no pair to rotate.
_LEAST_HEAD = 8


def parameter_count(stack: Stack) -> int:
    """About how many numbers the matrices have."""
    return stack.width * (stack.depth * (stack.width + 2 * stack.ffn_width) + stack.vocab)


def network_seconds(stack: Stack, optimizers: int) -> float:
    """About how long one network's steps take on one core, those of an encoder and of what reads it included."""
    shapes = sum(rows * columns for rows, columns in weight_shapes(stack).values())
    encoder = (stack.encoder_depth or stack.depth) if stack.source_tokens else 0
    parameters = (stack.depth + encoder) * shapes + stack.width * stack.vocab
    rows = stack.rows + stack.source_tokens * stack.sequences
    return optimizers * (_OF_A_STEP + _PASSES * 2 * parameters * rows / _SPEED)


def scaled(stack: Stack, width: int, depth: int) -> Stack:
    """The network at another width and depth: V/d, the gains of its matrices and keys a head of values are kept.

    Heads keep their number where they have 8 coordinates then, else there are half as many, and so on; a number that
    does not divide the width is the next lower that does, and units are whole.

    Raises:
        ValueError: a field does not take that size.
    """
    share = width / stack.width
    heads, shared, head_width = stack.heads, stack.kv_heads, stack.head_width
    if head_width:
        head_width = max(_LEAST_HEAD, round(head_width * share))
    while not head_width and heads % 2 == 0 and width / heads < _LEAST_HEAD:
        heads, shared = heads // 2, max(1, shared // 2) if shared else 0
    if not head_width and width % heads:
        lower = max(count for count in range(1, heads) if width % count == 0)
        heads, shared = lower, _nearest_divisor(lower, shared * lower / heads) if shared else 0
    ratios = {
        name: max(1, round(ratio * width)) / width
        for name in ("ffn_ratio", "shared_ratio", "dense_ratio")
        if (ratio := getattr(stack, name)) and ratio * width % 1
    }
    std = stack.init_std and stack.init_std / share**0.5
    return replace(
        stack, width=width, depth=depth, vocab=max(2, round(stack.vocab * share)), heads=heads, kv_heads=shared,
        head_width=head_width, init_std=std, **ratios,
    )  # fmt: skip


def _nearest_divisor(number: int, wanted: float) -> int:
    """The divisor of a number that is nearest to another, by their ratio."""
    return min((each for each in range(1, number + 1) if number % each == 0), key=lambda each: abs(log(each / wanted)))


def _sizes(stack: Stack) -> list[tuple[int, int]]:
    """Widths and depths of the networks that are stepped, all below the network's own."""
    return [(width, depth) for depth in DEPTHS if depth <= stack.depth for width in WIDTHS if width < stack.width]


def stepping_seconds(stack: Stack, optimizers: Sequence[Optimizer], draws: int) -> float:
    """About how long `stepped` takes on one core, theory of the sizes included."""
    networks = [scaled(stack, *size) for size in _sizes(stack)]
    theory = sum(first_step_cost(network, name).seconds for network in networks for name in optimizers)
    passes = sum(_OF_A_STEP + _PASSES * 2 * parameter_count(network) * network.rows / _SPEED for network in networks)
    return theory + draws * len(optimizers) * passes


def stepped(stack: Stack, optimizers: Sequence[Optimizer], draws: int, seed: int) -> pd.DataFrame:
    """Break-even over critical rates of networks scaled like this one, one line for each draw and optimizer.

    Columns: optimizer, width, depth, draw, and ratio, of the network's break-even rate over theory's critical rate of
    networks of that size; NaN where the loss was never back at its start.

    Raises:
        ValueError: as `scaled`.
        NoRuleError: theory has no rule for the first step.
    """
    sizes, rows = _sizes(stack), []
    hidden, bar = not sys.stderr.isatty(), Console(stderr=True)
    for width, depth in track(sizes, "stepping smaller networks", disable=hidden, transient=True, console=bar):
        network = scaled(stack, width, depth)
        critical = {name: first_step(network, name).critical_rate for name in optimizers}
        for draw in range(draws):
            steps = sampled_steps(network, tuple(optimizers), seed=seed + draw)
            rows += [
                {"optimizer": name, "width": width, "depth": depth, "draw": draw}
                | {"ratio": steps[name].break_even_rate / critical[name]}
                for name in optimizers
            ]
    return pd.DataFrame(rows)


def extrapolated(table: pd.DataFrame, stack: Stack) -> pd.DataFrame:
    """The ratio at the size of a network, by optimizer, as powers of d and L go on.

    Columns: optimizer, networks (that came back to their loss), ratio (geometric mean), low and high (its 95% interval,
    which holds what draws and powers are uncertain by, and not that the powers may change), and of each size that
    varies its power and standard error, such as power_width and sem_width.
    """
    rows = []
    for optimizer, steps in table.dropna(subset="ratio").groupby("optimizer", sort=False):
        varying = [name for name in ("width", "depth") if steps[name].nunique() > 1]
        apart = np.log(steps[varying].to_numpy(float).T / [[getattr(stack, name)] for name in varying])

        def law(apart: NDArray[np.float64], *numbers: float) -> NDArray[np.float64]:
            return np.asarray(numbers[0] + np.asarray(numbers[1:]) @ apart)

        fit, covariance = curve_fit(law, apart, np.log(steps["ratio"]), p0=np.zeros(1 + len(varying)))
        errors = np.sqrt(np.diag(covariance))
        half = float(stats.t.ppf(0.975, len(steps) - len(fit))) * errors[0]
        low, ratio, high = np.exp(fit[0] + half * np.array([-1.0, 0.0, 1.0]))
        row = {"optimizer": optimizer, "networks": len(steps), "ratio": ratio, "low": low, "high": high}
        for name, power, error in zip(varying, fit[1:], errors[1:], strict=True):
            row |= {f"power_{name}": power, f"sem_{name}": error}
        rows.append(row)
    return pd.DataFrame(rows)


def break_even_lines(table: pd.DataFrame, ends: pd.DataFrame, critical: Mapping[str, float]) -> list[str]:
    """What was found in words, of the table of networks, its extrapolation, and critical rates by optimizer."""
    d, depth = table["width"], table["depth"]
    networks = len(table) // table["optimizer"].nunique()
    lines = [
        "",
        f"Break-even rates, from {networks} networks scaled like this one, of d = {d.min()} to {d.max()} and "
        f"L = {depth.min()} to {depth.max()}, if powers of d and L go on:",
    ]
    for row in ends.itertuples():
        powers = [
            f"{symbol}^{getattr(row, f'power_{name}'):.2f} (+- {getattr(row, f'sem_{name}'):.2f})"
            for name, symbol in (("width", "d"), ("depth", "L"))
            if hasattr(row, f"power_{name}")
        ]
        lines.append(
            f"{row.optimizer}: {row.ratio * critical[row.optimizer]:.2g}, which is {row.ratio:.2g} times the critical "
            f"rate (95%: {row.low:.2g} to {row.high:.2g}); the ratio goes like {' '.join(powers)}"
        )
    lost = table.groupby("optimizer", sort=False)["ratio"].apply(lambda ratio: int(ratio.isna().sum()))
    return lines + [f"{name}: {count} never came back to their loss." for name, count in lost.items() if count]
