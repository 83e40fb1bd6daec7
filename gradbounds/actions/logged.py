"""The view `gradbounds predict --logged`: compare step 1 of a training log with theory, and explain a difference."""

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradbounds.actions.batch import deviation_lines, family_of, law_of, line_text
from gradbounds.actions.first_line import (
    COARSE,
    OF_COARSE,
    FirstLine,
    cost_of_batch,
    first_line,
    largest_loss_deviation,
    normal_ranges,
    norms_of_texts,
    repeats_of_norm,
    scale_of_batch,
    spread_of_texts,
    text_lines,
    times_of_repeats,
)
from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.actions.log_names import plain
from gradbounds.actions.logged_as import LoggedAs, Reading, has_line, reading
from gradbounds.actions.logged_layers import compare_with_theory, far_lines, layer_lines
from gradbounds.actions.plan import ZIPF, batch_text, planned
from gradbounds.budget import Budget, each_once
from gradbounds.described_network import Description
from gradbounds.layer_summary import card_row
from gradbounds.network_text import drawn_lines, note_lines, other_codes, title
from gradbounds.progress import shown
from gradbounds.result import Result
from gradbounds.units import duration
from simulate.counts import check_count
from theory import NoRuleError, Stack
from theory.configurations import Note
from theory.configurations.training_codes import HUGGING_FACE, TRAINING_CODES
from theory.configurations.vectors import learned_vectors
from theory.coverage import require
from theory.mean_field.cost import Cost
from theory.mean_field.gaussian import LARGEST_SCALE, cross_entropy
from theory.mean_field.kernels import Array
from theory.mean_field.text_law import TextLaw
from theory.mean_field.token_groups import Coarse
from theory.mean_field.token_laws import KINDS, LEAST_VOCAB, token_law

BEYOND = 2.58
"""The deviation, in standard deviations, above which a number is not as predicted: 1% of runs exceed it in each."""

# Smallest vocabulary, and the smallest and largest probability that two tokens of a usual text are equal.
#
# Twelve English texts by seven tokenizers, and letters of a text, which a small tokenizer may have (docs/report.md).
_USUAL_REPEATS = ((32_000, 0.0050, 0.0167), (2, 0.0050, 0.069))
# The largest number of texts that are tried, the distance in standard deviations at which their search ends, and the
# difference of Zipf's exponents below which two texts count as one.
_MOST_TEXTS, _CLOSE, _SAME = 4, 0.5, 0.003
# The relative error of the estimated norm of a text, as a standard deviation; 0.05 was the largest.
_OF_ESTIMATE = 0.1

# The estimated seconds of a prediction above which causes are predicted with coarse groups of tokens.
_SOON = 2.0
# The largest relative error of a norm with coarse groups and gated units that is corrected by the network's own norm
# (4.6% was measured with Llama 3 8B, for its least repetitive text).
_OF_CORRECTED = 0.05
# The relative error of a loss that is derived from the output matrix alone, from the epsilon of the last norm.
_OF_EPSILON = 0.002

_PADDINGS = (64, 128, 256, 512, 1024, 2048, 4096)
THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
# The share of tokens without padding that is tested.
_LEAST_SHARE, _MOST_SHARE = 0.25, 0.95
# Usual loss scales of half precision, and usual weights of auxiliary losses.
_LOSS_SCALES, _WEIGHTS = [2**k for k in range(7, 33)], (1.0, 0.1, 0.01, 0.001)
MOST_CAUSES = 3
"""The largest number of printed causes."""

# The relative rounding of a logged norm that was clipped to a threshold.
_ROUND = 1e-3
TRAINED = 0.5
"""The share of ln V below which a loss belongs to trained weights; the loss of fresh weights is ln V or more."""
# What a repeated step 1 shows under a cause, by words of the cause.
_REPEATED = {
    "gradient is added up": "if the gradient is added up, half as many of these steps or devices halve the norm",
    "norm is squared": "if the norm is squared, twice the loss gives 4 times the norm",
    "devices share": "if shared parameters are counted, half as many devices divide the norm by 1.4",
}
_DRAWN_BY = "weights are initialized by"
# The effect on training of a cause that only multiplies numbers, by a pattern of its words; {0} multiplies the norm.
_HARMS = {
    "^the loss is (in|added|divided|multiplied) ": "only the log is wrong",
    "loss scale|^the norm (is squared|is of|counts)": "only the log is wrong, unless clipping uses the logged norm",
    "gradient (is|are) |^the loss is a ": "AdamW's step stays the same except for epsilon, clipping at norm 1 acts "
    "from a norm of {1:.2g} on, and SGD without clipping moves {0:.2g} times as far",
}
_ANOTHER_TEXT = "a text that repeats tokens more or less often"
_FINE, _ALONE = (
    "Step 1 is as predicted",
    "The log has no loss and no gradient norm of step 1. Only the norms of single matrices are compared with theory.",
)


