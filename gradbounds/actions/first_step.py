"""`gradbounds predict --first-step`: rates of the first step of training, in theory and in networks."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from checks.first_step import FirstStep, first_step
from figures.first_step import first_step_rates
from gradbounds.grid import FIELDS, said, with_words
from gradbounds.result import Result
from simulate.counts import check_count
from simulate.curvature.first_step import Measured, sampled_steps
from theory import NoRuleError, Stack
from theory.first_step.noise_scale import noise_scale
from theory.stack import TITLES

# Parameters of a network whose step is measured: beyond, Jacobian products in float64 do not fit into usual memory.
_LARGEST = 2e8


def first_steps(
    stacks: Sequence[Stack], optimizers: Sequence[str], *, draws: int | None = None, seed: int = 0
) -> Result:
    """Rates of the first step of every network and optimizer, in theory and, where draws are asked for, in networks.

    Returns:
        Table and, of several widths or depths, figure `first_step`.

    Raises:
        ValueError: an argument is outside its range, or a network is too large to be stepped.
    """
    if draws is not None:
        check_count("draws", draws, 2)  # one draw has no error
        _check_sizes(stacks)
    check_count("seed", seed, 0)
    optimizers = tuple(dict.fromkeys(optimizers))
    rows: list[dict[str, Any]] = []
    shown = sys.stderr.isatty()
    bar = Console(stderr=True)
    for stack in track(stacks, description="stepping", disable=not shown, transient=True, console=bar):
        sampled = [] if draws is None else [sampled_steps(stack, optimizers, seed=seed + k) for k in range(draws)]
        scale = _noise_scale(stack)
        rows += [
            _row(stack, optimizer, [step[optimizer] for step in sampled]) | {"noise_scale": scale}
            for optimizer in optimizers
        ]
    table = pd.DataFrame(rows)
    several = max(table["width"].nunique(), table["depth"].nunique()) > 1
    return Result(
        about=f"first steps of {len(stacks)} networks",
        tables={"first_step": table},
        lines=[*_lines(table), *_exponents(table)],
        figures={"first_step": partial(first_step_rates, table)} if several else {},
    )


def _check_sizes(stacks: Sequence[Stack]) -> None:
    for stack in stacks:
        size = stack.width * (stack.depth * (stack.width + 2 * stack.ffn_width) + stack.vocab)
        if size > _LARGEST:
            raise ValueError(
                f"draws must be left out for networks of more than {_LARGEST:g} parameters, got width {stack.width} "
                f"and depth {stack.depth}."
            )


def _row(stack: Stack, optimizer: str, sampled: Sequence[Measured]) -> dict[str, Any]:
    """One line of the table: theory, or why there is none, and what networks do."""
    row = asdict(stack) | {"optimizer": optimizer}
    try:
        step: FirstStep | None = first_step(stack, optimizer)  # type: ignore[arg-type]
        reason = ""
    except NoRuleError as error:
        step, reason = None, str(error)
    for name in (
        "critical_rate", "critical_rate_sem", "gain", "curvature", "logit_change_sq", "implied_error",
    ):  # fmt: skip
        row[name] = float("nan") if step is None else getattr(step, name)
    row["most_of_the_gain"] = "" if step is None else _largest_share(step)
    row["no_rule"] = reason
    row["no_coefficient"] = "" if step is None else step.no_coefficient
    gain, curvature, ends = (
        np.array([getattr(measured, name) for measured in sampled]) for name in ("gain", "curvature", "break_even_rate")
    )
    rate = 2 * gain.mean() / curvature.mean() if len(sampled) else float("nan")
    row["sampled_rate"] = rate
    # A ratio of means, to first order in their errors.
    row["sampled_sem"] = (
        float(np.std(2 * gain - rate * curvature, ddof=1) / len(sampled) ** 0.5 / curvature.mean())
        if len(sampled)
        else float("nan")
    )
    row["break_even_rate"] = float(np.nanmedian(ends)) if np.isfinite(ends).any() else float("nan")
    row["draws"] = len(sampled)
    return row


def _noise_scale(stack: Stack) -> float:
    """In sequences; NaN without a rule."""
    try:
        return noise_scale(stack).whole
    except NoRuleError:
        return float("nan")


def _largest_share(step: FirstStep) -> str:
    """The matrix that has the most of the gain, and its share, as "W2 of layer 6, 21%"."""
    shares = {
        (role, layer): float(value)
        for role, values in step.gain_shares.items()
        for layer, value in enumerate(np.atleast_1d(values), start=1)
    }
    (role, layer), share = max(shares.items(), key=lambda item: item[1])
    return f"{role}{'' if role == 'Wemb' else f' of layer {layer}'}, {100 * share:.0f}%"


def _varying(table: pd.DataFrame) -> list[str]:
    """Fields other than the placement that tell networks apart; width and depth always."""
    fields = [name for name in FIELDS if name != "placement" and name in table]
    return [name for name in fields if name in ("width", "depth") or table[name].nunique(dropna=False) > 1]


def _lines(table: pd.DataFrame) -> list[str]:
    varying, has_draws = _varying(table), bool((table["draws"] > 0).any())
    named = with_words(table)
    shown = pd.DataFrame({"placement": [TITLES[name] for name in table["placement"]]} | {n: named[n] for n in varying})
    shown["optimizer"] = table["optimizer"]
    shown["critical rate"] = [_number(value) for value in table["critical_rate"]]
    shown["off by up to"] = [
        f"{100 * error:.2g}%" + (" or more" if why else "") if np.isfinite(error) else "-"
        for error, why in zip(table["implied_error"], table["no_coefficient"], strict=True)
    ]
    if has_draws:
        shown["networks"] = [
            f"{rate:.3g} +- {sem:.1g}" for rate, sem in zip(table["sampled_rate"], table["sampled_sem"], strict=True)
        ]
        shown["ratio"] = [_number(value) for value in table["sampled_rate"] / table["critical_rate"]]
        shown["break-even"] = [_number(value) for value in table["break_even_rate"]]
    shown["most of the gain"] = table["most_of_the_gain"]
    shown["noise scale"] = [_number(value) for value in table["noise_scale"]]
    lines = [
        "Critical rate of the first step, 2 g.u/u'Gu: where the loss with the Gauss-Newton matrix is back at its start."
    ]
    if has_draws:
        draws = int(table["draws"].max())
        lines.append(
            f"Networks: ratios of means of {draws}; break-even: medians of the rates where their loss is back."
        )
    lines.append("Off by up to: the order of what finite width does to the curvature, and so to the rate.")
    lines.append("Noise scale: the batch, in sequences, above which a larger one helps little (theory).")
    lines += ["", *shown.to_string(index=False).splitlines()]
    lines += [f"\nMore is not known of finite width: {why}." for why in dict.fromkeys(table["no_coefficient"]) if why]
    lines += [f"\nTheory has no rule: {reason}" for reason in dict.fromkeys(table["no_rule"]) if reason]
    return lines


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def _exponents(table: pd.DataFrame) -> list[str]:
    """Theory's exponents in d at the least depth and in L at the greatest width, between the ends of what there is."""
    lines = []
    for against, symbol, other, end in (("width", "d", "depth", "min"), ("depth", "L", "width", "max")):
        others = ["placement", "optimizer", *(name for name in _varying(table) if name != against)]
        if against == "width" and (table["vocab"] / table["width"]).nunique() == 1:
            others = [name for name in others if name != "vocab"]
        for _, rows in table[table[other] == table[other].agg(end)].groupby(others, sort=False, dropna=False):
            ends = rows.sort_values(against).iloc[[0, -1]]
            first, last = ends["critical_rate"]
            if ends[against].nunique() < 2 or not np.isfinite([first, last]).all():
                continue
            low, high = ends[against]
            slope = np.log(last / first) / np.log(high / low)
            where = ", ".join(f"{name} {said(name, ends[name].iloc[0])}" for name in others[2:])
            lines.append(
                f"{TITLES[ends['placement'].iloc[0]]}, {ends['optimizer'].iloc[0]}, {where}: "
                f"{symbol}^{slope:.2f} over {symbol} = {low} to {high}"
            )
    return ["", "Exponents of theory's critical rates:", *lines] if lines else []
