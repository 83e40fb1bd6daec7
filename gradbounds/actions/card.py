"""The first screen of `gradbounds predict`: a summary of one network in at most 18 lines of at most 118 columns."""

import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from checks.stacks.gradients_by_layer import Columns
from checks.trust import CERTAIN, Trust
from gradbounds.actions.batch import Asked, law_of, quick_batch, resolve_batch
from gradbounds.actions.first_line import (
    COARSE,
    ZIPF,
    cost_of_batch,
    largest_loss_deviation,
    norms_of_texts,
    quick_cost,
    quick_sampling,
)
from gradbounds.actions.predict import predict_stack
from gradbounds.actions.remedies import (
    Remedy,
    as_flags,
    change_of_batch,
    changes_of,
    furthest,
    loss_of,
    remedy,
)
from gradbounds.budget import Budget, OverBudgetError, by_estimates, chosen_way, way
from gradbounds.described_network import Description
from gradbounds.layer_summary import (
    UNEVEN,
    card_row,
    layer_lines,
    reason_of_largest,
    share_rows,
    squared_norms,
)
from gradbounds.network_text import loss_of_head, number_text, other_codes
from gradbounds.progress import quietly
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.threads import one_numpy_thread
from theory import Stack
from theory.configurations import Note, context, model_type
from theory.configurations.encoder_decoders import SHARED_ENDS
from theory.configurations.family import DEPTH, HEADS, WIDTH
from theory.configurations.training_codes import HUGGING_FACE
from theory.coverage import attends_randomly, gaps, has_experts, holds_words
from theory.first_step.batch_step import ERRORS, LEAST_MEASURED, POSITIONS, batch_steps
from theory.first_step.noise_scale import noise_scale
from theory.mean_field.token_laws import LEAST_VOCAB
from theory.stack import TITLES
from theory.stack.depth_mixing import NONE, has_rows
from theory.stack.optimizers import Optimizer

BATCH = 64
"""Sequences of the first step."""

_LINES, _COLUMNS, _INDENT = 18, 118, " " * len(card_row("", ""))  # of the next lines of a long row

_wrapped = partial(
    textwrap.wrap, width=_COLUMNS, break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False
)

# The largest difference of losses that count as equal.
_SAME_LOSS = 0.01

# Seconds of a card without its batch, and the seconds of a batch from which on both are announced.
_OTHER_SECONDS, _SILENT_SECONDS = 3.0, 1.0

# Seconds by the estimate: at most of a deep network's batch, of the critical rates, and of the table of one sequence.
_MOST_SECONDS, _RATE_SECONDS, _TABLE_SECONDS = 15.0, 2.5, 2.5

# Seconds by the estimate, at most, of a change's batch, and of its batch of shorter sequences where that takes longer:
# else the change is that of one sequence. Qwen3-30B-A3B then has ratios for 160 tokens within 7% of those for 40960
# (WQ and WK: 30%).
_CHANGE_SECONDS, _SHORT_SECONDS = 6.0, 3.0

# The fewest tokens of a sequence that represents a longer one; tokens repeat too rarely in shorter ones.
_FEWEST_TOKENS = 128

# Below this factor of the tangent kernel, and with gated units, the error of a critical rate is larger: 18 of 20 rates
# of gated networks were within this factor.
_LEAST_SCALE, _ROUGH = 0.5, 2.5

# The smallest ratio of Adam's or SGD's critical rate by 64 positions to the rate by 8 to 32. Measured for 13 published
# models, with a median of 0.85 for Adam and 0.93 for SGD.
_FEWER = 0.69

# Attention samples of one sequence with coarse groups where only its stream and the change of a field are printed.
_FEW = 4
_RATE_VIEW, _LOG_VIEW = f"--batch {BATCH} --learning-rate R", f"--batch {BATCH} --logged FILE"