@dataclass(frozen=True, slots=True)
class Cause:
    """A usual reason why a logged step 1 is not as predicted, with the loss and gradient norm that it would cause.

    Attributes:
        words: description of the cause.
        line: loss and norm that the cause predicts; the norm is NaN if the loss alone refutes the cause.
        tried: how many values of a number were tried; the description contains the nearest.
        is_fitted: whether a free number or a second cause lets it explain many logs; such causes are chosen last.
    """

    words: str
    line: FirstLine
    tried: int = 1
    is_fitted: bool = False

    def offs(self, logged: LogLine) -> tuple[float, float]:
        """Return how many standard deviations the logged loss and norm are from this cause's predictions.

        The distance of the norm is that of its logarithm.
        """
        loss = 0.0 if logged.loss is None else (logged.loss - self.line.loss) / self.line.loss_deviation
        norm = math.nan if logged.norm is None else logged.norm / self.line.norm
        return loss, 0.0 if math.isnan(norm) else math.log(norm) / self.line.log_deviation

    def explains(self, logged: LogLine) -> bool:
        """Return whether logged loss and norm are within 2.58 standard deviations of this cause's predictions."""
        return max(map(abs, self.offs(logged))) <= BEYOND

    def distance(self, logged: LogLine) -> float:
        """Return how far the logged numbers are from their predictions under this cause, in standard deviations."""
        return math.hypot(*self.offs(logged))


