"""The first screen of `gradbounds predict`: a summary of one network in at most 18 lines of at most 118 columns."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

from scipy.special import entr

from checks.stacks.gradients_by_layer import Columns
from checks.trust import CERTAIN, Trust
from gradbounds.actions.batch import Asked, law_of, predict_batch, quick_batch, resolve_batch
from gradbounds.actions.first_line import (
    LOSS_OF_UNTIED,
    FirstLine,
    cost_of_batch,
    largest_loss_deviation,
    masked_share,
    normal_ranges,
    norms_of_texts,
    quick_cost,
)
from gradbounds.actions.plan import DISTINCT, ZIPF, batch_text, planned
from gradbounds.actions.predict import predict_plan, predict_stack, way_or_reason
from gradbounds.actions.remedies import (
    FEW_SAMPLES,
    FEWEST_TOKENS,
    SAME_LOSS,
    SHORT_SECONDS,
    TESTS,
    Option,
    Remedy,
    change_of_step,
    change_rows,
    cost_of_option,
    loss_of,
    option_of,
)
from gradbounds.budget import Budget, OverBudgetError, by_estimates, chosen_way
from gradbounds.described_network import Description
from gradbounds.layer_summary import (
    LayerSummary,
    card_row,
    enough_epsilon,
    layer_summary,
    share_rows,
    squared_norms,
)
from gradbounds.network_text import (
    lacking_sizes,
    loss_of_head,
    other_codes,
    sequences_text,
    tokens_text,
    unread_line,
)
from gradbounds.progress import shown
from gradbounds.result import Result
from gradbounds.units import cpu_time
from simulate.threads import one_numpy_thread
from theory import Stack
from theory.configurations import Note, context, drawn_by, model_type
from theory.configurations.encoder_decoders import shares_ends
from theory.configurations.training_codes import HUGGING_FACE
from theory.configurations.vectors import gradient_factors, has_own_rates, logit_multiplier
from theory.coverage import gaps, has_experts, holds_words
from theory.first_step.batch_step import (
    MEASURED_SCALES,
    POSITIONS,
    batch_steps,
    cost_of_steps,
    measured_rates,
)
from theory.mean_field.cost import Cost
from theory.mean_field.text_law import LEAST_VOCAB
from theory.stack import TITLES
from theory.stack.depth_mixing import NONE, has_rows
from theory.stack.optimizers import NAMES, Optimizer

BATCH = 64
"""Sequences of the first step."""

_LINES, _COLUMNS, _INDENT = 18, 118, " " * len(card_row("", ""))  # of the next lines of a long row

_wrapped = partial(
    textwrap.wrap, width=_COLUMNS, break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False
)

# The number of networks for quick critical rates; those of single tied networks differ by up to 1.6 times.
_NETWORKS = {"untied": 1, "tied": 2}

# A card's cost without predictions, and the part of the estimate that a batch and a change of it take.
_LEAST_SECONDS, _OF_ESTIMATE = 0.5, 0.75

# Seconds by the estimate: at most of a deep network's batch, of the critical rates, and of the table of one sequence.
_MOST_SECONDS, _RATE_SECONDS, _TABLE_SECONDS = 15.0, 2.5, 2.5

# The error of a critical rate at factors of the tangent kernel that were not measured.
_ROUGH = 2.5

# The smallest ratios of critical rates by 64 positions to a card's, and the largest. Source: 24 published models and
# changes of them with a range, in two lists (tests/evidence/few-positions.json). The first list has 0.7 and 0.62, which
# 12 of 16 models of the second held. Fewer positions extrapolate the kernel's factor. A card has no rate that is below
# a ratio of the first list times the rate by half as many positions.
_FEWER, _MORE, _HALVED = {"adam": 0.57, "sgd": 0.48}, 1.12, {"adam": 0.7, "sgd": 0.62}

# A view, and a usual peak learning rate.
_RATE_VIEW, _PEAK = "--learning-rate 3e-4", "3e-4"

_IGNORED = "ignored on request"
# Evidence for ranges (docs/report.md, first lines of public logs).
_PUBLIC = "36 of 38 losses, 7 of 8 norms of public logs in range"
_UNITS = ("gelu", "gelu_tanh", "silu")  # of GPTs and Llamas
_EXPERTS = "24 sampled networks of width 256, 512"  # with experts; 47 of their 48 numbers (expert-ranges.json)
OWN_RATES = "theory has no rule for learning rates that differ between matrices, as muP's do."
_EVIDENCE = re.compile(
    r"Compared with transformers' own (\w+) at (width \d+) and (\d+ tokens).*?: (\d+) of (\d+) numbers off"
)
_PARAMETERS = {
    "o_proj gate_proj up_proj down_proj": "cohere cohere2 cwm ernie4_5 eurobert exaone4 gemma gemma2 gemma3_text "
    "granite helium hunyuan_v1_dense llama ministral mistral olmo olmo2 olmo3 qwen2 qwen3 seed_oss smollm3 stablelm "
    "vaultgemma",
    "o_proj gate_up_proj gate_up_proj down_proj": "glm glm4 glm4_moe mixtral olmoe phi3 qwen2_moe qwen3_moe",
    "o_proj - up_proj down_proj": "arcee nemotron",
    "o_proj - c_fc mlp.c_proj": "starcoder2",
    "attn.c_proj - c_fc mlp.c_proj": "gpt2 gpt_bigcode openai-gpt",
    "out_proj - c_fc mlp.c_proj": "gpt_neo",
    "out_proj - fc_in fc_out": "codegen gptj",
    "out_proj - fc1 fc2": "bart biogpt blenderbot blenderbot-small m2m_100 marian mbart opt pegasus plbart xglm",
    "attention.output.dense - intermediate.dense output.dense": "bert camembert electra ernie megatron-bert roberta "
    "roberta-prelayernorm xlm-roberta xlm-roberta-xl",
    "dense - dense_h_to_4h dense_4h_to_h": "falcon gpt_neox persimmon",
    "dense - fc1 fc2": "phi",
    "out_lin - lin1 lin2": "distilbert",
}
"""Names of WO, WG, W1 and W2 in classes of transformers 5, with the families that have them."""
RATES: dict[Optimizer, str] = {"adam": NAMES["adam"], "sgd": NAMES["sgd"]}
"""The optimizers of the critical learning rates, with their titles."""


@dataclass(frozen=True, slots=True)
class FirstStepOfRun:
    """The first step of a training run, with its loss and gradient norm once they are predicted.

    Attributes:
        asked: the batch.
        stack: the network with the tokens of the batch.
        text: name of the text law.
        limits: limits of the batch's prediction.
        cost: estimated cost of the card.
        line: loss and gradient norm, each with one run's standard deviation. Without a prediction of the batch, the
            norm is NaN, and the loss's deviation is an upper bound.
        texts: norms with the fewest and the most repeats, or None.
        why_not: reason to omit the norm. The default is "".
        result: result of `predict --batch`, or None.
        batch: number of sequences.
        is_fine: whether the batch's own tables follow, of which the card is the summary.
    """

    asked: Asked
    stack: Stack
    text: str
    limits: Mapping[str, Any]
    cost: Cost
    line: FirstLine
    texts: tuple[float, float] | None = None
    why_not: str = ""
    result: Result | None = None
    batch: int = BATCH
    is_fine: bool = False

    @classmethod
    def of(
        cls, given: Mapping[str, Any], of: Description, limits: Mapping[str, Any], text: str | None,
        batch: tuple[Asked, int] | None = None,
    ) -> Self:  # fmt: skip
        """Return step 1 of a given batch, or at the context or with fewer tokens, and the estimated cost of the card.

        Raises:
            ValueError: the text cannot be read, or tokens do not repeat in it.
        """
        asked, sequences = batch or (at_context(given, of, limits, text), BATCH)
        stack, notes = of.read(asked.given)
        text = asked.text or ("english" if stack.vocab >= LEAST_VOCAB else ZIPF)
        law = law_of(stack, text)
        if law is None:
            raise ValueError(f"text must be a law of repeated tokens without batch, got {text!r}; add --batch {BATCH}.")
        within = {**limits, "max_time": limits["max_time"] or f"{_MOST_SECONDS}s"}
        quick = Cost() if asked.text is None else quick_cost(stack, law, limits["patterns"])
        is_within = Budget.of(within["max_time"], limits["memory"]).holds(quick)
        cost = Cost(_LEAST_SECONDS) + (
            Cost() if not batch else quick if asked.is_quick else cost_of_batch(stack, law, limits["patterns"])[0]
        )
        if (is_within or batch) and asked.text is not None:
            is_short, tests = quick.seconds <= SHORT_SECONDS, 1 if stack.composition.input_norm else TESTS
            change = max(  # one of both follows
                is_short * tests * _OF_ESTIMATE * quick.seconds,
                cost_of_option(stack, limits["patterns"]).seconds,
            )
            cost += replace(quick, seconds=_OF_ESTIMATE * (not batch) * quick.seconds + change)
            for count in _positions(stack, notes) * (not batch):
                cost += cost_of_steps(stack, [*RATES], sequences, positions=count, networks=_NETWORKS[stack.embeddings])
        line = FirstLine(math.nan, largest_loss_deviation(stack, sequences, law), math.nan, math.nan, is_bound=True)
        return cls(asked, stack, text, within, cost, line, batch=sequences, is_fine=batch is not None)

    def plan(self, given: Mapping[str, Any], of: Description, refused: str, *, layers: bool) -> Result:
        """Return the description and the cost of the card, and the reason if theory is not within the limits."""
        step = "step 1" if self.asked.text and self.stack.tokens > 1 else "one sequence instead of step 1"
        notes, has_rates = of.read(given)[1], step == "step 1" and not self.is_fine
        rates = ", critical learning rates" * bool(has_rates and _positions(self.stack, notes))
        what = f"the card{' with tables of layers' * layers}: {step}, layers, a change{rates}"
        at = batch_text(self.batch, self.stack.tokens, self.text, self.asked.of_tokens)
        return planned((self.stack, notes, of), at, what, self.cost, *[f"  limits    {refused}"] * bool(refused))

    @property
    def numbers(self) -> dict[str, Any]:
        """Return the predicted numbers by name."""
        of_text = {"tokens": self.stack.tokens, "text": self.text, "texts": self.texts, "why_not": self.why_not}
        return {**asdict(self.line), **of_text}


def model_card(
    given: Mapping[str, Any], of: Description, *, text: str | None = None, layers: bool = False,
    every_layer: bool = False, plan: bool = False, batch: tuple[Asked, int] | None = None, **how: Any,
) -> Result:  # fmt: skip
    """Return the summary of a network that `gradbounds predict` prints first, and the tables of its layers on request.

    Only a model has step 1 of a run and critical rates. With samples or comparisons, the card omits them. With a batch,
    the result is `predict_batch`'s, and its lines begin with the card of this batch where it is one of a model's text.

    Args:
        given: fields of the network.
        of: further description of the network.
        text: name or file of the text law of step 1; None for the default.
        layers: whether tables of layers follow.
        every_layer: whether the tables list every layer.
        plan: whether to only estimate time and memory.
        batch: a batch and its number of sequences; None for a quick estimate of the default batch.
        how: other arguments of `predict_stack`.

    Raises:
        ValueError: as `predict_stack`.
    """
    layers = layers or every_layer
    limits = {name: how[name] for name in ("patterns", "max_time", "memory")}
    if batch and (not of.is_model or batch[0].text in (None, DISTINCT)):
        return predict_batch(*batch, of, plan=plan, every_layer=every_layer, **limits)
    asked = of.read(given := batch[0].given if batch else given)[0]
    alone = of.is_model and not how["compare"] and how["draws"] is None and not gaps(asked, "prediction")
    # Without words, the batch of step 1 replaces all sampled numbers of one sequence.
    coarse = alone and not (how["patterns"] or holds_words(asked) or gaps(replace(asked, sequences=2), "grouped"))
    how |= {"patterns": FEW_SAMPLES, "coarse": True} if coarse else {}
    step = FirstStepOfRun.of(given, of, limits, text, batch) if alone else None
    fields = _quick(given, of, how, coarse=coarse) if alone else given
    whole = (of.read(fields)[0], how["patterns"], Budget.of(how["max_time"], how["memory"]))
    single, reason, _ = way_or_reason(*whole, coarse=coarse) if step else (None, "", False)
    step = replace(step, cost=step.cost + single.cost) if step and single else step
    if plan:
        return step.plan(given, of, reason, layers=layers) if step else predict_plan(given, of, **how)
    with shown("predicting step 1", step.cost) if step else nullcontext():
        fine = predict_batch(*batch, of, every_layer=every_layer, **limits) if batch else None
        result = predict_stack(fields, of, every_layer=every_layer, tables=layers, further=not alone, **how)
        if result.values["no_rule"]:
            return fine or result
        with by_estimates(), one_numpy_thread():
            table, known = result.columns(), replace(step, result=fine) if step else None
            first = _first_step_of_run(known, of, table, limits["patterns"], every_layer=every_layer) if known else None
            run = first.result if first else None
            law = first.text if first else ""
            rates = critical_rates(result.values["stack"], law, run, is_elsewhere=batch is not None)
            option = option_of(run, law, limits["patterns"], whole[2]) if run else None
            change = change_of_step(given, of, result, run, law, limits, option=option)
    rows = _rows(given, of, result, first, rates, change, option, compared=bool(how["compare"]))
    lines, sentences = _fitted(rows, notes := result.values["notes"]), result.values["sentences"]
    step_1 = first and first.numbers | dict.fromkeys(("loss", "loss_deviation") * shares_ends(notes))
    card = {"step_1": step_1, "critical_rates": first and rates, "option": option, "lines": lines}
    if fine:
        below = ["", *(line for line in fine.lines if not line or not any(row.startswith(line) for row in lines))]
        return replace(fine, values={**fine.values, "card": card}, lines=lines, below=below)
    below = ["", *run.lines, "", *sentences["trust"]] if run and layers else [*result.below]
    return replace(result, values={**result.values, "evened_by": change, "card": card}, lines=lines, below=below)


def _rows(
    given: Mapping[str, Any], of: Description, result: Result, first: FirstStepOfRun | None,
    rates: Mapping[str, Any], change: Remedy | None, option: Option | None, *, compared: bool,
) -> list[str]:  # fmt: skip
    # Returns the rows of a card, before long ones are wrapped.
    stack, notes, table = result.values["stack"], result.values["notes"], result.columns()
    run, longest = None if first is None else first.result, None if "tokens" in given else context(notes)
    layers = _layers(stack, table, run, notes, rest="below" if first and first.is_fine else "--layers")
    sequence = f"Compared for one sequence of {tokens_text(stack.tokens)}, not for a batch of text"
    return [
        *[sequence] * (of.is_model and compared), *(ignored := _ignored(notes)),
        *_head(stack, notes, _named(of.like or model_type(notes) or "", given, of) if of.is_model else ""),
        *_drawn(given, of, stack, notes, table),
        *(
            _one_sequence(stack, table, has_loss=not shares_ends(notes))
            if first is None
            else [
                *_verdict(option, layers, first, has_loss=not shares_ends(notes)),
                *_run_lines(first, stack, table, longest, notes)]
        ),
        *layers.lines,
        *change_rows(table, run, change, option),
        *_rate_lines(rates),
        *_limits(stack, first, result)[bool(ignored) :],  # the evidence is for the model's own norms
    ]  # fmt: skip


def _with_parameters(rows: Sequence[str], notes: Sequence[Note]) -> list[str]:
    # Adds to a matrix, where it is mentioned first, the name of its parameter in the class of the model.
    text, family = "\n".join(rows), model_type(notes) if drawn_by(notes) == HUGGING_FACE else None
    names = next((names for names, families in _PARAMETERS.items() if family in families.split()), "- - - -")
    for role, name in zip(("WO", "WG", "W1", "W2"), names.split(), strict=True):
        if name != "-" and (role, name) != ("WG", "gate_up_proj"):  # one parameter for WG and W1
            text = re.sub(rf"\b{role}\b", f"{role} ({name})", text, count=1)
    return text.split("\n")


def _ignored(notes: Sequence[Note]) -> list[str]:
    # Names up to five keys of the file that were ignored on request.
    ignored = [note.field for note in notes if note.reason == _IGNORED]
    ignored[5:] = [f"{len(ignored) - 5} others"] * (len(ignored) > 5)
    them = "them" if len(ignored) > 1 else "it"
    return [
        f"Without {', '.join(ignored)} (--ignore): numbers hold for the model without {them}; your own module: "
        "gradbounds probe FILE:NAME"
    ] * bool(ignored)


def _fitted(rows: Sequence[str], notes: Sequence[Note]) -> list[str]:
    # Wraps the rows of a card. A card that is too long lacks the reasons for matrices, or else also their parameters.
    kept = [row for row in rows if not row.startswith("  why ")]
    for each in (_with_parameters(rows, notes), _with_parameters(kept, notes), kept):
        lines = [
            part for row in each for part in _wrapped(row, subsequent_indent=_INDENT if row.startswith("  ") else "  ")
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


def at_context(given: Mapping[str, Any], of: Description, limits: Mapping[str, Any], text: str | None = None) -> Asked:
    """Return the batch at the context, or at the largest of its halves that a tied vocabulary has token ids for.

    Without a given number of tokens, the ids suffice for two sequences, from which theory predicts the batch, with
    coarse groups of tokens, which require twice as many.

    Raises:
        ValueError: the network cannot be read with few tokens, either.
    """
    stack, notes = of.read(given)
    tokens = given.get("tokens") or context(notes) or stack.tokens
    while True:
        try:
            asked = resolve_batch({**given, "tokens": tokens}, of, text=text, **limits)
            replace(of.read(asked.given)[0], sequences=1 if "tokens" in given else 4)
            return asked
        except ValueError:
            if tokens < 2 * FEWEST_TOKENS:
                raise
            tokens //= 2


def _first_step_of_run(
    step: FirstStepOfRun, of: Description, table: Columns, patterns: int | None, *, every_layer: bool
) -> FirstStepOfRun:
    # Predict step 1 of a card; without the norm if it takes longer or has no rule.
    known = replace(step, line=replace(step.line, loss=loss_of(table)))
    if step.asked.text is None or step.stack.tokens == 1:
        needs = [f"such a network; it needs {gap.needs}" for gap in gaps(replace(step.stack, sequences=2), "grouped")]
        where = [*needs, "such a network"][0] if step.stack.tokens > 1 else "sequences of one token"
        return replace(known, why_not=f"unknown: theory has no rule for repeated tokens in {where}")
    try:
        result = step.result or quick_batch(step.asked, step.batch, of, every_layer=every_layer, **step.limits)
    except OverBudgetError:
        takes = cpu_time(cost_of_batch(step.stack, law_of(step.stack, step.text), patterns)[0].seconds)
        return replace(known, why_not=f"not computed, because it takes about {takes}; --batch {BATCH} prints it")
    except ValueError as error:  # no rule, or tied embeddings whose softmax is too sure
        return replace(known, why_not=f"unknown: {str(error).partition(';')[0]}")
    line = result.values["line"]
    return replace(known, line=line, texts=norms_of_texts(step.stack, step.text, line), result=result)


def rate_range(
    stack: Stack, scales: Sequence[float], optimizer: Optimizer, multiplier: float = 1.0, masked: float = 0.0
) -> tuple[float, float]:
    """Return the smallest and largest measured critical rate divided by the predicted one.

    They contain the rates of 9 in 10 networks at least, and are wider at other factors than the measured ones. The
    result is (0, inf) where no network was measured.

    Args:
        stack: the network.
        scales: the factor of `BatchStep.rescaled`, or the limits of its error.
        optimizer: name of the optimizer.
        multiplier: constant by which the model multiplies its output logits.
        masked: share of masked words.
    """
    low, high = measured_rates(stack, multiplier, masked)[1].get(optimizer, (0.0, math.inf))
    return (
        (min(low, 1.0 / _ROUGH), max(high, _ROUGH))
        if evidence(stack, scales, multiplier, masked) == "extrapolated"
        else (low, high)
    )


def evidence(stack: Stack, scales: Sequence[float], multiplier: float = 1.0, masked: float = 0.0) -> str:
    """Name the evidence for the range of a critical rate, by the arguments of `rate_range`; "" if none was measured."""
    low, high = MEASURED_SCALES.get(stack.placement, (0.0, math.inf))
    return ("in 9 of 10 networks" if low <= min(scales) and max(scales) <= high else "extrapolated") * bool(
        measured_rates(stack, multiplier, masked)[1]
    )


def critical_rates(
    stack: Stack, text: str, result: Result | None, *, fine: bool = False, is_elsewhere: bool = False
) -> dict[str, Any]:
    """Return the critical learning rates for a predicted batch with the limits of their errors, or the reason.

    Args:
        stack: the network.
        text: name of the law of the batch's text; "" without a run.
        result: result of `predict --batch`; None if there is none.
        fine: whether to estimate them as `predict --learning-rate` does, however long it takes.
        is_elsewhere: whether the reason is always that view, whose finer rates would differ from quick ones.
    """
    notes = () if result is None else result.values["notes"]
    if has_own_rates(notes):
        return {"no_rule": f"unknown, as {OWN_RATES[:-1]}"}
    if missing := gaps(replace(stack, tokens=2), "first_step"):
        return {"no_rule": f"unknown, as theory has no rule for a first step of {missing[0].networks}"}
    if result is None:
        needs = "not computed without the gradient norm;" if text else "for one sequence --first-step, for a batch"
        return {"no_rule": f"{needs} {_RATE_VIEW}"}
    sequences = result.values["batch"]
    view = f"{f'--batch {sequences} ' * (sequences != BATCH)}{_RATE_VIEW}"
    batch = replace(stack, tokens=result.values["stack"].tokens)
    law = law_of(batch, text)
    assert law is not None, "a batch was predicted"
    counts = [POSITIONS] if fine else [] if is_elsewhere else _positions(stack, notes)
    if not counts:
        takes = cpu_time(cost_of_steps(batch, [*RATES], sequences).seconds)
        return {"no_rule": f"not computed here; {view} prints the rate to stay below ({takes} more)"}
    networks, critical = None if fine else _NETWORKS[stack.embeddings], dict[Optimizer, float]()
    for count in counts:
        try:
            steps = batch_steps(
                batch, [*RATES], sequences, law, positions=count, networks=networks,
                multiplier=logit_multiplier(notes), masked=result.values["line"].masked,
            )  # fmt: skip
        except ValueError as error:  # such as few masked words, or a mask of its own for one number of tokens
            return {"no_rule": f"unknown, as {str(error).partition(';')[0]}"}
        scale, half = result.values["matrices_sq"] / steps["sgd"].gain, critical
        rescaled = {name: steps[name].rescaled(scale) for name in RATES}
        critical = {name: rescaled[name].critical_rate for name in RATES}
    fewer, beyond, least_scale = (_FEWER, _MORE, 0.0) if count < POSITIONS else (dict.fromkeys(RATES, 1.0), 1.0, scale)
    kind, scales = (logit_multiplier(notes), result.values["line"].masked), (least_scale, scale)
    ranges = {name: rate_range(stack, scales, name, *kind) for name in RATES}
    rises = measured_rates(stack, *kind)[2]
    if not all(rate > 0.0 for rate in critical.values()):
        return {"no_rule": "unknown: theory's estimate of the gain or of the curvature is not positive here"}
    if any(critical[name] < _HALVED[name] * rate for name, rate in half.items()):
        return {"no_rule": f"a quick estimate is too rough here; {view}"}
    return {"positions": count, "kernel_scale": scale, "evidence": evidence(stack, scales, *kind)} | {
        name: rate_limits(rate, (fewer[name] * ranges[name][0], beyond * ranges[name][1]), rises.get(name))
        | {"gain": rescaled[name].gain}
        for name, rate in critical.items()
    }


def rate_limits(rate: float, limits: tuple[float, float], rises: tuple[float, float] | None) -> dict[str, float | None]:
    """Return a critical rate with its lower and upper limit, and the largest rate at which all sampled losses fell.

    Args:
        rate: predicted critical rate.
        limits: limits of the critical rate divided by the predicted one, as in `rate_range`.
        rises: the optimizer's entry of `RISES`; None if no losses were sampled in such networks.
    """
    low, high = (rate * limit if limits[0] else None for limit in limits)
    return {"rate": rate, "low": low, "high": high, "rises": low and rises and low * rises[0]}


def _positions(stack: Stack, notes: Sequence[Note]) -> list[int]:
    # Return the largest number of positions whose critical rates take some seconds, after its half if it is not 64.
    #
    # There is none without a rule, or with experts. In ten networks with 8 to 64 gated experts (top 1 to 8), rates by
    # 64 positions were 0.53 to 1.00 times (AdamW) and 0.25 to 0.98 times (SGD) those by 16 positions
    # (tests/evidence/few-positions.json). With Qwen3 30B A3B, 8 positions took 3 CPU s and 16 took 5 CPU s of a busy
    # machine, more than a card of 10 s has left.
    soon = [
        count
        for count in (POSITIONS, POSITIONS // 2, POSITIONS // 4, POSITIONS // 8)
        if count <= stack.vocab
        and not (stack.experts or has_own_rates(notes))
        and not gaps(replace(stack, tokens=2), "first_step")
        and 7e-7 * count * stack.vocab + 4e-6 * stack.depth * stack.heads * count**2 < _RATE_SECONDS
    ]
    return [*[soon[0] // 2] * (soon[0] < POSITIONS), soon[0]] if soon else []


def _named(name: str, given: Mapping[str, Any], of: Description) -> str:
    # Adds the flags that change a model to its name. Other rows print who draws the weights, and the number of tokens.
    flags = {**given, "tokens": HUGGING_FACE}
    changed = [f" --{name.replace('_', '-')} {value}" for name, value in flags.items() if value != HUGGING_FACE]
    return f"{name or 'network'} with{''.join(changed)}" if changed else name


def _head(stack: Stack, notes: Sequence[Note], name: str) -> list[str]:
    units = f"{'gated ' * (stack.ffn == 'gated')}{stack.activation} units"
    of_heads = (  # with experts, one line is full
        f" of width {stack.key_width}" * ("--width " in name and "--heads " not in name)
        + f" ({stack.kv_heads} KV)" * bool(stack.kv_heads and not stack.experts)
    )
    if stack.experts:
        units = f"{stack.experts_per_token} of {stack.experts} {units.replace('units', 'experts')}"
    encoder = f"{stack.encoder_depth or stack.depth} encoder and " * bool(stack.source_tokens)
    parts = [
        TITLES[stack.placement], f"{encoder}{stack.depth} {'decoder ' * bool(encoder)}layer{'s' * (stack.depth > 1)}",
        f"width {stack.width}",
        f"{stack.heads} head{'s' * (stack.heads > 1)}{of_heads}", units, f"vocabulary {stack.vocab:,}",
        "tied head (theory: untied)" if shares_ends(notes) else f"{stack.embeddings} head",
        *[f"depth mixing {'by a matrix' if has_rows(stack) else stack.depth_mixing}"] * (stack.depth_mixing != NONE),
        *["layers below: the decoder's"] * bool(encoder),
    ]  # fmt: skip
    lines = [f"{name}: {', '.join(parts)}" if name else ", ".join(parts)]
    lacking = lacking_sizes(notes)
    return [*lines, *unread_line(notes), *[f"The file lacks sizes; its class sets them: {lacking}"] * bool(lacking)]


def _drawn(given: Mapping[str, Any], of: Description, stack: Stack, notes: Sequence[Note], table: Columns) -> list[str]:
    # Name the rule that initializes the weights, and the flags of other rules, with their loss where it is known.
    drawn, names = next((str(note.reason) for note in notes if note.what == "drawn"), ""), []
    for name in other_codes(notes):
        try:
            other = loss_of_head(replace(of, drawn_by=name).read(given)[0])
        except ValueError:  # a given field contradicts the rule
            continue
        loss, by_head = loss_of(table), loss_of_head(stack)
        differs = abs(by_head - loss) < SAME_LOSS < abs(other - loss)
        names.append(f"{name}{f' (loss {other:.2f})' * differs}")
    names.sort(key=lambda name: "(" not in name)  # where only the norm differs, last
    others = [f"; other training code: --drawn-by {', '.join(names)}"] * bool(names and of.drawn_by == HUGGING_FACE)
    older = [note.value for note in notes if note.what == "older" and stack.depth_scaling != "none"]
    others += [f", scaled by depth; not by transformers {versions}: --depth-scaling none" for versions in older]
    drawn = re.sub("; .*", ")", drawn.replace("transformers' ", "").replace("the file's ", ""))
    return [f"Weights: {drawn}{''.join(others)}"] * bool(drawn)


def _one_sequence(stack: Stack, table: Columns, *, has_loss: bool) -> list[str]:
    # Returns loss and gradient norm for sequences whose tokens all differ.
    norm = math.sqrt(sum((shares := squared_norms(table)).values()))
    missing = [gap for subject in ("grouped", "noise_scale") for gap in gaps(replace(stack, sequences=2), subject)]
    ranges = f"; normal ranges: --batch {BATCH} --text {ZIPF}" * (not missing)
    losses = [f"{LOSS_OF_UNTIED * (not has_loss)}{loss_of(table):.4g}"] if "loss" in table["quantity"] else []
    return [
        f"At initialization: {sequences_text(stack)} of {tokens_text(stack.tokens)}"
        + f" that all differ{ranges}" * (stack.tokens > 1),
        *[card_row("loss", loss) for loss in losses],
        card_row("gradient norm", f"{norm:.4g} for all matrices, root mean square over networks"),
        *(share_rows(shares, stack, table, "") if norm > 0 else []),
    ]  # fmt: skip


def _verdict(
    option: Option | None, layers: LayerSummary, step: FirstStepOfRun, *, has_loss: bool = True
) -> list[str]:  # fmt: skip
    # Answer first what to do, and then which sign to watch. Unequal layers matter only to SGD.
    #
    # If all positions have equal states, their predictions are equal, too. The smallest loss is then the entropy of the
    # token frequencies. Two sampled networks stayed near it longer than with an option (docs/configurations.md).
    slow, name = layers.slowest
    then = f"{'try the row `option`' if option else 'test changes: --compare'} (effect on training unknown)"
    if layers.fullest:
        first = (
            f"keep this initialization, but log each expert's share of tokens: in one layer, {layers.fullest:.0%} of "
            f"them choose one expert. If most experts stay idle, {then}"
        )
    elif layers.alike:
        law = law_of(step.stack, step.asked.text)
        best = "the best loss from token frequencies alone"
        near = f"at {best}" if law is None else f"near {entr(law.frequencies).sum():.0f} ({best})"
        first = f"keep this initialization. If the loss stalls {near}, tokens may be too alike: {then}"
    elif step.result is None:
        first = "one sequence gives no reason to change this initialization"
    elif slow < 0.5:
        epsilon = f"{enough_epsilon(slow):.0e} (1e-08: {name} moves ~{slow:.1g}x)"
        first = f"keep this initialization, but lower AdamW's epsilon to {epsilon}"
    else:
        first = "keep this initialization: step 1 shows no fault"
    return [f"Verdict (AdamW, Muon): {first}{'. Your log: --logged FILE' * has_loss}"]


def _run_lines(
    first: FirstStepOfRun, stack: Stack, table: Columns, longest: int | None, notes: Sequence[Note]
) -> list[str]:
    fewer = longest is not None and first.stack.tokens < longest
    of_context = f" (its context of {longest} has no quick prediction)" if fewer else ""
    maximum = " (the config's maximum)" * (longest is not None and not fewer)
    at = batch_text(first.batch, first.stack.tokens, first.text, first.asked.of_tokens or maximum)
    other = f"yours: --batch S{' --tokens N' * (longest is not None)} --text FILE"
    lines = [f"Step 1: {at}{of_context}{'' if first.is_fine else f'; {other}'}"]
    loss, norm = normal_ranges(first.line, notes, texts=bool(first.texts))
    if first.result is None:
        squares = squared_norms(table)
        squares["output matrix"] *= gradient_factors(notes).get("Wemb", 1.0)
        carried = share_rows(squares, stack, table, f"; one sequence of {tokens_text(stack.tokens)}")
        return [*lines, card_row("loss", loss), card_row("gradient norm", first.why_not), *carried]
    batch, norms, uniform = first.result.columns(), first.result.columns("layers"), math.log(stack.vocab)
    squares = {name.replace("dL/d", ""): square for name, square in zip(batch["name"], batch["grad_sq"], strict=True)}
    added = first.line.loss - uniform
    return [
        *lines, card_row("loss", f"{loss}; ln V {uniform:.2f}{f' + {added:.2f} by random logits' * (added > 0.005)}"),
        card_row("gradient norm", norm),
        *share_rows(
            squares, stack, norms, "; table: below" * first.is_fine, first.result.values["reasons_of_largest"]
        ),
    ]  # fmt: skip


def _layers(stack: Stack, table: Columns, run: Result | None, notes: Sequence[Note], *, rest: str) -> LayerSummary:
    # Compare the layers, in the batch of step 1 if it is known.
    larger = [
        f" (larger batches: {name} {float(f'{ratio:.2g}'):g}x)"
        for name, ratio in (run.values["of_larger_batch"] if run else {}).items()
    ]
    here = f"{run.values['batch']} sequence{'s' * (run.values['batch'] > 1)}{''.join(larger[:1])}" if run else ""
    of, whole = (here, run.values["gradient_norm"] ** 2) if run else ("", 0.0)
    summary = layer_summary(
        stack, run.columns("layers") if run else table, of, whole, notes, coarse=bool(run and run.values["coarse"])
    )
    return replace(summary, lines=[f"{line}{f'; table: {rest}' * (not k)}" for k, line in enumerate(summary.lines)])


def _rate_lines(rates: Mapping[str, Any]) -> list[str]:
    if "no_rule" in rates:
        return [f"Learning rate of step 1: {rates['no_rule']}"]
    return [
        f"Learning rate of step 1 (peak / warm-up steps; {_PEAK} / 2000 is 1.5e-07); finer: --learning-rate R "
        "--warmup-steps N",
        card_row(RATES["adam"], _rate_row(rates["adam"], " (extrapolated)" * (rates["evidence"] == "extrapolated"))),
    ]


def _rate_row(ends: Mapping[str, float | None], about: str) -> str:
    # Return the rate below which step 1 lowers the loss, as a usual peak over a number of warm-up steps, and its range.
    if not (low := ends["low"]):
        return rate_text(ends)
    safe = min(low, ends["rises"] or low)
    least, highest = _digits(safe), _digits(ends["high"] or 0.0)
    steps = f" ({_PEAK} in {math.ceil(float(_PEAK) / safe)} steps or more)" * (safe < float(_PEAK))
    return f"below {least}{steps}, the loss falls; limit{about}: {least} to {highest}"


def _digits(rate: float) -> str:
    return f"{rate:.1e}" if rate < 1e-3 else f"{rate:.2g}"


def rate_text(ends: Mapping[str, float | None], known: str = "") -> str:
    """Return the rate below which step 1 lowers the loss, and from which rates on it may raise it.

    Args:
        ends: result of `rate_limits`.
        known: evidence for the limits of the critical rate, as text.
    """
    low, rate, high, rises = (_digits(ends[name] or 0.0) for name in ("low", "rate", "high", "rises"))
    if not ends["low"]:
        return f"critical rate {rate}; its error is not measured in such networks"
    theory = f"theory's limit: {low} to {high}{f', {known}' * bool(known)}"
    if ends["rises"] is None:
        safe, sampled = low, "not sampled"
    else:
        safe = low if ends["low"] < ends["rises"] else rises
        sampled = f"no loss of a sampled network rose below {rises}"
    return f"stay below {safe}, or step 1 may raise the loss ({theory}; {sampled})"


def _limits(stack: Stack, first: FirstStepOfRun | None, result: Result) -> list[str]:
    # State the error to expect and its evidence, and the parts that were not tested or are omitted.
    trust, evidence = Trust.of(stack), result.values["compared_with_code"] or ""
    masked = first.line.masked if first else 0.0
    if first is not None and first.result is not None:
        is_sampled = stack.placement == "pre" and stack.activation in _UNITS
        expected = f"Tested: {_PUBLIC}" if is_sampled else f"Extrapolated from GPTs and Llamas ({_PUBLIC})"
        if has_experts(stack):
            expected = (
                f"Ranges {'extrapolated from' if stack.width > 512 else 'contain 47 of 48 numbers of'} {_EXPERTS}"
            )
    elif trust.error <= CERTAIN and trust.why[:8] in ("", "not wide"):
        kind = "extrapolated from" if trust.why else "as in"
        expected = f"Expect errors of up to {trust.error:.1%} by finite width ({stack.width}), {kind} sampled networks"
    else:
        reason = re.sub("stacks of the family '.*?'", "networks of this kind", trust.why.partition(": ")[2])
        expected = f"Error by finite width ({stack.width}) unknown: {reason}"
    if match := _EVIDENCE.match(evidence):
        of, sizes, _, off, count = match.groups()
        at_width = f" at {sizes}" * ("finite width" in expected)
        expected += f"; {int(count) - int(off)} of {count} numbers of a small {of} agree{at_width}"
    left_out = ", ".join(
        f"{note.value} ({note.reason.partition(';')[0]})"
        if note.field in ("architectures", "model_type")
        else note.field
        for note in result.values["notes"]
        if note.what == "left out" and note.reason != _IGNORED and not (masked and masked_share([note]))
    ).replace("W_emb as the output", f"{drawn_by(result.values['notes'])}'s factor on the logits")
    cheaper = result.values["cheaper"] if first is None or first.result is None else None  # of one sequence
    reasons = [f"all tokens and samples, for time and memory ({cheaper})"] * bool(cheaper) + [left_out] * bool(left_out)
    return [expected, *[f"Not tested: {'; '.join(reasons)}"] * bool(reasons)]
