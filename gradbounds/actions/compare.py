"""The view `gradbounds predict --compare` of a model: step 1 before and after a change, for the same batch of text."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gradbounds.actions.batch import DISTINCT, Asked, law_of, quick_batch
from gradbounds.actions.card import BATCH, RATES, at_context, critical_rates
from gradbounds.actions.first_line import ZIPF, quick_cost
from gradbounds.actions.remedies import as_flags, changes_of, effect
from gradbounds.budget import OverBudgetError, by_estimates
from gradbounds.described_network import Description, changed_values, variants
from gradbounds.layer_summary import first_over_last, role
from gradbounds.plain_text import table_lines
from gradbounds.progress import shown
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from simulate.threads import one_numpy_thread
from theory import NoRuleError, Stack
from theory.configurations import context, model_type
from theory.first_step.batch_step import LEAST_MEASURED, seconds_of
from theory.mean_field.tied.text_output import LARGEST_OWN_PROBABILITY, OwnTokenError

_DIFFER = "tokens that all differ"
_TEXTS = {None: _DIFFER, DISTINCT: _DIFFER, "english": "English text", ZIPF: "Zipf's law"}

_ENDS = ", first / last layer"


def compare_steps(
    given: Mapping[str, Any], of: Description, compare: Sequence[str], batch: int | None, text: str | None,
    *, plan: bool = False, **limits: Any,
) -> Result | None:  # fmt: skip
    """Predict step 1 of a network and of changed networks for one batch; None if its text lacks a rule.

    Without a change, the result lists all changes that the card can advise, without critical rates.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
    """
    stack, notes = of.read(given)
    asked = at_context(given, of, given.get("tokens") or context(notes) or stack.tokens, limits, text)
    whole, asked = of.read(asked.given)[0], replace(asked, is_default=False)
    sequences = (1 if asked.text is None else BATCH) if batch is None else batch
    if asked.text is None and of.is_model and batch is None:
        if compare:
            return None
        whole, asked = stack, Asked(given, None)
    check_count("batch", sequences, 1)
    is_list, compare = not compare, compare or _changes(whole, quick_batch(asked, sequences, of, **limits), asked, of)
    each = {(): asked} | {
        key: replace(asked, given={**asked.given, **changed_values(key)}) for key in variants(compare)
    }
    stacks = [of.read(variant.given)[0] for variant in each.values()]
    seconds = sum(quick_cost(stack, law_of(stack, asked.text), limits["patterns"]) for stack in stacks)
    seconds += len(RATES) * sum(map(seconds_of, stacks)) * (not is_list)
    of_text = _TEXTS.get(asked.text, f"text {asked.text}")
    lengths = " and ".join(str(tokens) for tokens in dict.fromkeys(stack.tokens for stack in stacks))
    at = f"{sequences} sequence{'s' * (sequences > 1)} of {lengths} token{'s' * (lengths != '1')}, {of_text}"
    if plan:
        takes = f"Comparing {len(each)} networks takes about {duration(seconds)}, for {at}."
        return Result(about="the cost of a comparison", values={"seconds": seconds}, lines=[takes])
    with shown(f"comparing {len(each)} networks", seconds), by_estimates(), one_numpy_thread():
        steps = [_step(variant, sequences, of, limits, rates=not is_list) for variant in each.values()]
    (before, why), *others = steps
    if not before and not any(numbers for numbers, _ in others):
        raise ValueError(f"{why}; --text {DISTINCT} compares networks for {_DIFFER}.")
    lines = [f"Step 1 of {of.like or model_type(notes) or 'the network'}, for {at}, before and after the change"]
    if is_list:
        lines = [lines[0].replace("the change", "a change of one setting"), "", *_list([*each], steps)]
    else:
        lines += _tables(
            [*each][1:], steps, asked, batch=f"{f' --text {text}' * (text is not None)} --batch {sequences}"
        )
    compared = [{"stack": changed, "numbers": numbers, "unknown": reason or None}
                for changed, (numbers, reason) in zip(stacks[1:], others, strict=True)]  # fmt: skip
    values = {"stack": whole, "batch": sequences, "text": asked.text, "numbers": before, "unknown": why or None}
    return Result(
        about=f"step 1 of {len(each)} networks, for {at}", values=values | {"compared": compared}, lines=lines
    )


def _changes(stack: Stack, run: Result, asked: Asked, of: Description) -> list[str]:
    """Return all changes that the card can advise, in the form that the flag `--compare` takes."""
    words = []
    for _, values in changes_of(stack, run.columns("layers")):
        with suppress(ValueError):  # no such network
            of.read({**asked.given, **values})
            words += ["+", *as_flags(values)]
    return words


def _tables(
    each: Sequence[Sequence[str]], steps: Sequence[tuple[Mapping[str, float], str]], asked: Asked, batch: str
) -> list[str]:
    """Return a table for each change, and the flags for finer critical rates of the last one."""
    lines, ((before, why), *others) = list[str](), steps
    for changes, (after, reason) in zip(each, others, strict=True):
        rows = [_row(name, before, after) for name in dict.fromkeys([*before, *after])]
        lines += [
            "",
            *table_lines(["", "before", " ".join(changes), "after / before"], rows),
            *(f"  unknown {when} the change: {word}" for when, word in (("before", why), ("after", reason)) if word),
        ]
    if asked.text not in (None, DISTINCT) and not reason:
        parts = (change.partition("=") for change in changes)
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, _, value in parts)
        lines += [
            "", "The error of these critical rates, and a warm-up: replace --compare by",
            f"  {flags}{batch} --learning-rate 1e-4",
        ]  # fmt: skip
    return lines


def _list(each: Sequence[Sequence[str]], steps: Sequence[tuple[Mapping[str, float], str]]) -> list[str]:
    # Return a row for each change: its loss, its gradient norm, and its most uneven matrices either way.
    words = [" ".join(changes) or "none" for changes in each]
    widest, names = max(map(len, words)), ("loss", "gradient norm")
    ratios = [{n.removesuffix(_ENDS): each for n, each in of.items() if n.endswith(_ENDS)} for of, _ in steps]
    return [
        f"  {'change':{widest}}     loss     norm  layers: gradient norm of the first / the last (1x = equal)",
        *[
            f"  {word:{widest}}  {'  '.join(f'{of[name]:7.4g}' if name in of else 'unknown' for name in names)}  "
            + (effect(ratios[0], after) if after else why.partition(", above")[0] or "-")
            for word, (of, why), after in zip(words, steps, ratios, strict=True)
        ],
        *["", "-: one layer has no ratio of the first to the last layer"] * (not any(ratios)),
        "", "Every number of one change, and its critical rates: --compare CHANGE",
    ]  # fmt: skip


def _step(
    asked: Asked, batch: int, of: Description, limits: Mapping[str, Any], *, rates: bool
) -> tuple[dict[str, float], str]:
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
    numbers |= {f"{role(name)}{_ENDS}": ratio for name, ratio in ratios}
    if not rates:
        return numbers, ""
    if asked.text is None or law_of(stack, asked.text) is None:
        return numbers, "critical rates, which require a text: --text english"
    critical = critical_rates(stack, asked.text, result, fine=True)
    if "no_rule" in critical:
        return numbers, f"critical rates: {re.sub(r'^unknown[:,] ', '', critical['no_rule'])}"
    numbers |= {f"critical rate, {title}": critical[name]["rate"] for name, title in RATES.items()}
    # Where embeddings are large, sampled networks have up to 1.9 times smaller rates (`LEAST_MEASURED`).
    return numbers, "the error of critical rates, which are extrapolated" * (critical["kernel_scale"] < LEAST_MEASURED)


def _row(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    # Returns a row of the table: the number before and after, and the ratio, or the difference of losses.
    digits = 2 if name.startswith("critical") else 4  # as many as their errors allow
    texts = [f"{numbers[name]:.{digits}g}" if name in numbers else "unknown" for numbers in (before, after)]
    if name not in before or name not in after:
        return [name, *texts, ""]
    times = f"{float(f'{after[name] / before[name]:.{min(digits, 3)}g}'):,g}x"
    change = f"{after[name] - before[name]:+z.3f}" if name == "loss" else times
    return [name, *texts, change]