@dataclass
class _Theory:
    """Predictions of step 1 of several networks, within one budget.

    Attributes:
        squares: squared gradient norms of the network itself by role, for the latest text law; NaN for norms whose
            standard error of sampling is above a quarter.
        error: largest relative error of the network's own norm from coarse groups or few heads.
    """

    stack: Stack
    batch: int
    of: Description
    law: TextLaw | None
    patterns: int | None
    budget: Budget
    spread: float = 0.0  # of ln kappa over texts of the law's kind
    squares: dict[str, Array] = field(default_factory=dict)
    error: float = 0.0
    _spent: float = 0.0
    _coarse: Coarse = False
    _correction: float = 1.0  # the network's own norm over its norm with coarse groups

    def line(self, stack: Stack, notes: tuple[Note, ...], law: TextLaw | None) -> FirstLine:
        """Predict loss and norm of a network under a token law.

        Raises:
            ValueError: the prediction exceeds the budget.
            NoRuleError: there is no rule for it.
        """
        for subject in ("prediction", "noise_scale"):
            require(stack, subject)
        vectors = learned_vectors(stack, family_of(notes, self.of), notes)
        left = replace(self.budget, seconds=max(self.budget.seconds - self._spent, 1e-9))  # of all causes together
        scale = scale_of_batch(stack, law, self.patterns, left, coarse=self._coarse, notes=notes)
        errors = scale.grad_sq_sem(self.batch)
        self.squares.update({
            role: np.where((errors[role] > 0) & (square < 2.0 * errors[role]), np.nan, square)
            for role, square in scale.grad_sq(self.batch).items() if stack == self.stack
        })  # fmt: skip
        self._spent += cost_of_batch(stack, law, self.patterns, coarse=self._coarse)[0].seconds
        line = first_line(scale, self.batch, vectors, law, self.spread if law is self.law else 0.0)
        return _times(replace(line, quick=self._error()), 1.0, self._correction)

    def _error(self) -> float:
        # Return the largest relative error of a norm from coarse groups or few heads, in either direction.
        gated = COARSE if self._correction == 1.0 else _OF_CORRECTED
        return gated if (self._coarse is True and self.stack.ffn == "gated") else OF_COARSE * bool(self._coarse)

    def cost(self, stack: Stack) -> Cost:
        """Estimate the cost of a prediction; 0 if it has no rule or exceeds the budget."""
        try:
            cost, _ = cost_of_batch(stack, self.law, self.patterns, coarse=self._coarse)
        except (NoRuleError, ValueError):  # which `line` says
            return Cost()
        return cost if self.budget.holds(cost) else Cost()

    def quick_cost(self, *, coarse: bool) -> Cost:
        """Estimate the cost of predicting the network itself, as `healthy` does."""
        self._coarse = False
        if self.cost(self.stack).seconds > _SOON:
            self._coarse = coarse or (self.stack.ffn == "gated" and "heads")
        return cost_of_batch(self.stack, self.law, self.patterns, coarse=self._coarse)[0]

    def costs(self, given: Mapping[str, Any], line: LogLine, *, coarse: bool) -> tuple[Cost, Cost]:
        """Estimate the costs of predicting the network itself, as `healthy` does, and the networks of causes."""
        cost, self._coarse = self.quick_cost(coarse=coarse), bool(self._coarse)
        others = [other for _, other, _ in _other_weights(given, self.of, self.stack)]
        return cost, sum((self.cost(other) for other in others if self.of_loss(other, line) is None), Cost())

    def announced(self, given: Mapping[str, Any], line: LogLine, *, coarse: bool) -> tuple[str, Cost]:
        """Return the words and the cost to print before a log is judged; the cost includes causes."""
        fine, (cost, causes) = self.quick_cost(coarse=False).seconds, self.costs(given, line, coarse=coarse)
        again = Cost(fine, 0.0) if fine > cost.seconds else Cost()  # where the quick prediction is too uncertain
        return f"predicting the first step ({duration(cost.seconds)} if the log is as predicted)", cost + causes + again

    def plan(
        self, given: Mapping[str, Any], notes: Sequence[Note], batch: str, logged: Path, line: LogLine, *, coarse: bool
    ) -> Result:
        """Return the description and the cost of judging a log."""
        (cost, causes), what = self.costs(given, line, coarse=coarse), f"loss and gradient norm, to judge {logged}"
        also = f"  of these  about {duration(causes.seconds)} for causes, if the log is not as predicted"
        return planned((self.stack, notes, self.of), batch, what, cost + causes, also, seconds_of_causes=causes.seconds)

    def healthy(self, notes: tuple[Note, ...], *, coarse: bool) -> Cause:
        """Predict the network that the user described, without any of the tested mistakes.

        `coarse` allows coarse groups of tokens for a network that would take longer than `_SOON`. Without them, such a
        network with gated units has fine groups and few heads.
        """
        self.quick_cost(coarse=coarse)
        self.error = self._error()
        line = self.line(self.stack, notes, self.law)
        # Causes are chosen and left out by estimates, alike on every machine.
        self.budget, self._spent = replace(self.budget, is_clocked=False), 0.0
        return Cause("nothing", line)

    def coarsen(self, healthy: Cause, notes: tuple[Note, ...]) -> None:
        """Predict causes with coarse groups of tokens if the network itself takes longer than `_SOON`.

        Their norms are multiplied by the network's own norm over its norm with coarse groups.
        """
        self._coarse, before = False, self._coarse
        self._coarse = self.cost(self.stack).seconds > _SOON
        if self._coarse != before:
            self._correction = healthy.line.norm / self.line(self.stack, notes, self.law).norm

    def is_sure(self, causes: list[Cause], logged: LogLine) -> bool:
        """Return whether norms larger and smaller by the error of coarse groups explain a log alike.

        A verdict depends on the prediction and, if it is undecided, on a text, which is the first cause.
        """
        return all(
            replace(cause, line=_times(replace(cause.line, quick=0.0), 1.0, factor)).explains(logged)
            == cause.explains(logged)
            for cause in causes
            for factor in (1.0 - self.error, 1.0 / (1.0 - self.error))
        )

    def of_loss(self, stack: Stack, logged: LogLine) -> FirstLine | None:
        """Return the loss, without a norm, if it alone refutes a slow network; None if the norm must be predicted.

        Untied logits after a norm have the variance of the output matrix, so that the loss needs no prediction.
        """
        is_read_out = stack.normalized_output and stack.output_transform == "none" and stack.embeddings != "tied"
        loss = cross_entropy(min(stack.output_scale, LARGEST_SCALE), stack.vocab)
        deviation = largest_loss_deviation(stack, self.batch, self.law) + _OF_EPSILON * loss
        line = FirstLine(loss, deviation, math.nan, math.nan, is_bound=True)
        is_known = is_read_out and self._coarse and self.cost(stack).seconds and stack.output_scale <= LARGEST_SCALE
        return line if is_known and not Cause("", line).explains(logged) else None

    def others(self, given: Mapping[str, Any], logged: LogLine, missing: list[str]) -> Iterator[Cause]:
        """Predict networks with other initializations; add those without a prediction to `missing`."""
        for words, other, notes in _other_weights(given, self.of, self.stack):
            try:
                yield Cause(words, self.of_loss(other, logged) or self.line(other, notes, self.law))
            except (NoRuleError, ValueError):  # one that is over the budget is a ValueError
                missing.append(words)


