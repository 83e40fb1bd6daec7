"""The view `gradbounds predict --compare` of a model: step 1 before and after a change, for the same batch of text."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from gradbounds.actions.batch import Asked, law_of, quick_batch
from gradbounds.actions.card import BATCH, RATES, at_context, critical_rates
from gradbounds.actions.first_line import COARSE, quick_cost
from gradbounds.actions.plan import DISTINCT, batch_text, planned
from gradbounds.actions.remedies import (
    EVEN,
    LESS_EVEN,
    SKIPPED,
    Option,
    as_flags,
    changes_of,
    code_of,
    effect,
    is_rounded_away,
    option_of,
)
from gradbounds.budget import Budget, OverBudgetError, by_estimates, each_once
from gradbounds.described_network import Description, changed_values, variants
from gradbounds.layer_summary import (
    NEARLY_EQUAL,
    PLAIN_RATIO,
    QUICK_RATIO,
    first_over_last,
    lost_matrices,
    profiles,
    role,
    slowed_text,
    slowest_step,
)
from gradbounds.network_text import gradient_lines, number_text, with_cosines
from gradbounds.plain_text import table_lines
from gradbounds.progress import shown
from gradbounds.result import Result
from simulate.counts import check_count
from simulate.threads import one_numpy_thread
from theory import NoRuleError, Stack
from theory.configurations import drawn_by, model_type
from theory.configurations.encoder_decoders import shares_ends
from theory.coverage import gaps
from theory.first_step.batch_step import cost_of_steps
from theory.mean_field.cost import Cost
from theory.mean_field.experts import rarely_chosen
from theory.mean_field.tied.text_output import LARGEST_OWN_PROBABILITY, OwnTokenError
from theory.stack.optimizers import Optimizer
from theory.stack.placements import COMPOSITIONS, TITLES

_ENDS, _GROWTH = ", first / last layer", "stream's rms, last / first layer"
_FALL = "fall of loss / small rate, AdamW"
_COSINE = "cosine of two tokens, largest"
_LARGEST = {"cosine": _COSINE, "expert_load_max": "fullest expert's share, largest"}
_FEW = "experts with few tokens, last layer"
# Numbers in the row of a network, with their digits and units.
_LISTED = {
    **{f"critical rate, {title}": (2, "") for title in ("AdamW", "SGD")}, "loss": (4, ""), "gradient norm": (3, ""),
    _COSINE: (2, ""),
}  # fmt: skip


_QUICK = (
    f"Quick estimates: ratios of WQ and WK within {PLAIN_RATIO:.0%}; finer:{{}} without --compare.",
    f"Quick estimates: norms within {COARSE:.0%}, ratios of WQ and WK within {QUICK_RATIO:.0%}; finer:{{}} "
    "without --compare.",
)
_COST = (
    "layers 2 to L add {:g}% of the residual stream's mean square (before: {:g}%){}, whose effect on training is not "
    "judged; AdamW moves embeddings {:g}x less, relative to their size"
)
_ROUNDED = "a residual stream in bfloat16 rounds away half or more of what they add (keep it in float32)"
# Numbers that are better if they are smaller, with their words, and the smallest difference that counts.
_SMALLER = {"loss": "loss", _COSINE: "largest cosine of two tokens",
            _LARGEST["expert_load_max"]: "fullest expert's share"}  # fmt: skip
_SAME = "Nothing changes: the network without the change has this value."
_LOST = "  Unknown ratios are below the error of attention samples (--patterns N)."


@dataclass(frozen=True, slots=True)
class _Step:
    """Step 1 of one network of a comparison.

    Attributes:
        numbers: predicted numbers by name.
        unknown: reason for numbers that are unknown; "" without.
        deviations: standard deviations of one run, by name of the number.
        layers: table of the layers, as lines of text.
        lost: matrices whose ratio of the first to the last layer is lost in the error of sampling.
        factors: by optimizer, the factor in either direction within which measured critical rates are; inf if unknown.
        slowed: the result of `slowest_step`.
        is_extrapolated: whether no measured network is similar, so that critical rates may have larger errors.
    """

    numbers: Mapping[str, float]
    unknown: str = ""
    deviations: Mapping[str, float] = field(default_factory=dict)
    layers: Sequence[str] = ()
    lost: Sequence[str] = ()
    factors: Mapping[Optimizer, float] = field(default_factory=dict)
    slowed: tuple[float, str] = 1.0, ""
    is_extrapolated: bool = False


@by_estimates()
@each_once()
@one_numpy_thread()
def compare_steps(
    given: Mapping[str, Any], of: Description, compare: Sequence[str], batch: int | None, text: str | None,
    *, plan: bool = False, layers: bool = False, every_layer: bool = False, **limits: Any,
) -> Result | None:  # fmt: skip
    """Predict step 1 of a network and of changed networks for one batch; None if its text lacks a rule.

    Without a change, the result lists all changes that the card can advise, without critical rates. On request, tables
    of the layers, or of every layer, follow.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
    """
    stack, notes = of.read(given)
    asked = at_context(given, of, limits, text)
    whole, asked = of.read(asked.given)[0], replace(asked, is_default=False)
    sequences = (1 if asked.text is None else BATCH) if batch is None else batch
    if asked.text is None and of.is_model and batch is None:
        if compare:
            return None
        whole, asked = stack, Asked(given, None)
    check_count("batch", sequences, 1)
    option = None
    if is_list := not compare:
        compare, option = _changes(whole, quick_batch(asked, sequences, of, **limits), asked, of, limits)
    each = {(): asked} | {
        key: replace(asked, given={**asked.given, **changed_values(key)}) for key in variants(compare)
    }
    stacks = [of.read(variant.given)[0] for variant in each.values()]
    cost = sum((quick_cost(stack, law_of(stack, asked.text), limits["patterns"]) for stack in stacks), Cost())
    stepped = [stack for stack in stacks if not (is_list or gaps(replace(stack, tokens=2), "first_step"))]
    cost = sum((cost_of_steps(stack, [*RATES], sequences) for stack in stepped), cost)
    lengths = " and ".join(str(tokens) for tokens in dict.fromkeys(stack.tokens for stack in stacks))
    at = batch_text(sequences, lengths, asked.text)
    if plan:
        what = f"step 1 of {len(each)} networks, before and after each change{', with critical rates' * bool(stepped)}"
        return planned((whole, notes, of), at, what, cost)
    with shown(f"comparing {len(each)} networks", cost):
        steps = [
            _step(variant, sequences, of, limits, rates=not is_list, every_layer=every_layer)
            for variant in each.values()
        ]
    before, *others = steps
    if not any(step.numbers for step in steps):
        raise ValueError(f"{before.unknown}; --text {DISTINCT} compares networks for tokens that all differ.")
    head = f"Step 1 of {of.like or model_type(notes) or 'the network'}, for {at}, before and after"
    if is_list:
        lines = [f"{head} a change of one setting", "", *_list([*each], steps, stacks, option)]
    else:
        flags = f"{f' --text {text}' * (text is not None)} --batch {sequences}"
        together = "all changes together (a + between changes separates them)"
        head += " each change" if len(others) > 1 else f" {together if len([*each][1]) > 1 else 'the change'}"
        lines = _tables([*each][1:], steps, stacks, asked, head, batch=flags, drawn=drawn_by(notes))
    for words, step in zip(each, steps, strict=True):
        lines += ["", f"Layers, {' '.join(words) or 'before the change'}", *step.layers] * layers
    first, *compared = [
        {"stack": stack, "numbers": step.numbers, "deviations": step.deviations, "unknown": step.unknown or None}
        for stack, step in zip([whole, *stacks[1:]], steps, strict=True)
    ]
    values = {"batch": sequences, "text": asked.text, **first, "compared": compared}
    return Result(about=f"step 1 of {len(each)} networks, for {at}", values=values, lines=lines)


def _changes(
    stack: Stack, run: Result, asked: Asked, of: Description, limits: Mapping[str, Any]
) -> tuple[list[str], Option | None]:
    # Return all changes that the card can advise, its option first, as the flag `--compare` takes them; and the option.
    words, budget = list[str](), Budget.of(limits["max_time"], limits["memory"])
    is_text = asked.text is not None and law_of(stack, asked.text) is not None
    option = option_of(run, str(asked.text), limits["patterns"], budget) if is_text else None
    advised = [option.values] if option else []
    evening = [values for _, values in changes_of(stack, run.columns("layers"), (0.2, 0.4, 1.0))]
    for values in [*advised, *(values for values in evening if values not in advised)]:
        with suppress(ValueError):  # no such network
            of.read({**asked.given, **values})
            words += ["+", *as_flags(values)]
    return words, option


def _tables(
    each: Sequence[Sequence[str]], steps: Sequence[_Step], stacks: Sequence[Stack], asked: Asked, head: str, *,
    batch: str, drawn: str | None,
) -> list[str]:  # fmt: skip
    # Return a verdict, a table and the code of each change, and the flags for finer rates of the last one. Several
    # changes begin with a table that has a row for each.
    before, *others = steps
    lines = [head, "", *_overview(each, steps)] if len(others) > 1 else []
    for changes, after, changed in zip(each, others, stacks[1:], strict=True):
        rows = [_row(name, before, after) for name in dict.fromkeys(["loss", *before.numbers, *after.numbers])]
        sides_of = {"before": before, "after": after}
        code = code_of(stacks[0], changed, drawn)
        verdict = [_SAME] if changed == stacks[0] else _summary(before, after, stacks[0], changed)
        lines += [
            *["", f"{' '.join(changes)}:"] * bool(lines),
            *verdict,
            *([""] if lines else ["", head, ""]),
            *table_lines(["", "before", " ".join(changes), "after / before"], rows),
            *(
                line
                for when, step in sides_of.items()
                for line in textwrap.wrap(
                    f"  Unknown {when} the change: {step.unknown}." * bool(step.unknown), 116, subsequent_indent="  "
                )
            ),
            *(
                f"  Extrapolated {when} the change: critical rates"
                + (f" (AdamW's: within {step.factors['adam']:.2g}x where measured)" if "adam" in step.factors else "")
                for when, step in sides_of.items()
                if step.is_extrapolated
            ),
            *[_LOST] * any([*before.lost, *after.lost]),
            *(f"  {line}" for line in code[:1]),
            *(f"    {line}" for line in code[1:]),
        ]
    lines += [
        *["", "+-: standard deviation of one run."] * any(step.deviations for step in steps),
        *[_QUICK[stacks[0].ffn == "gated"].format(batch)] * (asked.text not in (None, DISTINCT)),
    ]
    if asked.text not in (None, DISTINCT) and not after.unknown:
        flags = " ".join(
            f"--{name.replace('_', '-')} {value}" for name, value in (each.split("=", 1) for each in changes)
        )
        lines += [
            f"Ranges of these critical rates, and a warm-up{', of the last change' * (len(others) > 1)}: replace "
            "--compare by",
            f"  {flags}{batch} --learning-rate 1e-4",
        ]  # fmt: skip
    return lines


def _summary(before: _Step, after: _Step, stack: Stack, changed: Stack) -> list[str]:
    # Return for whom a change pays: a verdict on AdamW, directly below it the gain and the cost, and a verdict on SGD.
    left_out = _left_out((before, after))
    ends = [_apart(step, left_out) for step in (before, after)]
    if math.isnan(sum(ends)):
        return []
    norms = [step.numbers["gradient norm"] for step in (before, after)]
    error = QUICK_RATIO if stack.ffn == "gated" else PLAIN_RATIO
    even = _evenness(_ratios(before), _ratios(after), left_out, error)
    first, last = (f"{float(f'{math.exp(end):.2g}'):g}x" for end in ends)
    last = f"{last} apart, without {' and '.join(left_out)}".removesuffix(", without ")
    sides: tuple[list[str], list[str]] = [], []
    times, _, known = _times(before, after, "sgd")
    rate = f"; critical rate {float(f'{times:.2g}'):,g}x ({known})" * (times > 0.0)
    safer = [_of_experts(before, after, stack, changed), _safer_step(before, after, stack, changed, sides)]
    evenness = [
        "AdamW, Muon: steps have a fixed size, so that the layers' gradient sizes hardly matter"
        f"{', but experts without tokens do not move' * bool(stack.experts and changed.experts)}. Such steps "
        "move small embeddings far and alike tokens together; both lower AdamW's critical rate.",
        f"SGD: the layers become {' and '.join(filter(None, even)) or 'as even as before'} (first and last layer at "
        f"most {first} -> {last}); gradient norm {norms[0]:.3g} -> {norms[1]:.3g}{rate}.",
        "Above its critical rate, step 1 raises the loss to second order. Step 1 does not decide which trains better.",
    ]
    same_even = stack.experts * changed.experts_per_token == changed.experts * stack.experts_per_token
    for name, words in [*_SMALLER.items()][: None if same_even else -1]:  # the last is the fullest expert's share
        old, new = (step.numbers.get(name, math.nan) for step in (before, after))
        sides[new > old].extend([f"{words} {old:.3g} -> {new:.3g}"] * (abs(new - old) > LESS_EVEN))
    slow = [step.slowed[0] for step in (before, after)]
    slowed = slowed_text(after.slowed) if after.slowed[1] else f"AdamW's epsilon no longer slows {before.slowed[1]}"
    sides[slow[1] < slow[0]].extend([f"{slowed}, before ~{slow[0]:.1g}x"] * (max(slow) > 1.1 * min(slow)))
    falls = [step.numbers.get(_FALL, math.nan) for step in (before, after)]
    slower = max(falls) / min(falls)
    sides[falls[1] < falls[0]].extend(
        [f"at a small rate, step 1 lowers the loss {slower:.2g}x {'less' if falls[1] < falls[0] else 'as much'}"]
        * (slower > 1.0 + LESS_EVEN)
    )
    normed = [COMPOSITIONS[each.placement].output_norm for each in (stack, changed)]
    sides[normed[0]].extend(
        [f"{'no ' * normed[0]}output norms, which bound what branches add in all steps"] * (normed[0] != normed[1])
    )
    growths = [step.numbers.get(_GROWTH, 0.0) for step in (after, before)]
    factor = changed.embedding_scale / stack.embedding_scale
    if factor > 1.0 <= min(growths) and norms[1] < norms[0]:
        shares = [1.0 - growth**-2 for growth in growths]
        added, now, less = (float(f"{number:.2g}") for number in (*(100.0 * share for share in shares), factor))
        cost = _COST.format(added, now, ", so that they are nearly skipped at first" * (shares[0] < SKIPPED), less)
        sides[1].extend([cost, *[_ROUNDED] * is_rounded_away(shares[0], changed.depth)])
    for side, words in zip(sides, even, strict=True):
        side.extend([f"layers {words} (SGD)"] * bool(words))
    paid = [f"{head}: {'; '.join(side)}." for head, side in zip(("Gain", "Cost"), sides, strict=True) if side]
    lines = (*safer, *paid, *evenness)
    return [part for line in lines for part in textwrap.wrap(line, 116, subsequent_indent="  ")]


def _ratios(step: _Step) -> dict[str, float]:
    # Return the known ratios of the first to the last layer, by the name of the matrix.
    return {name.removesuffix(_ENDS): ratio for name, ratio in step.numbers.items() if name.endswith(_ENDS)}


def _evenness(
    before: Mapping[str, float], after: Mapping[str, float], left_out: Sequence[str], error: float
) -> tuple[str, str]:
    # Return in which matrices the layers become more even, and in which less even; "" for none. The relative error of
    # the ratios of WQ and WK is given.
    nearer = {name: abs(math.log(before[name])) - abs(math.log(after[name])) for name in after if name not in left_out}
    least = {name: math.log1p(error) if name in ("WQ", "WK") else LESS_EVEN for name in nearer}
    evened, unevened = ([name for name, by in nearer.items() if sign * by > least[name]] for sign in (1, -1))
    return f"more even in {', '.join(evened)}" * bool(evened), f"less even in {', '.join(unevened)}" * bool(unevened)


def _left_out(steps: Sequence[_Step]) -> list[str]:
    # Return the matrices whose ratio is unknown in one of the networks, so that networks are compared without them. A
    # network without any ratio, such as one of a single layer, does not count.
    known = [ratios.keys() for ratios in map(_ratios, steps) if ratios]
    names = dict.fromkeys(name for step in steps for name in (*step.lost, *_ratios(step)))
    return [name for name in names if not all(name in each for each in known)]


def _apart(step: _Step, left_out: Sequence[str]) -> float:
    # Return the largest ratio of the first to the last layer in either direction, as a logarithm; NaN without a ratio.
    return max((abs(math.log(of)) for name, of in _ratios(step).items() if name not in left_out), default=math.nan)


def _overview(each: Sequence[Sequence[str]], steps: Sequence[_Step]) -> list[str]:
    # Return a row for each network: critical rates, loss, norm, largest cosine, and most uneven layers.
    left_out = _left_out(steps)
    rows = [
        [*(step.numbers.get(name, math.nan) for name in _LISTED), math.exp(_apart(step, left_out))] for step in steps
    ]
    texts = [
        [
            "unknown" if math.isnan(number) else f"{float(f'{number:.{digits}g}'):,g}{unit}"
            for number, (digits, unit) in zip(row, [*_LISTED.values(), (2, "x apart")], strict=True)
        ]
        for row in rows
    ]
    last = f"first, last layer, without {' and '.join(left_out)}".removesuffix(", without ")
    heads = ["", "critical rate, AdamW", "SGD", "loss", "gradient norm", "largest cosine", last]
    return table_lines(heads, [[" ".join(words), *row] for words, row in zip([["before"], *each], texts, strict=True)])


def _of_experts(before: _Step, after: _Step, stack: Stack, changed: Stack) -> str:
    # State whether the initialization has uneven experts or alike tokens, before and after the change.
    if not {_FEW, _COSINE} <= before.numbers.keys() & after.numbers.keys():
        return ""
    names = _LARGEST["expert_load_max"], _COSINE, _FEW
    share, cosine, few = ([step.numbers[name] for step in (before, after)] for name in names)
    even = [each.experts_per_token / each.experts for each in (stack, changed)]
    # No share can exceed twice an even share of half of the tokens or more, so that evenness is unknown there.
    uneven = tuple(None if 2 * part >= 1.0 else most > 2 * part for most, part in zip(share, even, strict=True))
    faults = {"uneven experts": uneven, "alike tokens": tuple(most > NEARLY_EQUAL for most in cosine)}
    kinds = {
        "the change mends {}": (True, False), "the change causes {}": (False, True), "{} remain": (True, True),
        "the network without the change has {}": (True, None), "the changed network has {}": (None, True),
    }  # fmt: skip
    listed = [(text, [words for words, each in faults.items() if each == kind]) for text, kind in kinds.items()]
    changes = [text.format(" and ".join(words)) for text, words in listed if words]
    fine = f"{'experts are even and ' * (uneven == (False, False))}tokens differ, with and without the change"
    experts = " -> ".join(dict.fromkeys(f"{each.experts}" for each in (stack, changed)))
    parts, tenths = (
        " -> ".join(dict.fromkeys(f"{factor * part:.{digits}%}" for part in even))
        for factor, digits in ((1, 0), (0.1, 1))
    )
    return (
        f"Initialization: {'; '.join(changes) or fine}. "
        f"The fullest expert takes at most {share[0]:.0%} -> {share[1]:.0%} of tokens (even: {parts}), "
        f"about {few[0]:.0f} -> {few[1]:.0f} of {experts} experts get under {tenths} in the last layer, "
        f"and two tokens have a cosine of at most {cosine[0]:.2f} -> {cosine[1]:.2f}."
    )


def _times(before: _Step, after: _Step, optimizer: Optimizer) -> tuple[float, bool, str]:
    # Return a critical rate divided by that before the change, whether it differs beyond its error, and the error.
    rates = [step.numbers.get(f"critical rate, {RATES[optimizer]}", 0.0) for step in (before, after)]
    if not all(rates):
        return 0.0, False, ""
    limit, times = max(step.factors.get(optimizer, math.inf) for step in (before, after)), rates[1] / rates[0]
    is_beyond = max(times, 1.0 / times) >= limit
    if math.isinf(limit):
        return times, False, "its error is not measured"
    error = f"{'beyond' if is_beyond else 'within'} its error, {limit:.2g}x"
    return times, is_beyond, "extrapolated" if before.is_extrapolated or after.is_extrapolated else error


def _safer_step(before: _Step, after: _Step, stack: Stack, changed: Stack, sides: tuple[list[str], list[str]]) -> str:
    # State which network has the larger critical rate of AdamW, and add a difference beyond its error to gain or cost.
    times, is_beyond, error = _times(before, after, "adam")
    if not times:
        return ""
    if not is_beyond:
        return f"AdamW: neither first step is known to be safer (critical rate {times:.2g}x, {error})."
    size = f"{float(f'{max(times, 1.0 / times):.2g}'):,g}x"
    sides[times < 1].append(f"AdamW's critical rate {float(f'{times:.2g}'):,g}x ({error})")
    is_same = stack.placement == changed.placement
    names = ("the network without the change", "the changed network") if is_same else (
        TITLES[stack.placement], TITLES[changed.placement]
    )  # fmt: skip
    safer, other = names if times < 1 else names[::-1]
    advice = (
        "With the same warm-up, this rate is a reason against the change." if times < 1
        else "Try the change if early steps blow up; otherwise, this rate is no reason for it."
    )  # fmt: skip
    return (
        f"AdamW: {safer} has the safer first step, with a critical rate {size} as large ({error}); to start as far "
        f"below its own, {other} needs a linear warm-up {size} as long. {advice}"
    )


def _list(
    each: Sequence[Sequence[str]], steps: Sequence[_Step], stacks: Sequence[Stack], option: Option | None
) -> list[str]:
    # Return a row for each change: loss, gradient norm, share that layers add, and its most uneven matrices either way.
    words = [" ".join(changes) or "none" for changes in each]
    widest, names = max(map(len, words)), ("loss", "gradient norm")
    ratios = [*map(_ratios, steps)]
    shares = [  # a norm after each layer sets the stream's size
        "-"
        if stack.composition.stream_norm or not step.numbers
        else f"{1.0 - step.numbers.get(_GROWTH, 1.0) ** -2:.1%}"
        for step, stack in zip(steps, stacks, strict=True)
    ]
    return [
        f"  {'change':{widest}}     loss     norm    added  layers: gradient norm of the first / the last (1x = equal)",
        *[
            f"  {word:{widest}}  "
            f"{'  '.join(f'{step.numbers[name]:7.4g}' if name in step.numbers else 'unknown' for name in names)}  "
            f"{added:>7}  "
            + (effect(ratios[0], after) if after else step.unknown.partition(", above")[0] or "-")
            for word, step, added, after in zip(words, steps, shares, ratios, strict=True)
        ],
        *["", "-: one layer has no ratio of the first to the last layer"] * (not any(ratios)),
        "",
        *["The first change is the card's option, which tells alike tokens apart"] * bool(option),
        *[f"Advised for even layers (SGD): the smallest of 1, 2, 5, ... with all ratios below {EVEN:g}x, estimated"]
        * any("embedding_scale" in word for word in words),
        "added: share of the residual stream's mean square that layers 2 to L add", "Every number: --compare CHANGE",
    ]  # fmt: skip


def _step(
    asked: Asked, batch: int, of: Description, limits: Mapping[str, Any], *, rates: bool, every_layer: bool
) -> _Step:
    # Return step 1 of one network.
    stack, notes = of.read(asked.given)
    try:
        result = quick_batch(asked, batch, of, **limits)
    except OwnTokenError as error:
        most = f"{LARGEST_OWN_PROBABILITY:g}, the most for which theory has gradients"
        why = f"the tied network predicts its own input token with probability {error.probability:.2f}, above {most}"
        return _Step({"loss": error.loss}, why)
    except (OverBudgetError, NoRuleError) as error:
        return _Step({}, str(error).partition(", got ")[0])
    ratios, line = first_over_last(result.columns("layers")).items(), result.values["line"]
    stream = profiles(with_cosines(result.columns("layers")), "predicted")
    energies = stream["hidden_energy"]
    numbers = {
        **({} if shares_ends(notes) else {"loss": line.loss}),
        "gradient norm": line.norm, _GROWTH: float(energies[-1] / energies[0]) ** 0.5,
        **{words: float(stream[name].max()) for name, words in _LARGEST.items() if name in stream},
        **{f"{role(name)}{_ENDS}": ratio for name, ratio in ratios},
    }  # fmt: skip
    if stack.experts:
        numbers[_FEW] = rarely_chosen(stack, float(stream["expert_load_max"][-1]))
    deviations = {"loss": line.loss_deviation, "gradient norm": line.norm_deviation}
    table = gradient_lines(stack, with_cosines(result.columns("layers")), every_layer=every_layer)
    step = _Step(
        numbers, "", deviations, table, lost=lost_matrices(stack, result.columns("layers")),
        slowed=slowest_step(stack, result.columns("layers"), line.norm**2),
    )  # fmt: skip
    if not rates:
        return step
    if asked.text is None or law_of(stack, asked.text) is None:
        return replace(step, unknown="critical rates, which require a text: --text english")
    critical = critical_rates(stack, asked.text, result, fine=True)
    if "no_rule" in critical:
        return replace(step, unknown=f"critical rates: {re.sub(r'^unknown[:,] (as )?', '', critical['no_rule'])}")
    numbers |= {f"critical rate, {title}": critical[name]["rate"] for name, title in RATES.items()}
    numbers |= {_FALL: critical["adam"]["gain"]}
    # Where embeddings are large, sampled networks have smaller rates (`MEASURED_SCALES`).
    is_far = critical["evidence"] == "extrapolated"
    factors = {
        name: max(each["high"] / each["rate"], each["rate"] / each["low"])
        for name, each in critical.items()
        if name in RATES and each["low"]
    }
    unsure = "" if factors else "the error of the critical rates, which is not measured in such networks"
    return replace(step, numbers=numbers, unknown=unsure, is_extrapolated=is_far, factors=factors)


def _row(name: str, before: _Step, after: _Step) -> list[str]:
    # Returns a row of the table: the number before and after, and the ratio, or the difference of losses.
    digits = 2 if name.startswith(("critical", "fall", "experts")) else 4  # as many as their errors allow
    texts = [
        "unknown" if name not in step.numbers
        else number_text(step.numbers[name], step.deviations[name]) if name in step.deviations
        else f"{step.numbers[name]:.{digits}g}"
        for step in (before, after)
    ]  # fmt: skip
    if "unknown" in texts or name.endswith(("layer", "largest")):
        return [name, *texts, ""]
    first, last = before.numbers[name], after.numbers[name]
    times = f"{float(f'{last / first:.{min(digits, 3)}g}'):,g}x"
    return [name, *texts, f"{last - first:+z.3f}" if name == "loss" else times]
