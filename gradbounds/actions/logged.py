"""The view `gradbounds predict --logged`: compare step 1 of a training log with theory, and explain a difference."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from gradbounds.actions.batch import deviation_lines, law_of, line_text
from gradbounds.actions.first_line import normal_ranges, spread_of_texts, text_lines
from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.actions.logged_as import LoggedAs, Reading, has_line, reading
from gradbounds.actions.logged_causes import (
    BEYOND,
    DRAWN_BY,
    TRAINED,
    UNLIKELY,
    WITH_TEXT,
    Cause,
    combined_causes,
    logging_causes,
    matrix_causes,
    off_words,
    separating_tests,
)
from gradbounds.actions.logged_layers import compare_with_theory, far_lines, layer_lines
from gradbounds.actions.logged_theory import ANOTHER_TEXT, Theory, doubts_of
from gradbounds.actions.plan import batch_text, planned
from gradbounds.budget import Budget, each_once
from gradbounds.described_network import Description
from gradbounds.layer_summary import card_row
from gradbounds.network_text import drawn_lines, note_lines, number_text, other_codes, title
from gradbounds.progress import shown
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from theory.configurations import Note
from theory.configurations.training_codes import TRAINING_CODES

# The effect on training of a cause that only multiplies numbers, by a pattern of its words; {0} multiplies the norm.
_HARMS = {
    "^the loss is (in|added|divided|multiplied) ": "only the log is wrong",
    "loss scale|^the norm (is squared|is of|counts)": "only the log is wrong, unless clipping uses the logged norm",
    "gradient (is|are) |^the loss is a ": "AdamW's step stays the same except for epsilon, clipping at norm 1 acts "
    "from a norm of {1:.2g} on, and SGD without clipping moves {0:.2g} times as far",
}
_MOST_LINES = 5  # of causes
_TRAINED = ", so the weights are trained"
_FINE, _LOW, _ALONE = (
    "Step 1 is as predicted",
    "The loss is {:.2g} below ln V = {:.4g}; losses of such random weights are at most {:.2g} below it. So the weights "
    "are trained, the loss is divided, the vocabulary is smaller, or the step is later.\n",
    "The log has no loss and no gradient norm of step 1. Only the norms of single matrices are compared with theory. "
    "To judge step 1, log its loss.",
)


def predict_logged(
    given: Mapping[str, Any], batch: int, of: Description, logged: Path, *, logged_as: Sequence[str] = (),
    text: str | None = None, patterns: int | None, max_time: str | None, memory: str | None = None, of_tokens: str = "",
    is_default: bool = False, is_quick: bool = False, plan: bool = False,
) -> Result:  # fmt: skip
    """Compare step 1 of a training log with theory, and list the usual causes that would explain a difference.

    `logged_as` has the words of `LoggedAs.of`. With `is_quick`, norms of single matrices are not judged.

    Raises:
        ValueError: an argument, the log or a configuration is not valid, or norms exceed their stated clipping.
        NoRuleError: there is no rule for the network.
        OverBudgetError: theory would take more than it may.
    """
    budget = Budget.of(max_time, memory)
    check_count("batch", batch, 1)
    check_count("patterns", 2 if patterns is None else patterns, 2)
    asked, line, (stack, notes) = LoggedAs.of(logged_as), read_log(logged), of.read(given)
    read = reading(replace(line, parameters={}) if is_quick else line, asked, batch * stack.tokens)
    law, spread = law_of(stack, text), spread_of_texts(text, stack.vocab)
    theory = Theory(stack, batch, of, law, patterns, budget, spread, read.line.parameters)
    at = batch_text(batch, stack.tokens, text, of_tokens)
    what, cost, further = theory.announced(given, read.line, coarse=not read.line.parameters)
    if plan:
        also = f"  of these  about {duration(further.seconds)} for causes, if the log is not as predicted"
        what = f"loss and gradient norm, to judge {logged}"
        return planned((stack, notes, of), at, what, cost, also, seconds_of_causes=further.seconds)
    with each_once(), shown(what, cost):
        for coarse in (False,) if read.line.parameters else (True,) if is_quick else (True, False):
            healthy = theory.healthy(notes, coarse=coarse)
            layers, unmatched = compare_with_theory(read.line.parameters, theory.squares)
            read.check(layers)
            is_fine, verdict, causes = _judged(
                theory, healthy, read, layers, given, notes, is_free=is_default or not text
            )
            texts = [cause for cause in causes if cause.is_text and not cause.is_fitted]
            if theory.is_sure([healthy, *texts], read.line):
                break
    facts = [f"{logged}: {has_line({'loss': line.loss, 'gradient norm': line.norm})}, {line.facts()}.", *read.lines]
    facts += ["A quick estimate does not judge norms of single matrices: --max-time, --memory."] * is_quick
    lines = [verdict[0], "", *facts]
    lines += verdict[1:] if _TRAINED in verdict[0] else [
        f"Theory: {line_text(healthy.line)}, at {at}.",
        *map(card_row, ("loss", "gradient norm"), normal_ranges(healthy.line, notes, texts=spread > 0.0)),
        "", *verdict[1:], *layer_lines(layers, unmatched), "",
        *(text_lines(stack, text, healthy.line) if is_default else []), *deviation_lines(healthy.line),
        *drawn_lines(notes, others=False), *_code_lines(notes, causes, read.line), "",
        title(stack), *note_lines(notes, masked=healthy.line.masked),
    ]  # fmt: skip
    values = {
        "stack": stack, "batch": batch, "as_it_should_be": is_fine, "logged_loss": read.line.loss,
        "logged_norm": read.line.norm, "loss": healthy.line.loss, "loss_deviation": healthy.line.loss_deviation,
        "gradient_norm": healthy.line.norm, "notes": notes, "read_as": read.lines,
        "gradient_norm_deviation": healthy.line.norm * healthy.line.log_deviation,
    }  # fmt: skip
    return Result(
        about=f"step 1 of {logged}", values=values, lines=lines, alarm=is_fine is False, is_open=is_fine is None,
        tables={"causes": _table(causes, read.line)} | ({"layers": layers} if read.line.parameters else {}),
        figures={"logged": partial(_drawn, values, layers)},
    )  # fmt: skip


def _code_lines(notes: Sequence[Note], causes: Sequence[Cause], printed: LogLine) -> list[str]:
    # Name the other codes that train such models, and the first step that each predicts where it was computed.
    codes, logged = other_codes(notes), printed.norm or math.nan
    return [
        f"The verdict holds for these weights. If other code draws them, add --drawn-by {' or '.join(codes)}.",
        *(f"  --drawn-by {name} ({TRAINING_CODES[name].rule}): "
          f"{'explains' if cause.explains(printed) else 'alone does not explain'} the log; loss {cause.line.loss:.4g}"
          + f", gradient norm {cause.line.norm:.4g}" * (cause.line.norm > 0)
          + f" (log: {logged / cause.line.norm:.3g} times)" * (logged * cause.line.norm > 0)
          for name in codes for cause in [each for each in causes if each.words.endswith(f"({name})")][:1]),
    ] * bool(codes)  # fmt: skip


def _table(causes: Sequence[Cause], printed: LogLine) -> pd.DataFrame:
    # Return the causes, and whether each explains the log.
    return pd.DataFrame(
        [
            (each.words, each.line.loss, each.line.norm, each.distance(printed), each.explains(printed), each.tried)
            for each in causes
        ],
        columns=["cause", "loss", "gradient_norm", "distance", "explains", "tried"],
    )  # fmt: skip


def _drawn(values: dict[str, Any], layers: pd.DataFrame) -> Any:
    from figures.logged_step import logged_step  # late: it loads matplotlib

    return logged_step(values, layers, BEYOND)


def _judged(
    theory: Theory, healthy: Cause, read: Reading, layers: pd.DataFrame, given: Mapping[str, Any],
    notes: tuple[Note, ...], *, is_free: bool,
) -> tuple[bool | None, list[str], list[Cause]]:  # fmt: skip
    """Return whether the first step of a log is as predicted, the lines that say so, and causes, the likeliest first.

    The first result is None if that is undecided; the first line states what would decide it.

    Args:
        theory: predictions for the network.
        healthy: predicted first line of the network.
        read: the log.
        layers: logged norms of single matrices next to theory's.
        given: fields of the network.
        notes: notes on the network's configuration.
        is_free: whether the user gave no text, so that any known text explains the log.
    """
    printed, stack = read.line, theory.stack
    if printed.loss is None and printed.norm is None:
        return None, [_ALONE], []
    fine = replace(healthy, line=replace(healthy.line, matrices=()))
    healthy = replace(healthy, line=theory.with_fall(stack, notes, healthy.line, printed))
    if fine.explains(printed):
        if lines := _open_lines(healthy, theory, printed):
            return None, lines, []
        far = far_lines(layers, _FINE)
        rare = "; ".join(off_words(healthy, printed))
        falls = _fall_lines([healthy], printed) if healthy.contradicts(printed) else []
        return not far, far or [f"{_FINE}{', though outside 95% of runs: ' * bool(rare)}{rare}.", *falls], []
    missing: list[str] = []
    causes = [*matrix_causes(healthy.line, layers, read), *logging_causes(healthy.line, read, stack, theory.batch)]
    loss, uniform = printed.loss or math.inf, math.log(stack.vocab)
    if loss < TRAINED * uniform and not any(cause.explains(printed) and not cause.is_fitted for cause in causes):
        return None, _trained_lines(loss / uniform, printed, causes), causes
    theory.coarsen(healthy, notes)
    texts = theory.texts(healthy, notes, printed, missing) if is_free else []
    others = [*theory.others(given, printed, missing)]
    alone = {each.kind: each for each in sorted([*causes, *others], key=lambda each: -each.surprise(printed))
             if each.explains(printed)}  # fmt: skip
    causes = [
        *(theory.with_texts(healthy, others, read, alone) if is_free else []),
        *causes, *others, *combined_causes(others, read, stack, theory.batch),
    ]  # fmt: skip
    ranked = _ranked([*texts, *causes], printed)
    off, ratio = healthy.offs(printed)[0], (printed.norm or healthy.line.norm) / healthy.line.norm
    # No text moves the loss further, and the norm of a batch of equal tokens is the root of their number times larger.
    is_missing = (
        ANOTHER_TEXT in missing
        and abs(off) <= BEYOND
        and abs(math.log(ratio)) <= 0.5 * math.log(theory.batch * stack.tokens)
    )
    doubts = doubts_of(healthy, texts, printed, is_missing=is_missing)
    first, *rest = _off_lines(healthy, printed, ranked, doubts)
    lowest = theory.lowest_loss(healthy.line, is_free=is_free)
    if missing:
        rest += [f"Causes not computed, for lack of a rule or of time (--max-time): {'; '.join(missing)}."]
    low = _LOW.format(uniform - loss, uniform, uniform - lowest) * (loss < lowest)
    return None if doubts else False, [f"{low}{first}", *rest], ranked


def _ranked(causes: Sequence[Cause], printed: LogLine) -> list[Cause]:
    # Sort causes, the likeliest first, after texts like those of --text english or code.
    return sorted(causes, key=lambda each: (each.is_fitted or not each.is_text, each.surprise(printed)))


def _trained_lines(share: float, printed: LogLine, causes: Sequence[Cause]) -> list[str]:
    # States that weights are trained, for a loss of a share of ln V, unless a cause with a fitted number explains it.
    others = [cause for cause in causes if not cause.explains(printed)]
    unless = "".join(f", unless {cause.words}" for cause in causes if cause not in others)
    return [
        f"The loss is {share:.2g} times ln V{_TRAINED}{unless}. Initialization is not judged.",
        f"Tested {len(others)} other units and sums: in none would it be the loss of untrained weights.",
    ]


def _off_lines(healthy: Cause, printed: LogLine, ranked: list[Cause], doubts: list[str]) -> list[str]:
    # State which numbers are off, and which causes explain them.
    is_unlike = all("no text of --text english or code explains" in each for each in doubts)  # also without a doubt
    verdict = f"not as predicted{' for English text or code' * bool(doubts)}" if is_unlike else "undecided"
    tested = sum(cause.tried for cause in ranked)
    decide = f"\nTo decide, {'; and '.join(doubts)}." * bool(doubts)
    lines = [f"Step 1: {verdict}: {'; '.join(off_words(healthy, printed))}.{decide}"]
    kinds = dict[str, Cause]()
    for cause in (ranked := _ranked(ranked, printed)):
        if cause.explains(printed):
            kinds.setdefault(cause.kind, cause)
    least = min((cause.surprise(printed) for cause in kinds.values()), default=0.0)
    near = [each for each in kinds.values() if each.is_text or each.surprise(printed) <= least + UNLIKELY]
    near = sorted(near, key=lambda each: not each.is_text)[:_MOST_LINES]  # a text decides the verdict
    near.sort(key=lambda each: (each.contradicts(printed, at_rate_0=True), ranked.index(each)))
    if not near:
        return [
            *lines, f"None of {tested} tested causes explains these numbers.",
            "Tested: sums instead of means, a padded vocabulary, tied embeddings, other initializations, clipped or "
            "squared norms, loss scales and other units (docs/training_logs.md).",
            "Next: log the gradient norm of every matrix in the same file, give --text FILE, or test your module with "
            "gradbounds probe.",
        ]  # fmt: skip
    numbers = has_line({"loss": printed.loss, "gradient norm": printed.norm})
    shown_by = separating_tests(cause.words for cause in near)
    lines += [
        f"Causes that may explain {numbers}{healthy.words} ({tested} tested, "
        f"{'a text, then ' * near[0].is_text}the likeliest first):",
        *(
            f"  {cause.words}: loss {number_text(cause.line.loss, cause.line.loss_deviation)}"
            f", gradient norm {number_text(cause.line.norm, cause.line.norm_deviation)}"
            + f"; the nearest of {cause.tried} tested values"
            * (cause.tried > 1)
            for cause in near
        ),
        *_fall_lines([healthy, *ranked], replace(printed, norm=None)),
    ]
    left = [cause for cause in near if not cause.contradicts(printed)]
    only = f"If step 1 had the logged rate, the fall leaves only: {'; '.join(cause.words for cause in left)}."
    codes = [
        code[1]
        for cause in left
        if WITH_TEXT not in cause.words and (code := re.search(rf"^{DRAWN_BY} [^,]*\((\w+)\)", cause.words))
    ]
    return [
        *lines, *_harm_lines(near, healthy.line.norm),
        *[f"Next, without a new run: add --drawn-by {' or '.join(dict.fromkeys(codes))} if it draws your weights."]
        * bool(codes),
        *[only] * (0 < len(left) < len(near)),
        *["Loss and norm cannot tell these causes apart. Repeat step 1 with the same batch and one change: "
          f"{shown_by}."] * (len(near) > 1 and bool(shown_by)),
    ]  # fmt: skip


def _open_lines(healthy: Cause, theory: Theory, printed: LogLine) -> list[str]:
    # State why a step that is as predicted is undecided: the next loss contradicts it, or texts differ too much.
    if healthy.contradicts(printed, at_rate_0=True):
        return [
            "Step 1: undecided: loss and gradient norm are as predicted, but the fall of the loss to step 2 is not.\n"
            "Either other code initializes the weights (--drawn-by), or the optimizer is not AdamW, or step 1 had "
            "another rate.",
            *_fall_lines([healthy], printed),
        ]
    if theory.spread and printed.norm is not None and BEYOND * healthy.line.log_deviation > math.log(2.0):
        return [
            "Step 1: undecided: such texts differ so much that a norm of twice or half the prediction is not seen.\nTo "
            "decide, repeat with --text FILE, the token ids of your batch."
        ]
    return []


def _fall_lines(causes: Sequence[Cause], printed: LogLine) -> list[str]:
    # Compare the fall of the loss from step 1 to 2 with its prediction, for the network and other codes' weights.
    falls = {
        f"with {f'--drawn-by {code[1]}' if code else 'these weights'}": cause.fall(printed)
        for k, cause in enumerate(causes)
        for code in [re.search(rf"^{DRAWN_BY} [^,]*\((\w+)\)$", cause.words)]
        if not math.isnan(cause.line.fall) and (not k or code)
    }
    if not falls:
        return []
    each = ", ".join(f"{fall:.2g} +- {error:.2g} {words}" for words, (fall, error) in falls.items())
    return [
        f"From step 1 to 2 the loss falls by {printed.fall:.3g}; theory, for AdamW at the logged rate "
        f"{printed.rate:.3g}: {each}. Some frameworks log the next step's rate; a warm-up may begin with 0."
    ]


def _harm_lines(causes: Sequence[Cause], norm: float) -> list[str]:
    """State for causes that only multiply numbers whether they change training.

    AdamW's step m/(√v + ε) does not depend on a constant factor of all gradients, except through ε. Clipping to norm 1
    divides by the norm that it computes, if this exceeds 1.

    Args:
        causes: causes that explain a log; those with a text, whose own factor is not known here, are left out.
        norm: the predicted gradient norm.
    """
    parts = list[str]()
    for cause in causes:
        effect = next((words for pattern, words in _HARMS.items() if re.search(pattern, cause.words)), "")
        if effect and not cause.words.startswith(DRAWN_BY) and WITH_TEXT not in cause.words:
            what = re.split(r" over (?=all |the |\d+ (?!times))", cause.words)[0]
            parts += [f"if {what}, {effect.format(cause.line.norm / norm, norm / cause.line.norm)}"]
    return [f"Does it change training? I{'; '.join(parts)[1:]}."] * bool(parts)