def predict_logged(
    given: Mapping[str, Any], batch: int, of: Description, logged: Path, *, logged_as: Sequence[str] = (),
    text: str | None = None, patterns: int | None, max_time: str | None, memory: str | None = None, of_tokens: str = "",
    is_default: bool = False, plan: bool = False,
) -> Result:  # fmt: skip
    """Compare step 1 of a training log with theory, and list the usual causes that would explain a difference.

    `logged_as` states how the log's numbers were computed, in the words of `LoggedAs.of`.

    Raises:
        ValueError: an argument is outside its range, the log or a configuration cannot be read, or the log's norms are
            longer than what they are said to be clipped to.
        NoRuleError: there is no rule for the network.
        OverBudgetError: theory would take more than it may.
    """
    budget = Budget.of(max_time, memory)
    check_count("batch", batch, 1)
    if patterns is not None:
        check_count("patterns", patterns, 2)
    asked, line = LoggedAs.of(logged_as), read_log(logged)
    stack, notes = of.read(given)
    read = reading(line, asked, batch * stack.tokens)
    theory = _Theory(stack, batch, of, law_of(stack, text), patterns, budget, spread_of_texts(text, stack.vocab))
    if plan:
        at = batch_text(batch, stack.tokens, text, of_tokens)
        return theory.plan(given, notes, at, logged, read.line, coarse=not read.line.parameters)
    known = text == ZIPF if is_default or text is None else None
    what, cost = theory.announced(given, read.line, coarse=not read.line.parameters)
    with each_once(), shown(what, cost):
        for coarse in (False,) if read.line.parameters else (True, False):
            healthy = theory.healthy(notes, coarse=coarse)
            layers, unmatched = compare_with_theory(read.line.parameters, theory.squares)
            read.check(layers)
            verdict = _judged(theory, healthy, read, layers, given, notes, known=known)
            if theory.is_sure([healthy, *verdict.causes[: verdict.is_fine is None]], read.line):
                break
    texts = norms_of_texts(stack, text, healthy.line) is not None
    lines = [
        verdict.lines[0], "",
        f"{logged}: {has_line({'loss': line.loss, 'gradient norm': line.norm})}, {line.facts()}.",
        *read.lines,
        f"Theory: {line_text(healthy.line)}, at {batch_text(batch, stack.tokens, text, of_tokens)}.",
        *map(card_row, ("loss", "gradient norm"), normal_ranges(healthy.line, notes, texts=texts)),
        "", *verdict.lines[1:], *layer_lines(layers, unmatched), "",
        *(text_lines(stack, text, healthy.line) if is_default else []), *deviation_lines(healthy.line),
        *drawn_lines(notes, others=False), *_code_lines(notes, verdict.causes, read.line), "",
        title(stack), *note_lines(notes),
    ]  # fmt: skip
    values = {
        "stack": stack, "batch": batch, "as_it_should_be": verdict.is_fine,
        "logged_loss": read.line.loss, "logged_norm": read.line.norm, "loss": healthy.line.loss,
        "loss_deviation": healthy.line.loss_deviation, "gradient_norm": healthy.line.norm,
        "gradient_norm_deviation": healthy.line.norm * healthy.line.log_deviation, "notes": notes,
        "read_as": read.lines,
    }  # fmt: skip
    return Result(
        about=f"step 1 of {logged}", values=values, lines=lines, alarm=verdict.is_fine is False,
        tables={"causes": verdict.table(read.line)} | ({"layers": layers} if read.line.parameters else {}),
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
          for name in codes for cause in causes if cause.words.endswith(f"({name})")),
    ] * bool(codes)  # fmt: skip


def _drawn(values: dict[str, Any], layers: pd.DataFrame) -> Any:
    from figures.logged_step import logged_step  # late: it loads matplotlib

    return logged_step(values, layers, BEYOND)


@dataclass(frozen=True)
class _Verdict:
    """Return whether step 1 is as predicted; None if that is undecided.

    Attributes:
        causes: usual causes, the likeliest first.
    """

    is_fine: bool | None
    lines: list[str]
    causes: list[Cause] = field(default_factory=list)

    def table(self, printed: LogLine) -> pd.DataFrame:
        """Return the causes, and whether each explains the log, as a table."""
        return pd.DataFrame(
            [
                (
                    cause.words, cause.line.loss, cause.line.norm, cause.distance(printed), cause.explains(printed),
                    cause.tried,
                )
                for cause in self.causes
            ],
            columns=["cause", "loss", "gradient_norm", "distance", "explains", "tried"],
        )  # fmt: skip


