"""The view `gradbounds predict --compare` of a model: step 1 before and after a change, for the same batch of text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradbounds.actions.batch import DISTINCT, Asked, law_of, quick_batch
from gradbounds.actions.card import BATCH, RATES, at_context, critical_rates
from gradbounds.actions.first_line import ZIPF, cost_of_batch, quick_sampling
from gradbounds.budget import OverBudgetError, by_estimates
from gradbounds.described_network import Description, changed_values, variants
from gradbounds.layer_summary import first_over_last, role
from gradbounds.plain_text import table_lines
from gradbounds.progress import shown
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from theory import NoRuleError, Stack
from theory.configurations import context, model_type
from theory.mean_field.text_law import TextLaw
from theory.mean_field.tied.text_output import LARGEST_OWN_PROBABILITY, OwnTokenError

_DIFFER = "tokens that all differ"
_TEXTS = {None: _DIFFER, DISTINCT: _DIFFER, "english": "English text", ZIPF: "Zipf's law"}

# Seconds of the critical rates of one network, at most.
_RATE_SECONDS = 2.0


def compare_steps(
    given: Mapping[str, Any], of: Description, compare: Sequence[str], batch: int | None, text: str | None,
    *, plan: bool = False, **limits: Any,
) -> Result | None:  # fmt: skip
    """Predict step 1 of a network and of changed networks for one batch; None if its text lacks a rule.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
    """
    stack, notes = of.read(given)
    asked = at_context(given, of, given.get("tokens") or context(notes) or stack.tokens, limits, text)
    if asked.text is None and of.is_model and batch is None:
        return None
    whole, asked = of.read(asked.given)[0], replace(asked, is_default=False)
    sequences = BATCH if batch is None else batch
    check_count("batch", sequences, 1)
    each = {(): asked} | {
        key: replace(asked, given={**asked.given, **changed_values(key)}) for key in variants(compare)
    }
    stacks = [of.read(variant.given)[0] for variant in each.values()]
    seconds = sum(_seconds(stack, law_of(stack, asked.text), limits["patterns"]) for stack in stacks)
    of_text = _TEXTS.get(asked.text, f"text {asked.text}")
    lengths = " and ".join(str(tokens) for tokens in dict.fromkeys(stack.tokens for stack in stacks))
    at = f"{sequences} sequence{'s' * (sequences > 1)} of {lengths} tokens, {of_text}"
    if plan:
        takes = f"Comparing {len(each)} networks takes about {duration(seconds)}, for {at}."
        return Result(about="the cost of a comparison", values={"seconds": seconds}, lines=[takes])
    with shown(f"comparing {len(each)} networks", seconds), by_estimates():
        (before, why), *others = (_step(variant, sequences, of, limits) for variant in each.values())
    if not before and not any(numbers for numbers, _ in others):
        raise ValueError(f"{why}; --text {DISTINCT} compares networks for {_DIFFER}.")
    lines = [f"Step 1 of {of.like or model_type(notes) or 'the network'}, for {at}, before and after the change"]
    for changes, (after, reason) in zip([*each][1:], others, strict=True):
        rows = [_row(name, before, after) for name in dict.fromkeys([*before, *after])]
        lines += [
            "",
            *table_lines(["", "before", " ".join(changes), "after / before"], rows),
            *(f"  unknown {when} the change: {word}" for when, word in (("before", why), ("after", reason)) if word),
        ]
    if asked.text not in (None, DISTINCT) and not reason:
        flags = " ".join(
            f"--{name.replace('_', '-')} {value}" for name, _, value in (c.partition("=") for c in changes)
        )
        flags += f" --text {text}" * (text is not None)
        lines += [
            "", "The critical rates above are quick estimates, not compared with samples. Finer ones of the changed",
            "network, which can be far lower: replace --compare by",
            f"  {flags} --batch {sequences} --learning-rate 1e-4",
        ]  # fmt: skip
    compared = [{"stack": changed, "numbers": numbers, "unknown": reason or None}
                for changed, (numbers, reason) in zip(stacks[1:], others, strict=True)]  # fmt: skip
    values = {"stack": whole, "batch": sequences, "text": asked.text, "numbers": before, "unknown": why or None}
    return Result(
        about=f"step 1 of {len(each)} networks, for {at}", values=values | {"compared": compared}, lines=lines
    )


def _seconds(stack: Stack, law: TextLaw | None, patterns: int | None) -> float:
    """Estimate the seconds of one network's numbers: of its batch, and at most those of the critical rates."""
    patterns, coarse = quick_sampling(stack, law, patterns)
    return cost_of_batch(stack, law, patterns, coarse=coarse)[0].seconds + _RATE_SECONDS


def _step(asked: Asked, batch: int, of: Description, limits: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """Return the numbers of step 1 by name, and the reason for numbers that are unknown."""
    stack = of.read(asked.given)[0]
    try:
        result = quick_batch(asked, batch, of, **limits)
    except OwnTokenError as error:
        most = f"{LARGEST_OWN_PROBABILITY:g}, the most for which theory has gradients"
        return {"loss": error.loss}, (
            f"the tied network predicts its own input token with probability {error.probability:.2f}, above {most}"
        )
    except OverBudgetError as error:
        return {}, str(error)
    except NoRuleError as error:
        return {}, str(error).partition(", got ")[0]
    ratios = first_over_last(result.columns("layers")).items()
    numbers = {"loss": result.values["loss"], "gradient norm": result.values["gradient_norm"]}
    numbers |= {f"{role(name)}, first / last layer": ratio for name, ratio in ratios}
    if asked.text is None or law_of(stack, asked.text) is None:
        return numbers, "critical rates, which require a text: --text english"
    rates = critical_rates(stack, asked.text, result)
    if "no_rule" in rates:
        return numbers, f"critical rates: {re.sub(r'^unknown[:,] ', '', rates['no_rule'])}"
    return numbers | {f"critical rate, {title}": rates[name]["rate"] for name, title in RATES.items()}, ""


def _row(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return a row of the table: the number before and after, and the ratio, or the difference of losses."""
    texts = [f"{numbers[name]:.4g}" if name in numbers else "unknown" for numbers in (before, after)]
    if name not in before or name not in after:
        return [name, *texts, ""]
    change = f"{after[name] - before[name]:+z.3f}" if name == "loss" else f"{after[name] / before[name]:.3g}x"
    return [name, *texts, change]