_SUBSTITUTE = (
    "NOT THE WHOLE MODEL (--ignore): of these numbers only the loss is the model's; its norms and learning rates are "
    "unknown.\nYour own module: gradbounds probe FILE:NAME"
)
_EVENED = "if you use SGD"
# Evidence for ranges (docs/report.md, first lines of public logs).
_PUBLIC = "36 of 38 losses, 7 of 8 norms of public logs in range"
_UNITS = ("gelu", "gelu_tanh", "silu")  # of GPTs and Llamas
_EXPERTS = "24 networks of width 256, 512 (norms -8% to +7%)"  # sampled, with experts
_OTHERS = ("architectures", "model_type")  # whose values say more than their names
_NO_RUN = f"Critical learning rate in step 1: for one sequence --first-step, for a batch {_RATE_VIEW}"
_EVIDENCE = re.compile(
    r"Compared with transformers' own (\w+) at (width \d+) and (\d+ tokens).*?: (\d+) of (\d+) numbers off"
)
RATES: dict[Optimizer, str] = {"adam": "AdamW", "sgd": "SGD"}
"""The optimizers of the critical learning rates, with their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStepOfRun:
    """The predicted loss and gradient norm of the first step of a training run.

    Attributes:
        tokens: tokens of a sequence.
        text: name of its law.
        loss: mean loss.
        loss_deviation: one run's standard deviation, or an upper bound without the gradient norm.
        norm: gradient norm. None if it is omitted.
        norm_deviation: one run's standard deviation.
        texts: norms with the fewest and the most repeats, or None.
        why_not: reason to omit the norm. The default is "".
        result: result of `predict --batch`, or None.
        coarse: whether the batch has coarse groups of tokens.
    """

    tokens: int
    text: str
    loss: float
    loss_deviation: float
    norm: float | None = None
    norm_deviation: float | None = None
    texts: tuple[float, float] | None = None
    why_not: str = ""
    result: Result | None = None
    coarse: bool = False


def model_card(
    given: Mapping[str, Any], of: Description, *, text: str | None = None, layers: bool = False,
    every_layer: bool = False, **how: Any,
) -> Result:  # fmt: skip
    """Return the summary of a network that `gradbounds predict` prints first, and the tables of its layers on request.

    Only a model has step 1 of a run and critical rates. With samples or comparisons, the card omits them.

    Args:
        given: fields of the network.
        of: further description of the network.
        text: name or file of the text law of step 1; None for the default.
        layers: whether tables of layers follow.
        every_layer: whether the tables list every layer.
        how: other arguments of `predict_stack`.

    Raises:
        ValueError: as `predict_stack`.
    """
    layers = layers or every_layer
    alone = of.is_model and not how["compare"] and how["draws"] is None
    # Without words, the batch of step 1 replaces all sampled numbers of one sequence.
    asked, coarse = of.read(given)[0], how["patterns"] is None and alone
    coarse = coarse and not (holds_words(asked) or gaps(replace(asked, sequences=2), "grouped"))
    sampled = {"patterns": _FEW, "coarse": True} if coarse else {}
    fields = _quick(given, of, how | sampled, coarse=coarse) if alone else given
    result = predict_stack(fields, of, every_layer=every_layer, tables=layers, further=not alone, **how | sampled)
    stack, notes, table = result.values["stack"], result.values["notes"], result.columns()
    if result.values["no_rule"]:
        return result
    limits = {name: how[name] for name in ("patterns", "max_time", "memory")}
    with by_estimates(), quietly(), one_numpy_thread():
        first = _first_step_of_run(given, of, stack, notes, table, limits, text) if alone else None
        rates = None if first is None else critical_rates(stack, first.text, first.result)
        search = partial(_change_of_step, given, of, result, first, limits, coarse=coarse)
        change = search() if alone else result.values["evened_by"]
    run, longest = None if first is None else first.result, None if "tokens" in given else context(notes)
    rows = [
        *[f"Compared for one sequence of {stack.tokens} tokens that all differ, not for a batch of text"]
        * bool(of.is_model and how["compare"]),
        *[_SUBSTITUTE] * (is_substitute := any(note.reason == "ignored on request" for note in notes)),
        *_head(stack, notes, _named(of.like or model_type(notes) or "", given, of) if of.is_model else ""),
        *_drawn(given, of, stack, notes, table),
        *(_one_sequence(stack, table) if first is None else _run_lines(first, stack, table, longest, notes)),
        *_layers(stack, table, run),
        *_change_lines(table, run, change, stack.tokens),
        *([_NO_RUN] if rates is None else _rate_lines(rates)),
        *_limits(stack, first, result)[is_substitute:],  # the evidence is for the model's own norms
    ]  # fmt: skip
    lines = _fitted(rows)
    lines += [_more(stack, of_run=run is not None)] * (len(lines) < _LINES)
    plain = first and {name: value for name, value in asdict(replace(first, result=None)).items() if name != "result"}
    card, sentences = {"step_1": plain, "critical_rates": rates, "lines": lines}, result.values["sentences"]
    below = [*result.below] if run is None or not layers else ["", *run.lines, "", *sentences["trust"]]
    below += [sentences["evened"]] * (layers and change is None)
    return replace(result, values={**result.values, "evened_by": change, "card": card}, lines=lines, below=below)


def _fitted(rows: Sequence[str]) -> list[str]:
    # Wraps the rows of a card. A card that is too long lacks the row "SGD moves", and then the row "why".
    for least in ((), ("  SGD moves",), ("  SGD moves", "  why ")):
        lines = [
            part
            for row in rows
            if not row.startswith(least)
            for part in _wrapped(row, subsequent_indent=_INDENT if row.startswith("  ") else "  ")
        ]
        if len(lines) <= _LINES:
            break
    return lines


def _quick(given: Mapping[str, Any], of: Description, how: Mapping[str, Any], *, coarse: bool) -> Mapping[str, Any]:
    # Return the fields of a network, without a number of tokens if one sequence of so many tokens takes long.
    asked, budget = of.read(given)[0], Budget.of(how["max_time"], how["memory"])
    if (
        "tokens" not in given or gaps(asked, "prediction") or gaps(replace(asked, sequences=2), "grouped")
        or chosen_way(asked, how["patterns"], budget, coarse=coarse).cost.seconds < _TABLE_SECONDS
    ):  # fmt: skip
        return given
    return {name: value for name, value in given.items() if name != "tokens"}


def at_context(
    given: Mapping[str, Any], of: Description, tokens: int, limits: Mapping[str, Any], text: str | None = None
) -> Asked:
    """Return the batch at the context, or at the largest of its halves that a tied vocabulary has token ids for.

    Without a given number of tokens, the ids suffice for two sequences, from which theory predicts the batch, with
    coarse groups of tokens, which require twice as many.

    Raises:
        ValueError: the network cannot be read with few tokens, either.
    """
    while True:
        try:
            asked = resolve_batch({**given, "tokens": tokens}, of, text=text, **limits)
            replace(of.read(asked.given)[0], sequences=1 if "tokens" in given else 4)
            return asked
        except ValueError:
            if tokens < 2 * _FEWEST_TOKENS:
                raise
            tokens //= 2


def _first_step_of_run(
    given: Mapping[str, Any], of: Description, stack: Stack, notes: Sequence[Note], table: Columns,
    limits: Mapping[str, Any], text: str | None,
) -> FirstStepOfRun:  # fmt: skip
    """Return step 1 at the context or with fewer tokens; without the norm if it takes longer or has no rule.

    If it takes long, the expected seconds of the card are printed on standard error first.

    Raises:
        ValueError: the text cannot be read, or tokens do not repeat in it.
    """
    asked = at_context(given, of, given.get("tokens") or context(notes) or stack.tokens, limits, text)
    whole, _ = of.read(asked.given)
    text = asked.text or ("english" if whole.vocab >= LEAST_VOCAB else ZIPF)
    law = law_of(whole, text)
    if law is None:
        raise ValueError(f"text must be a law of repeated tokens without batch, got {text!r}; add --batch {BATCH}.")
    loss = loss_of(table)
    deviation = largest_loss_deviation(whole, BATCH, law)
    known = FirstStepOfRun(tokens=whole.tokens, text=text, loss=loss, loss_deviation=deviation)
    if asked.text is None:
        return replace(known, why_not="unknown: theory has no rule for repeated tokens in such a network")
    within = {**limits, "max_time": limits["max_time"] or f"{_MOST_SECONDS}s"}
    patterns, coarse = quick_sampling(whole, law, limits["patterns"])
    cost = cost_of_batch(whole, law, patterns, coarse=coarse)[0]
    if cost.seconds > _SILENT_SECONDS and Budget.of(within["max_time"], limits["memory"]).holds(cost):
        print(f"predicting step 1, about {duration(_OTHER_SECONDS + cost.seconds)}", file=sys.stderr, flush=True)
    try:
        result = quick_batch(asked, BATCH, of, **within)
    except OverBudgetError:
        takes = duration(cost_of_batch(whole, law, limits["patterns"])[0].seconds)
        return replace(known, why_not=f"not computed, because it takes about {takes}; --batch {BATCH} prints it")
    except ValueError as error:  # no rule, or tied embeddings whose softmax is too sure
        return replace(known, why_not=f"unknown: {str(error).partition(chr(59))[0]}")
    line = result.values["line"]
    return replace(
        known, loss=line.loss, loss_deviation=line.loss_deviation, norm=line.norm, norm_deviation=line.norm_deviation,
        texts=norms_of_texts(whole, text, line), result=result, coarse=result.values["coarse"],
    )  # fmt: skip


def rate_factor(stack: Stack, scale: float) -> float:
    """Return the factor in either direction within which 9 of 10 measured critical rates are of the predicted ones.

    Args:
        stack: the network.
        scale: the factor of `BatchStep.rescaled`.
    """
    return _ROUGH if scale <= _LEAST_SCALE or stack.ffn == "gated" else 1.0 + ERRORS["critical_rate"]


def critical_rates(stack: Stack, text: str, result: Result | None, *, fine: bool = False) -> dict[str, Any]:
    """Return the critical learning rates for a predicted batch with the limits of their errors, or the reason.

    Args:
        stack: the network.
        text: name of the law of the batch's text.
        result: result of `predict --batch`; None if there is none.
        fine: whether to estimate them as `predict --learning-rate` does, however long it takes.
    """
    if missing := gaps(replace(stack, tokens=2), "first_step"):
        return {"no_rule": f"unknown, as theory has no rule for a first step of {missing[0].networks}"}
    if result is None:
        return {"no_rule": f"not computed without the gradient norm; {_RATE_VIEW}"}
    batch = replace(stack, tokens=result.values["stack"].tokens)
    law = law_of(batch, text)
    assert law is not None, "a batch was predicted"
    soon = [POSITIONS] if fine else [
        count
        for count in (POSITIONS, POSITIONS // 2, POSITIONS // 4, POSITIONS // 8)
        if count <= stack.vocab
        and 7e-7 * count * stack.vocab + 4e-6 * stack.depth * stack.heads * count**2 < _RATE_SECONDS
    ]  # fmt: skip
    if not soon:
        return {"no_rule": f"omitted, because it takes longer or the vocabulary is too small: {_RATE_VIEW}"}
    # The rates of single tied networks differ by up to 1.6 times.
    networks, critical = None if fine else 1 + (stack.embeddings == "tied"), dict[Optimizer, float]()
    for count in (*[soon[0] // 2] * (soon[0] < POSITIONS), soon[0]):
        try:
            steps = batch_steps(batch, [*RATES], result.values["batch"], law, positions=count, networks=networks)
        except ValueError:  # such as a mask of its own, for one number of tokens
            return {"no_rule": f"no prediction with {count} tokens"}
        scale, half = result.values["matrices_sq"] / steps["sgd"].gain, critical
        critical = {name: steps[name].rescaled(scale).critical_rate for name in RATES}
    factor, fewer = rate_factor(stack, scale), _FEWER if soon[0] < POSITIONS else 1.0
    if min(critical.values()) <= 0.0:
        return {"no_rule": "unknown: theory's estimate of the gain or of the curvature is not positive here"}
    if any(critical[name] < _FEWER * rate for name, rate in half.items()):
        return {"no_rule": f"a quick estimate is too rough here; {_RATE_VIEW}"}
    return {"positions": soon[0], "kernel_scale": scale} | {
        name: {"rate": rate, "low": rate * fewer / factor, "high": rate * factor} for name, rate in critical.items()
    }


def _named(name: str, given: Mapping[str, Any], of: Description) -> str:
    # Adds the flags that change a model to its name. The number of tokens is printed with step 1.
    flags = {**given, "drawn_by": of.drawn_by, "tokens": HUGGING_FACE}
    changed = [f" --{name.replace('_', '-')} {value}" for name, value in flags.items() if value != HUGGING_FACE]
    return f"{name or 'network'} with{''.join(changed)}" if changed else name


def _head(stack: Stack, notes: Sequence[Note], name: str) -> list[str]:
    units = f"{'gated ' * (stack.ffn == 'gated')}{stack.activation} units"
    if stack.experts:
        units = f"{stack.experts_per_token} of {stack.experts} {units.replace('units', 'experts')}"
    encoder = f"{stack.encoder_depth or stack.depth} encoder and " * bool(stack.source_tokens)
    parts = [
        TITLES[stack.placement], f"{encoder}{stack.depth} {'decoder ' * bool(encoder)}layer{'s' * (stack.depth > 1)}",
        f"width {stack.width}",
        f"{stack.heads} head{'s' * (stack.heads > 1)}", units, f"vocabulary {stack.vocab:,}",
        "tied head (theory: untied)" if any(n.field == SHARED_ENDS for n in notes) else f"{stack.embeddings} head",
        *[f"depth mixing {'by a matrix' if has_rows(stack) else stack.depth_mixing}"] * (stack.depth_mixing != NONE),
    ]  # fmt: skip
    lines = [f"{name}: {', '.join(parts)}" if name else ", ".join(parts)]
    lacking = ", ".join(
        f"{note.field} = {note.value}"
        for note in notes
        if note.what == "default" and note.field in {*WIDTH, *DEPTH, *HEADS, "vocab_size"}
    )
    return lines + [f"The file lacks sizes; its class sets them: {lacking}"] * bool(lacking)


def _drawn(given: Mapping[str, Any], of: Description, stack: Stack, notes: Sequence[Note], table: Columns) -> list[str]:
    # Name the rule that initializes the weights, and the flags of other rules, with their loss where it is known.
    drawn, names = next((str(note.reason) for note in notes if note.what == "drawn"), ""), []
    for name in other_codes(notes):
        try:
            other = loss_of_head(replace(of, drawn_by=name).read(given)[0])
        except ValueError:  # a given field contradicts the rule
            continue
        loss, by_head = loss_of(table), loss_of_head(stack)
        differs = abs(by_head - loss) < _SAME_LOSS < abs(other - loss)
        names.append(f"{name}{f' (loss {other:.2f})' * differs}")
    others = [f"; other norms: --drawn-by {', '.join(names)}"] * bool(names)
    older = [note.value for note in notes if note.what == "older" and stack.depth_scaling != "none"]
    others += [f"; for versions {versions} add --depth-scaling none" for versions in older]
    return [f"Weights: {re.sub('; .*', ')', drawn)}{''.join(others)}"] * bool(drawn)


def _more(stack: Stack, *, of_run: bool) -> str:
    # Names the flags for another text of a run, and for a changed field.
    placement = "placement=peri" if stack.placement == "post" else "placement=post"
    other = "embeddings=untied" if stack.embeddings == "tied" else placement
    return "Your text: --text FILE. " * of_run + f"Another model: --{other.replace('=', ' ')}; both: --compare {other}"


def _one_sequence(stack: Stack, table: Columns) -> list[str]:
    # Returns loss and gradient norm for sequences whose tokens all differ.
    of = "one sequence" if stack.sequences == 1 else f"{stack.sequences} sequences"
    shares = squared_norms(table)
    norm = math.sqrt(sum(shares.values()))
    sampled = attends_randomly(stack) or holds_words(stack) or has_experts(stack)
    missing = sampled or stack.tokens > _FEWEST_TOKENS or gaps(stack, "noise_scale")  # or takes long
    reason = "" if missing else reason_of_largest(noise_scale(replace(stack, sequences=1)), stack.sequences)
    return [
        f"At initialization: {of} of {stack.tokens} token{'s' * (stack.tokens > 1)} that all differ; "
        f"normal ranges: --batch {BATCH} --text {ZIPF}",
        *([card_row("loss", f"{loss_of(table):.4g}")] if "loss" in table["quantity"] else []),
        card_row("gradient norm", f"{norm:.4g} for all matrices, root mean square over networks"),
        *(share_rows(shares, stack, table, "", reason) if norm > 0 else []),
    ]  # fmt: skip


def _run_lines(
    first: FirstStepOfRun, stack: Stack, table: Columns, longest: int | None, notes: Sequence[Note]
) -> list[str]:
    by = {ZIPF: "Zipf's law", "english": "English text"}.get(first.text, f"text {first.text}")
    fewer = longest is not None and first.tokens < longest
    of_context = f" (its context of {longest} has no prediction)" if fewer else ""
    other = " (config's maximum; --tokens N)" * (longest is not None and not fewer)
    lines = [f"Step 1: {BATCH} sequences of {first.tokens} tokens{other}, {by}{of_context}; your log: {_LOG_VIEW}"]
    runs = " at most)" if first.result is None or first.result.values["line"].is_bound else ") in 19 of 20 runs"
    loss = f"{_normal(first.loss, first.loss_deviation)}{runs}, finite-width error included"
    if any(note.field == SHARED_ENDS for note in notes):  # the class ties both ends and the Stack does not
        loss = f"unknown: the class ties both ends, and theory has the loss of untied ends, {first.loss:.4g}"
    if first.result is None:
        carried = share_rows(squared_norms(table), stack, table, f"; one sequence of {stack.tokens} tokens")
        return [*lines, card_row("loss", loss), card_row("gradient norm", first.why_not), *carried]
    assert first.norm is not None and first.norm_deviation is not None
    low = COARSE * (first.coarse and stack.ffn == "gated")
    errors = [*["text"] * bool(first.texts), *["token-group"] * bool(low), "finite-width"]
    listed = " and ".join(filter(None, [", ".join(errors[:-1]), errors[-1]]))
    included = f"{listed} error{'s' * (len(errors) > 1)} included"
    included += ", masking not" * any(note.field == "masked words" for note in first.result.values["notes"])
    batch, norms = first.result.columns(), first.result.columns("layers")
    squares = {name.replace("dL/d", ""): square for name, square in zip(batch["name"], batch["grad_sq"], strict=True)}
    return [
        *lines, card_row("loss", loss),
        card_row(
            "gradient norm",
            f"{_normal(first.norm, first.norm_deviation, low)}), {included}",
        ),
        *share_rows(squares, stack, norms, f"; all: --batch {BATCH}", first.result.values["reason_of_largest"]),
    ]  # fmt: skip


def _normal(mean: float, deviation: float, low: float = 0.0) -> str:
    """Return the range of two standard deviations each way, the mean and its deviation, with an open bracket.

    The upper end is `low` larger, the largest relative error by which the mean is too small.
    """
    ends = mean - 2 * deviation, (mean + 2 * deviation) * (1.0 + low)
    lowest, highest = (number_text(end, deviation).partition(" ")[0] for end in ends)
    return f"normal: {lowest} to {highest} ({number_text(mean, deviation)}"


def _layers(stack: Stack, table: Columns, run: Result | None) -> list[str]:
    # Compares the layers, in the batch of step 1 if it is known.
    batch = ("in step 1", run.values["gradient_norm"] ** 2) if run else ()
    lines = layer_lines(stack, run.columns("layers") if run else table, *batch)
    return [f"{lines[0]}; all: --layers", *lines[1:]] if lines else []


def _change_of_step(
    given: Mapping[str, Any], of: Description, single: Result, first: FirstStepOfRun | None, limits: Mapping[str, Any],
    *, coarse: bool,
) -> Remedy | None:  # fmt: skip
    """Return one change that makes the layers of step 1 even.

    Changes are tested for one sequence, and the best one for the batch. If that takes long, its sequences are halved,
    to at least `_FEWEST_TOKENS`. Where the changed tied network fails for the batch, it is untied.
    """
    stack, table, run = single.values["stack"], single.columns(), None if first is None else first.result
    if furthest(table if run is None else run.columns("layers")) < UNEVEN:
        return None
    budget, patterns = Budget.of(limits["max_time"], limits["memory"]), limits["patterns"] or (_FEW if coarse else None)
    change, _ = remedy(stack, table, budget, way(stack, patterns, budget, coarse=coarse))
    if not (change and first and run):
        return change
    whole, limit = run.values["stack"], _CHANGE_SECONDS
    while limit < quick_cost(whole, law_of(whole, first.text), limits["patterns"]):
        whole, limit = replace(whole, tokens=whole.tokens // 2), _SHORT_SECONDS
        if whole.tokens < _FEWEST_TOKENS:
            return change
    of_batch = Asked({**given, "tokens": whole.tokens}, first.text), BATCH, of, run
    untied = [each for each in changes_of(stack, table) if each[1].get("embeddings") and each[1] != change.values]
    tests = (change_of_batch(*of_batch, *each, **limits) for each in [(change.words, change.values), *untied])
    found = next(filter(None, tests), None)
    return replace(found, norms=None, tokens=whole.tokens) if found and whole.tokens < first.tokens else found


def _change_lines(table: Columns, run: Result | None, change: Remedy | None, tokens: int) -> list[str]:
    """Return one change that makes the layers even, with its effect and cost, or state that there is none.

    Args:
        table: one sequence's `layer_table`.
        run: result of `predict --batch`, or None. If its layers are even, there is nothing to change.
        change: the change.
        tokens: number of tokens of the sequence.
    """
    if furthest(table if run is None else run.columns("layers")) < UNEVEN:
        return []
    if change is None:
        return [card_row(_EVENED, "no tested change makes the layers clearly more even; all: --compare")]
    before, after = change.losses
    loss = f"loss {after - before:+.2f}" if abs(after - before) >= _SAME_LOSS else "same loss"
    # Errors of coarse groups and few samples with larger embeddings in Llama 3 8B, OLMoE and GPT-2; of WV and WO 10%.
    of = f"for {change.tokens} tokens a sequence" if change.tokens else f"for one sequence of {tokens} tokens"
    of = of if change.norms is None else "norm {:.3g} -> {:.3g}".format(*change.norms)
    ratios, *others = change.effect.split("; ")
    unknown = "".join(part for part in others if part.startswith("unknown"))
    rough = ", ".join(each for each in ("WQ", "WK") if each not in unknown)
    effect = "; ".join([ratios + f", {rough} +-30%" * bool((change.norms or change.tokens) and rough), *others, of])
    flags = [*as_flags(change.values), *[f"--tokens {change.tokens}"] * bool(change.tokens)]
    return [card_row(_EVENED, f"{change.words}: {effect}, {loss}; --compare {' '.join(flags)}")]


def _rate_lines(rates: Mapping[str, Any]) -> list[str]:
    if "no_rule" in rates:
        return [f"Critical learning rate in step 1: {rates['no_rule']}"]
    return [
        f"Critical learning rate: above it, step 1 raises the loss (to second order); finer: {_RATE_VIEW}",
        *[
            card_row(name, f"quick estimate {rate} ({low} to {high}{known})")
            for known in [" in 9 of 10 networks" if rates["kernel_scale"] >= LEAST_MEASURED else ", extrapolated"]
            for key, name in RATES.items()
            for rate, low, high in [[f"{each:.1e}" if each < 1e-3 else f"{each:.2g}" for each in rates[key].values()]]
        ],
    ]  # fmt: skip


def _limits(stack: Stack, first: FirstStepOfRun | None, result: Result) -> list[str]:
    # State the error to expect and its evidence, and the parts that were not tested or are omitted.
    trust, evidence = Trust.of(stack), result.values["compared_with_code"] or ""
    if first is not None and first.result is not None:
        is_sampled = stack.placement == "pre" and stack.activation in _UNITS
        expected = f"Tested: {_PUBLIC}" if is_sampled else f"Ranges extrapolated from GPTs and Llamas ({_PUBLIC})"
        if has_experts(stack):
            expected = f"Ranges {'extrapolated from' if stack.width > 512 else 'held for'} {_EXPERTS}"
    elif trust.error <= CERTAIN and trust.why[:8] in ("", "not wide"):
        kind = "extrapolated from" if trust.why else "as in"
        expected = f"Expect errors of up to {trust.error:.1%} by finite width ({stack.width}), {kind} sampled networks"
    else:
        reason = re.sub("stacks of the family '.*?'", "networks of this kind", trust.why.partition(": ")[2])
        expected = f"Error by finite width ({stack.width}) unknown: {reason}"
    if match := _EVIDENCE.match(evidence):
        of, sizes, _, off, count = match.groups()
        at_width = f" at {sizes}" * ("finite width" in expected)
        others, what = ("", "") if stack.experts else ("theory and ", " numbers")  # for one line
        expected += f"; {others}{of}{at_width} agree{'s' * (not others)} in {int(count) - int(off)} of {count}{what}"
    left_out = ", ".join(
        f"{note.value} ({note.reason.partition(';')[0]})" if note.field in _OTHERS else note.field
        for note in result.values["notes"]
        if note.what == "left out"
    )
    cheaper = result.values["cheaper"] if first is None or first.result is None else None  # of one sequence
    reasons = [f"all tokens and samples, for time and memory ({cheaper})"] * bool(cheaper) + [left_out] * bool(left_out)
    return [expected, *[f"Not tested: {'; '.join(reasons)}"] * bool(reasons)]