def _judged(
    theory: _Theory, healthy: Cause, read: Reading, layers: pd.DataFrame, given: Mapping[str, Any],
    notes: tuple[Note, ...], *, known: bool | None,
) -> _Verdict:  # fmt: skip
    """Return the verdict on the first step of a log.

    Args:
        theory: predictions for the network.
        healthy: predicted first line of the network.
        read: the log.
        layers: logged norms of single matrices next to theory's.
        given: fields of the network.
        notes: notes on the network's configuration.
        known: whether the text law is Zipf's at the exponent 1 by default; None where the text was given.
    """
    printed, stack = read.line, theory.stack
    if printed.loss is None and printed.norm is None:
        return _Verdict(None, [_ALONE])
    if healthy.explains(printed):
        far = far_lines(layers, _FINE)
        rare = [
            f", though outside 19 of 20 runs: {'; '.join(words)}" for words in [off_words(healthy, printed)] if words
        ]
        return _Verdict(not far, far or [f"{_FINE}{''.join(rare)}."])
    missing: list[str] = []
    causes = [*_matrix_causes(healthy.line, layers, read), *logging_causes(healthy.line, read, stack, theory.batch)]
    loss, uniform = printed.loss or math.inf, math.log(stack.vocab)
    if loss < TRAINED * uniform and not any(cause.explains(printed) and not cause.is_fitted for cause in causes):
        return _Verdict(None, _trained_lines(loss / uniform, printed, causes), causes)
    theory.coarsen(healthy, notes)
    texts, far = [], list[str]()
    if known is not None:
        start = None if theory.law is None else (theory.law.across, healthy.line)
        try:
            texts = _of_text(stack, start, lambda law: theory.line(stack, notes, law), printed)
        except (NoRuleError, ValueError):
            missing.append(_ANOTHER_TEXT)
        if texts:  # of one matrix no text makes more than of all others
            beside = compare_with_theory(printed.parameters, theory.squares)[0]
            far = far_lines(beside, "Loss and norm of step 1 agree with a usual text")
            texts = [] if far else texts
    others = [*theory.others(given, printed, missing)]
    causes += [*others, *_combined_causes(others, read, stack, theory.batch)]
    ranked = [*texts, *sorted(causes, key=lambda cause: (cause.is_fitted, cause.distance(printed)))]
    off, ratio = healthy.offs(printed)[0], (printed.norm or healthy.line.norm) / healthy.line.norm
    # No text moves the loss further, and the norm of a batch of equal tokens is the root of their number times larger.
    is_missing = (
        _ANOTHER_TEXT in missing
        and abs(off) <= BEYOND
        and abs(math.log(ratio)) <= 0.5 * math.log(theory.batch * stack.tokens)
    )
    doubts = ["without --text FILE"] * bool(texts or is_missing and not far)
    if printed.step is None and off < -BEYOND:
        doubts += ["because the log does not state its step, and later steps have a smaller loss"]
    lines = [*_off_lines(healthy, printed, ranked, doubts), *far]
    if missing:
        lines += [f"Causes not computed, for lack of a rule or of time (--max-time): {'; '.join(missing)}."]
    return _Verdict(None if doubts else False, lines, ranked)


def _trained_lines(share: float, printed: LogLine, causes: Sequence[Cause]) -> list[str]:
    # States that weights are trained, for a loss of a share of ln V, unless a cause with a fitted number explains it.
    others = [cause for cause in causes if not cause.explains(printed)]
    unless = "".join(f", unless {cause.words}" for cause in causes if cause not in others)
    return [
        f"The loss is {share:.2g} times ln V, so the weights are trained{unless}. Initialization is not judged.",
        f"Tested {len(others)} other units and sums: in none would it be the loss of untrained weights.",
    ]


