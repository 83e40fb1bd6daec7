"""The view `gradbounds predict --first-step`: the critical learning rate of step 1, predicted and measured."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from checks.first_step import FirstStep, first_step
from checks.trust import NUMBERS
from gradbounds.actions.first_step_cost import cost_within, network_seconds, parameter_count
from gradbounds.actions.plan import batch_text, planned
from gradbounds.budget import Budget
from gradbounds.described_network import Description
from gradbounds.grid import FIELDS, said, with_words
from gradbounds.network_text import drawn_lines, note_lines
from gradbounds.progress import shown
from gradbounds.result import Result
from gradbounds.units import TORCH, duration
from simulate.counts import check_count
from simulate.curvature.first_step import Measured, sampled_steps
from theory import NoRuleError, Stack
from theory.configurations import Note, drawn_by
from theory.configurations.comparisons import compared_step
from theory.configurations.training_codes import HUGGING_FACE
from theory.configurations.vectors import logit_multiplier
from theory.coverage import gaps
from theory.mean_field.cost import Cost
from theory.stack import TITLES
from theory.stack.optimizers import NAMES, Optimizer

# Parameters of a network whose own step is measured: beyond, Jacobian products in float64 do not fit into usual memory.
_LARGEST = 2e8


# The way to measure what theory has no rule for.
_SAMPLE = ["\n--draws 4 measures step 1 in sampled networks without a rule."]


def first_steps(
    stacks: Sequence[Stack], optimizers: Sequence[Optimizer], *, draws: int | None = None, seed: int = 0,
    patterns: int | None = None, notes: Sequence[Note] = (), max_time: str | None = None, memory: str | None = None,
    plan: bool = False,
) -> Result:  # fmt: skip
    """Predict the critical learning rate of step 1 of networks; on request, measure it in sampled networks.

    Args:
        stacks: the networks.
        optimizers: optimizers whose first step is predicted.
        draws: random networks to sample for each network; None for none.
        seed: seed of the first sampled network.
        patterns: number of attention samples if attention is random; 4 to 16 if None.
        notes: notes on the first network's configuration.
        max_time: limit on theory's time for all networks, such as "90s"; one minute by the estimate if None.
        memory: limit on theory's estimated memory, such as "4GB", the value for None.
        plan: whether to only estimate time and memory.

    Returns:
        Table `first_step`; for a plan, seconds and bytes.

    Raises:
        ValueError: an argument is outside its range.
        NoRuleError: the configuration has a factor on the output logits.
        OverBudgetError: theory would take more than it may.
    """
    if logit_multiplier(notes) != 1.0:
        raise NoRuleError("--first-step has no rule for a factor on the output logits; --learning-rate R has one.")
    budget, optimizers = Budget.of(max_time, memory), tuple(dict.fromkeys(optimizers))
    for name, count, least in (("draws", draws, 2), ("seed", seed, 0)):  # one draw has no error
        if count is not None:
            check_count(name, count, least)
    cost = cost_within(stacks, optimizers, budget, patterns)
    counts = [0 if gaps(stack, "sampled_step") or _is_large(stack) else draws or 0 for stack in stacks]
    of_networks = sum(k * network_seconds(stack, len(optimizers)) for stack, k in zip(stacks, counts, strict=True))
    whole = Cost(cost.seconds + of_networks, cost.bytes + TORCH)
    if plan:
        names, (first, *_) = ", ".join(NAMES[name] for name in optimizers), stacks
        what = f"critical learning rates of {names}; networks: {len(stacks)}"
        lines = [f"  of these  about {duration(of_networks)} for sampled networks"] * bool(of_networks)
        at = batch_text(first.sequences, first.tokens, None)
        return planned((first, notes, Description()), at, what, whole, *lines)
    with shown("predicting the first step", whole):
        rows = _stepped(list(zip(stacks, counts, strict=True)), optimizers, seed, patterns)
    return Result(
        about=f"first steps of {len(stacks)} networks", tables={"first_step": rows},
        values={"notes": tuple(notes), "drawn_by": drawn_by(notes)},
        lines=[
            *drawn_lines(notes), *table_lines(rows), *exponent_lines(rows),
            *(comparison_lines(notes, optimizers, stacks[0]) if drawn_by(notes) == HUGGING_FACE else []),
            *(_not_sampled(stacks) if draws else _SAMPLE * any(rows["no_rule"])), *note_lines(notes),
        ],
    )  # fmt: skip


def _stepped(
    every: Sequence[tuple[Stack, int]], optimizers: tuple[Optimizer, ...], seed: int, patterns: int | None
) -> pd.DataFrame:
    # Return a row for every network and optimizer, with measurements in the given number of sampled networks.
    rows: list[dict[str, Any]] = []
    for stack, count in every:
        sampled = [sampled_steps(stack, optimizers, seed=seed + k) for k in range(count)]
        rows += [_row(stack, optimizer, [step[optimizer] for step in sampled], patterns) for optimizer in optimizers]
    return pd.DataFrame(rows)


def _is_large(stack: Stack) -> bool:
    # Return whether a network has too many parameters to measure its step.
    return parameter_count(stack) > _LARGEST


def _row(stack: Stack, optimizer: Optimizer, sampled: Sequence[Measured], patterns: int | None) -> dict[str, Any]:
    # Return one row of the table: theory's numbers, or why there are none, and measurements in sampled networks.
    row = asdict(stack) | {"optimizer": optimizer}
    by_name = ("critical_rate", "critical_rate_sem", "gain", "curvature", "logit_change_sq", "implied_error")
    row |= dict.fromkeys((*by_name, *(f"{name}_error" for name in NUMBERS)), float("nan"))
    row |= {"most_of_the_gain": "", "most_of_the_curvature": "", "relative_updates": "", "update_ratio": float("nan")}
    row |= {"no_rule": "", "no_coefficient": ""}
    try:
        step = first_step(stack, optimizer, patterns=patterns)
    except NoRuleError as error:
        row["no_rule"] = str(error)
    else:
        row |= {name: getattr(step, name) for name in (*by_name, "no_coefficient")}
        row |= {f"{name}_error": step.implied_errors[name] for name in NUMBERS}
        updates = [value for value in _by_matrix(step.relative_updates).values() if value > 0]
        row |= {
            "most_of_the_gain": _largest(step.gain_shares), "relative_updates": _updates(step),
            "most_of_the_curvature": _largest(step.curvature_shares), "update_ratio": max(updates) / min(updates),
        }  # fmt: skip
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


def _not_sampled(stacks: Sequence[Stack]) -> list[str]:
    # State which networks are not sampled and stepped, and why.
    reasons = {gap.networks: gap.because for stack in stacks for gap in gaps(stack, "sampled_step")}
    return [
        *(f"\nNot sampled are networks with {networks} ({because})." for networks, because in reasons.items()),
        *[f"\nNetworks of more than {_LARGEST:.0e} parameters are not stepped."] * any(map(_is_large, stacks)),
    ]


def _by_matrix(numbers: Mapping[str, Any]) -> dict[str, float]:
    # Return numbers by names such as "W2 of layer 6".
    return {
        role if role in ("Wemb", "WH") else f"{role} of layer {layer}": float(value)
        for role, values in numbers.items()
        for layer, value in enumerate(np.atleast_1d(values), start=1)
    }


def _largest(shares: Mapping[str, Any]) -> str:
    # Return the matrix with the largest share, and this share, as "W2 of layer 6, 21%".
    name, share = max(_by_matrix(shares).items(), key=lambda item: item[1])
    return f"{name}, {100 * share:.0f}%"


def _updates(step: FirstStep) -> str:
    # Return by role the learning rate multipliers that give every matrix the geometric mean of relative updates.
    logs = {name: np.log(value) for name, value in _by_matrix(step.relative_updates).items() if value > 0}
    mean, parts = float(np.mean(list(logs.values()))), []
    for role in step.relative_updates:
        multipliers = [np.exp(mean - value) for name, value in logs.items() if name.partition(" ")[0] == role]
        if multipliers:
            low, high = min(multipliers), max(multipliers)
            parts.append(f"{role} {low:.2g}" + (f" to {high:.2g}" if high > 1.05 * low else ""))
    return ", ".join(parts)


# Fields of which every table has a column.
_ALWAYS = ("width", "depth", "tokens")


def _varying(table: pd.DataFrame) -> list[str]:
    """Return the fields other than the placement that differ between networks, and always width, depth and tokens."""
    fields = [name for name in FIELDS if name != "placement" and name in table]
    return [name for name in fields if name in _ALWAYS or table[name].nunique(dropna=False) > 1]


def table_lines(table: pd.DataFrame) -> list[str]:
    """Return the table of first optimizer steps as text, with a legend and the reasons for missing numbers."""
    varying, has_draws = _varying(table), bool((table["draws"] > 0).any())
    named = with_words(table)
    shown = pd.DataFrame({"placement": [TITLES[name] for name in table["placement"]]} | {n: named[n] for n in varying})
    shown["optimizer"] = table["optimizer"].map(NAMES)
    shown["critical rate"] = [_number(value) for value in table["critical_rate"]]
    shown["off by up to"] = [
        f"{100 * error:.2g}%" + (" or more" if why else "") if np.isfinite(error) else "-"
        for error, why in zip(table["critical_rate_error"], table["no_coefficient"], strict=True)
    ]
    if has_draws:
        pairs = zip(table["sampled_rate"], table["sampled_sem"], strict=True)
        shown["networks"] = [f"{rate:.3g} +- {sem:.1g}" if np.isfinite(rate) else "-" for rate, sem in pairs]
        shown["ratio"] = [_number(value) for value in table["sampled_rate"] / table["critical_rate"]]
        shown["break-even"] = [_number(value) for value in table["break_even_rate"]]
    shown["most of the gain"] = table["most_of_the_gain"]
    shown["most of the curvature"] = table["most_of_the_curvature"]
    shown["updates"] = [_number(value) for value in table["update_ratio"]]
    tokens = " or ".join(map(str, dict.fromkeys(table["tokens"])))
    of_batch = batch_text(int(table["sequences"].max()), tokens, None)
    lines = [
        f"Step 1 of {of_batch}."
        + " A batch of text has other critical rates: --batch 64 --learning-rate R." * ("" in [*table["no_rule"]]),
        "critical rate: learning rate above which step 1 raises the quadratic (Gauss-Newton) loss, 2 g.u/u'Gu.",
    ]
    if has_draws:
        draws = int(table["draws"].max())
        lines.append(
            f"networks: critical rate from means over {draws} sampled networks; break-even: median learning "
            "rate at which "
            "step 1 leaves their loss unchanged."
        )
    lines.append("off by up to: largest expected error of the critical rate at this width.")
    lines += [
        "updates: largest / smallest relative update |u_W|/|W| over the matrices.",
        "",
        *shown.to_string(index=False).splitlines(),
    ]
    even = {(row.optimizer, row.relative_updates): row for row in table.itertuples() if row.relative_updates}
    if even:
        lines += [
            "",
            "Multipliers of the learning rate that give all matrices the same relative update:",
            *(f"{TITLES[row.placement]}, {NAMES[optimizer]}: {said_so}" for (optimizer, said_so), row in even.items()),
        ]
    return [
        *lines,
        *(f"\nThe error at this width is not known: {why}." for why in dict.fromkeys(table["no_coefficient"]) if why),
        *(f"\nTheory has no rule: {reason}" for reason in dict.fromkeys(table["no_rule"]) if reason),
    ]


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def exponent_lines(table: pd.DataFrame) -> list[str]:
    """Return lines with the exponents of the predicted critical learning rate in the width d and in the depth L."""
    lines = []
    for against, symbol, other, end in (("width", "d", "depth", "min"), ("depth", "L", "width", "max")):
        others = ["placement", "optimizer", *(name for name in _varying(table) if name != against)]
        if table["tokens"].nunique() == 1:
            others.remove("tokens")
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
                f"{TITLES[ends['placement'].iloc[0]]}, {NAMES[ends['optimizer'].iloc[0]]}, {where}: "
                f"{symbol}^{slope:.2f} from {symbol} = {low} to {high}"
            )
    return ["", "Exponents of the predicted critical rates:", *lines] if lines else []


def comparison_lines(notes: Sequence[Note], optimizers: Sequence[Optimizer], stack: Stack) -> list[str]:
    """State how predicted first steps compare with measured steps of the model's own PyTorch class."""
    sentences = [
        compared_step(str(note.value), optimizer, stack.embeddings)
        for note in notes
        if note.field == "model_type"
        for optimizer in optimizers
    ]
    return ["", *filter(None, sentences)] if any(sentences) else []