def _off_lines(healthy: Cause, printed: LogLine, ranked: list[Cause], doubts: list[str]) -> list[str]:
    # State which numbers are off, and which causes explain them.
    verdict = f"undecided {' and '.join(doubts)}" if doubts else "not as predicted"
    lines = [f"Step 1: {verdict}: {'; '.join(off_words(healthy, printed))}."]
    near, tested = [cause for cause in ranked if cause.explains(printed)], sum(cause.tried for cause in ranked)
    near = sorted(
        near[:MOST_CAUSES],
        key=lambda each: (not each.words.startswith("a text"), ", and " in each.words, each.distance(printed)),
    )
    shown_by = [what for words, what in _REPEATED.items() if any(words in cause.words for cause in near)]
    if not near:
        return [
            *lines, f"None of {tested} tested causes explains these numbers.",
            "Tested: sums instead of means, a padded vocabulary, tied embeddings, other initializations, clipped or "
            "squared norms, loss scales and other units (docs/training_logs.md).",
            "Next: log the gradient norm of every matrix in the same file, give --text FILE, or test your module with "
            "gradbounds probe.",
        ]  # fmt: skip
    order = "a text, then the nearest" if near[0].words.startswith("a text") else "single causes first, by nearness"
    lines += [f"Causes that explain these numbers ({tested} tested; {order}):"]
    lines += [
        f"  {cause.words}: loss {cause.line.loss:.4g} ({cause.line.loss / healthy.line.loss:.3g} times the prediction)"
        f", gradient norm {cause.line.norm:.4g} ({cause.line.norm / healthy.line.norm:.3g} times)"
        + f"; the nearest of {cause.tried} tested values"
        * (cause.tried > 1)
        for cause in near
    ]
    return (
        lines
        + _harm_lines(near, healthy.line.norm)
        + [
            "This log cannot tell these causes apart. Repeat step 1 with the same batch and one change: "
            f"{'; '.join(shown_by)}."
        ]
        * (len(near) > 1 and bool(shown_by))
    )


def _harm_lines(causes: Sequence[Cause], norm: float) -> list[str]:
    """State for causes that only multiply numbers whether they change training.

    AdamW's step m/(√v + ε) does not depend on a constant factor of all gradients, except through ε. Clipping to norm 1
    divides by the norm that it computes, if this exceeds 1.

    Args:
        causes: causes that explain a log.
        norm: the predicted gradient norm.
    """
    parts = list[str]()
    for cause in causes:
        effect = next((words for pattern, words in _HARMS.items() if re.search(pattern, cause.words)), "")
        if effect and not cause.words.startswith(_DRAWN_BY):
            what = re.split(r" over (?=all |the |\d+ (?!times))", cause.words)[0]
            parts += [f"if {what}, {effect.format(cause.line.norm / norm, norm / cause.line.norm)}"]
    return [f"Does it change training? I{'; '.join(parts)[1:]}."] * bool(parts)


def off_words(healthy: Cause, printed: LogLine) -> list[str]:
    """Describe whether the loss or the gradient norm differs from its prediction, by which factor, and what is usual.

    The usual factors are those of 19 of 20 runs, and only numbers outside them are described.
    """
    line = healthy.line
    by, (least, most) = 2.0 * line.loss_deviation / line.loss, line.norm_range
    pairs = (
        ("loss", printed.loss, line.loss, 1.0 - by, 1.0 + by, ".4g"),
        ("gradient norm", printed.norm, line.norm, least / line.norm, most / line.norm, ".3g"),
    )
    return [
        f"the {name} is {number / theory:.4g} times the prediction (19 of 20 runs: {low:{digits}} to {high:{digits}})"
        for name, number, theory, low, high, digits in pairs
        if number is not None and not low <= number / theory <= high
    ]


def _of_text(
    stack: Stack, start: tuple[float, FirstLine] | None, predicted: Callable[[TextLaw], FirstLine], logged: LogLine
) -> list[Cause]:
    """Find a text, described by Zipf's law with an exponent, that repeats tokens as usual texts do and explains a log.

    The norm grows with the probability of equal tokens, so that a norm beyond the two extreme probabilities fits no
    text. The list is empty if no text explains the log.

    Args:
        stack: the network.
        start: probability that two tokens are equal and first line of a predicted text; None if there is none.
        predicted: function that predicts the first line for a text law.
        logged: first step of the log.
    """
    _, least, most = next(row for row in _USUAL_REPEATS if stack.vocab >= row[0])
    norm, nearest, tried = logged.norm or math.inf, list[Cause](), list[float]()
    for _ in range(_MOST_TEXTS):
        wanted, guess = (least * most) ** 0.5, None
        if start is not None:
            kappa, line = start
            wanted = min(max(kappa * repeats_of_norm(stack, line, norm), least), most)
            guess = _times(line, 1.0, times_of_repeats(stack, line, wanted / kappa))
            guess = replace(guess, norm_deviation=guess.norm_deviation + _OF_ESTIMATE * guess.norm)
        exponent = _exponent(wanted, stack.vocab)
        if (
            any(abs(exponent - other) < _SAME for other in tried)
            or guess is not None
            and not Cause("", guess).explains(logged)
        ):
            break
        tried.append(exponent)
        law = TextLaw.zipf(exponent, stack.vocab)
        start = law.across, predicted(law)
        words_of_cause = (
            f"a text in which two tokens are equal with probability {law.across:.3g}, like --text zipf:{exponent:.3g} "
            f"(usual texts: {least:g} to {most:g}{_nearest_text(law.across, stack.vocab)})"
        )
        cause = Cause(words_of_cause, start[1])
        if cause.explains(logged):
            nearest = [min([*nearest, cause], key=lambda cause: cause.distance(logged))]
        if nearest and nearest[0].distance(logged) < _CLOSE or abs(cause.offs(logged)[0]) > BEYOND:
            break
    return nearest


def _nearest_text(repeats: float, vocab: int) -> str:
    # Name the measured text with the nearest probability of equal tokens; "" for a vocabulary without any.
    if vocab < LEAST_VOCAB:
        return ""
    texts = {f"{kind} {text}": kappa for kind in KINDS for text, kappa in token_law(kind, vocab).kappa_of_texts.items()}
    name, kappa = min(texts.items(), key=lambda item: abs(math.log(item[1] / repeats)))
    return f"; nearest measured text: {name}, {kappa:.2g}"


def _exponent(repeats: float, words: int) -> float:
    # Return Zipf's exponent at which two tokens of this vocabulary are equal with a given probability; at least 0.
    low, high = 0.0, 3.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if TextLaw.zipf(middle, words).across < repeats else (low, middle)
    return low


def _matrix_causes(line: FirstLine, layers: pd.DataFrame, read: Reading) -> Iterator[Cause]:
    # Yield the cause that only the matrix furthest from theory has a wrong gradient.
    if layers.empty or not read.is_to_scale:
        return
    matrix = layers.loc[np.log(layers["ratio"]).abs().idxmax()]
    square = line.norm**2 + matrix["logged"] ** 2 - matrix["theory"] ** 2
    if square > 0:
        yield Cause(
            f"the gradient of {matrix['role']} in layer {matrix['layer']} is {matrix['ratio']:.3g} times its "
            "prediction",
            replace(line, norm=math.sqrt(square)),
        )


def _times(line: FirstLine, loss: float, norm: float) -> FirstLine:
    # Return a line with its loss and its norm multiplied, each with its deviation.
    return replace(
        line, loss=line.loss * loss, loss_deviation=line.loss_deviation * loss, norm=line.norm * norm,
        norm_deviation=line.norm_deviation * norm, drawn=line.drawn * norm,
    )  # fmt: skip


def logging_causes(line: FirstLine, read: Reading, stack: Stack, batch: int) -> Iterator[Cause]:
    """Yield causes in which the network is as predicted but the log prints other numbers, such as sums.

    Args:
        line: predicted loss and norm, or those of another log of the same configuration.
        read: the log that has other numbers.
        stack: the network.
        batch: number of sequences.
    """
    printed = read.line
    times = partial(_times, line)
    for vocab in sorted({-(-stack.vocab // size) * size for size in _PADDINGS} - {stack.vocab}):
        yield Cause(
            f"the vocabulary is padded to {vocab}", replace(line, loss=line.loss + math.log(vocab / stack.vocab))
        )
    yield Cause("the loss is in bits", times(1.0 / math.log(2.0), 1.0))
    positions = batch * stack.tokens
    sums = {f"all {positions} tokens": positions, f"the {stack.tokens} tokens of a sequence": stack.tokens}
    if "sum" not in read.settled:
        for tokens, number in sums.items():
            yield Cause(f"the loss is a sum over {tokens}", times(number, number))
            if printed.norm is not None:
                yield Cause(f"the gradient is a sum over {tokens}", times(1.0, number))
    elif read.of.is_sum:
        yield Cause("the loss is a mean, but the gradient is a sum", times(1.0 / positions, 1.0))
        yield Cause("the loss is a sum, but the gradient is a mean", times(1.0, 1.0 / positions))
    divisors = [k for k in range(2, min(batch, 2**20) + 1) if batch % k == 0]
    losses = {name: value for name, value in printed.apart.items() if not plain(name).endswith("scale")}
    stated = [value for name, value in printed.apart.items() if name not in losses]
    scales = [value for value in stated if value > 1] if stated else _LOSS_SCALES
    ways = (
        (1, "added up over {:.0f} accumulation steps or devices", divisors),
        (-1, "divided once too often, by {:.0f}", divisors),
        (1, "multiplied by the loss scale {:.0f} of half precision", scales),
    )
    parts = (("loss and gradient are", 1, 1), ("the loss is", 1, 0), ("the gradient is", 0, 1))
    for (power, way, numbers), (part, of_loss, of_norm) in itertools.product(ways, parts):
        value, theory = (printed.loss, line.loss) if of_loss else (printed.norm, line.norm)
        if numbers and value is not None and not (printed.norm is None and of_norm):
            wanted = power * math.log(value / theory)
            k = float(min(numbers, key=lambda k, wanted=wanted: abs(math.log(k) - wanted)))  # type: ignore[misc]
            yield Cause(f"{part} {way.format(k)}", times(k ** (power * of_loss), k ** (power * of_norm)), len(numbers))
    if losses and printed.loss is not None:
        # Each loss has its own weight, or none, and many losses share one.
        alike = [(weight,) * len(losses) for weight in _WEIGHTS]
        weights = [*itertools.product((0.0, *_WEIGHTS), repeat=len(losses))][1:] if len(losses) < 4 else alike
        added = {each: sum(map(operator.mul, each, losses.values())) for each in weights}
        nearest = min(added, key=lambda each: abs(added[each] - printed.loss + line.loss))
        terms = " and ".join(f"{weight:g} times {name}" for weight, name in zip(nearest, losses, strict=True) if weight)
        yield Cause(f"the loss contains {terms}", replace(line, loss=line.loss + added[nearest]), len(weights))
    yield from _norm_causes(line, read, divisors)


def _combined_causes(others: Sequence[Cause], read: Reading, stack: Stack, batch: int) -> list[Cause]:
    # Returns causes in which other code draws the weights, and the log also prints sums over steps or devices.
    return [
        replace(cause, words=f"{other.words}, and {cause.words}", is_fitted=True)
        for other in others
        if other.words.startswith(_DRAWN_BY) and other.line.norm > 0
        for cause in logging_causes(other.line, read, stack, batch)
        if "added up" in cause.words
    ]


def _norm_causes(line: FirstLine, read: Reading, divisors: Sequence[int]) -> Iterator[Cause]:
    # Yield causes in which the log prints another norm: squared, clipped, of one device, or of padded sequences.
    printed = read.line
    if printed.norm is None:
        return
    if "square" not in read.settled:
        yield Cause(
            "the norm is squared",
            replace(
                line, norm=line.norm**2, norm_deviation=2.0 * line.norm * line.norm_deviation, quick=2 * line.quick
            ),
        )
    threshold = min(THRESHOLDS, key=lambda limit: abs(math.log(printed.norm / limit)))  # type: ignore[operator]
    if line.norm > threshold and "clipped" not in read.settled:
        yield Cause(
            f"the norm is logged after it was clipped at {threshold:g}",
            replace(line, norm=threshold, norm_deviation=threshold * _ROUND, quick=0.0), len(THRESHOLDS),
        )  # fmt: skip
    # The squared norm has a part that all sequences share and a part that is proportional to 1/batch.
    for what, shared in (
        ("is of one device's gradient, before the mean over {} devices", line.shared),
        ("counts {0} times the parameters that {0} devices share", 0.0),
    ):
        roots = {k: math.sqrt(shared + k * (1.0 - shared)) for k in divisors or (1,)}
        k = min(roots, key=lambda k: abs(math.log(printed.norm / line.norm / roots[k])))  # type: ignore[operator]
        yield Cause(f"the norm {what.format(k)}", _times(line, 1.0, roots[k]), len(divisors), is_fitted=True)
    share = math.nan if printed.loss is None else printed.loss / line.loss
    if _LEAST_SHARE < share < _MOST_SHARE:
        words = f"loss and gradient are averaged over {1.0 / share:.3g} times as many tokens, such as padding"
        yield Cause(words, _times(line, share, share), is_fitted=True)


def _other_weights(
    given: Mapping[str, Any], of: Description, stack: Stack
) -> Iterator[tuple[str, Stack, tuple[Note, ...]]]:
    # Yield the networks with usual other initializations or tied weights, each with a description and its notes.
    other_end = "untied" if stack.embeddings == "tied" else "tied"
    others = [(f"embeddings and output matrix are {other_end}", of, dict(given) | {"embeddings": other_end})]
    if stack.depth_scaling != "none":
        others += [("W^O and W2 are not scaled by the depth", of, dict(given) | {"depth_scaling": "none"})]
    if of.is_model:
        codes = {HUGGING_FACE: "its class in transformers"} | {
            name: f"{code.title} ({name})"
            for name, code in TRAINING_CODES.items()
            if not (code.refused or code.asks)  # of a base model a log says nothing
        }
        others += [
            (f"{_DRAWN_BY} {words}", replace(of, drawn_by=name), dict(given))
            for name, words in codes.items()
            if name != of.drawn_by
        ]
    seen = {stack}
    for words, described, fields in others:
        try:
            other, notes = described.read(fields)
        except ValueError:  # a code's rule is about other networks
            continue
        if other not in seen:
            yield words, other, notes
        seen.add(other)
