"""`gradbounds predict --logged`: whether a log's first step is what it should be, and which usual cause explains it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradbounds.actions.batch import family_of, law_of, said_deviations, said_line
from gradbounds.actions.first_line import (
    FirstLine,
    cost_of_batch,
    first_line,
    measured_batch,
    scale_of_batch,
    zipf_lines,
)
from gradbounds.actions.log_line import LogLine, read_log
from gradbounds.actions.logged_as import LoggedAs, Reading, has_line, reading
from gradbounds.actions.logged_layers import beside_theory, far_lines, layer_lines
from gradbounds.budget import Budget
from gradbounds.described_network import Description
from gradbounds.network_text import drawn_lines, note_lines, title
from gradbounds.progress import shown
from gradbounds.result import Result
from simulate.counts import check_count
from theory import NoRuleError, Stack
from theory.configurations import Note
from theory.configurations.training_codes import HUGGING_FACE, TRAINING_CODES
from theory.configurations.vectors import learned_vectors
from theory.coverage import require
from theory.mean_field.kernels import Array
from theory.mean_field.text_law import TextLaw

_BEYOND = 2.58
"""Deviations from where on a number is not as it should be: of 1% of the runs, for each of the two."""

USUAL_REPEATS = ((32_000, 0.0050, 0.0167), (2, 0.0050, 0.069))
"""From so many words on, the least and the largest chance that two words of a usual text are the same.

Twelve English texts by seven tokenizers, and letters of a text, which a small tokenizer may have (docs/first_step.md).
"""
_MOST_TEXTS = 6
"""Texts that are tried at most."""

_PADDINGS = (64, 128, 256, 512, 1024, 2048, 4096)
_THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROUND = 1e-3
"""Of a threshold: as a log rounds a norm that was clipped."""
_ANOTHER_TEXT = "a text that repeats words more or less often"
_FINE = ["Step 1 is what it should be."]
_ALONE = ["There is neither the loss nor the norm of step 1: its matrices alone are set beside theory."]


@dataclass(frozen=True, slots=True)
class Cause:
    """A usual cause, and the first line that it makes.

    Attributes:
        words: what happened.
        line: loss and norm then.
        tried: numbers that were tried, of which the words have the nearest.
    """

    words: str
    line: FirstLine
    tried: int = 1

    def offs(self, logged: LogLine) -> tuple[float, float]:
        """Deviations of what was logged from that: of the loss, and of the logarithm of the norm; 0 of what was not."""
        loss = 0.0 if logged.loss is None else (logged.loss - self.line.loss) / self.line.loss_deviation
        if logged.norm is None:
            return loss, 0.0
        return loss, math.log(logged.norm / self.line.norm) * self.line.norm / self.line.norm_deviation

    def explains(self, logged: LogLine) -> bool:
        """Whether both numbers are as they should be then."""
        return max(map(abs, self.offs(logged))) <= _BEYOND

    def distance(self, logged: LogLine) -> float:
        """How far they are, in deviations."""
        return math.hypot(*self.offs(logged))


def predict_logged(
    given: Mapping[str, Any], batch: int, of: Description, logged: Path, *, logged_as: Sequence[str] = (),
    text: str | None = None, patterns: int | None, max_time: str | None, memory: str | None = None, of_tokens: str = "",
    is_zipf: bool = False,
) -> Result:  # fmt: skip
    """The first step of a log beside theory's; where they differ, which usual causes would make it.

    What the log's numbers are is said in words, as `LoggedAs.of` has them.

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
    asked = LoggedAs.of(logged_as)
    line = read_log(logged)
    stack, notes = of.read(given)
    read = reading(line, asked, batch * stack.tokens)
    printed = read.line
    law = law_of(stack, text)

    spent = 0.0

    squares: dict[str, Array] = {}  # of the network that was asked about, by the law that was last

    def line_of(other: Stack, of_notes: tuple[Note, ...], law: TextLaw | None = law) -> FirstLine:
        nonlocal spent
        for subject in ("prediction", "noise_scale"):
            require(other, subject)
        vectors = learned_vectors(other, family_of(of_notes, of), of_notes)
        left = replace(budget, seconds=max(budget.seconds - spent, 1e-9))  # of all that may be a cause, together
        scale = scale_of_batch(other, law, patterns, left, pace)
        squares.update(scale.grad_sq(batch) if other == stack else {})
        spent += cost_of_batch(other, law, patterns)[0].seconds
        return first_line(scale, batch, vectors, law)

    def seconds_of(other: Stack) -> float:
        try:
            cost, _ = cost_of_batch(other, law, patterns)
        except (NoRuleError, ValueError):  # which `line_of` says
            return 0.0
        return cost.seconds if budget.holds(cost) else 0.0

    pace: float | None = None
    healthy = Cause("nothing", line_of(stack, notes))
    pace = measured_batch(stack, law, patterns).seconds / spent
    # Causes are chosen and left out by estimates, alike on every machine.
    budget, spent = replace(budget, is_clocked=False), 0.0
    fits = healthy.explains(printed)
    causes: list[Cause] = []
    missing: list[str] = []
    layers, unmatched = beside_theory(printed.parameters, squares)
    read.check(layers)
    judged = not (printed.loss is None and printed.norm is None)
    far = far_lines(layers, _as_it_should_be(printed)) if fits and judged else []
    text_causes: list[Cause] = []
    if not fits and (is_zipf or text is None):
        known = {1.0: healthy.line} if is_zipf else {}
        try:
            text_causes = _of_text(stack.vocab, known, lambda law: line_of(stack, notes, law), printed)
        except (NoRuleError, ValueError):
            missing.append(_ANOTHER_TEXT)
        if text_causes:  # of one matrix no text makes more than of all others
            far = far_lines(
                beside_theory(printed.parameters, squares)[0], "Loss and norm of step 1 are those of a usual text"
            )
            text_causes = [] if far else text_causes
    if not fits:
        causes = [*_of_one_matrix(healthy.line, layers, read), *_of_the_log(healthy.line, read, stack, batch)]
        others = list(_other_weights(given, of, stack))
        together = sum(seconds_of(other) for _, other, _ in others)
        with shown(f"predicting step 1 of {len(others)} other networks", pace * min(together, budget.seconds)):
            for words, other, of_other in others:
                try:
                    causes.append(Cause(words, line_of(other, of_other)))
                except (NoRuleError, ValueError):  # one that is over the budget is a ValueError
                    missing.append(words)
    undecided = bool(text_causes or _ANOTHER_TEXT in missing) and not far
    ranked = [*text_causes, *sorted(causes, key=lambda cause: cause.distance(printed))]
    near = [cause for cause in ranked if cause.explains(printed)]
    table = pd.DataFrame(
        {
            "cause": [cause.words for cause in ranked],
            "loss": [cause.line.loss for cause in ranked],
            "gradient_norm": [cause.line.norm for cause in ranked],
            "distance": [cause.distance(printed) for cause in ranked],
            "explains": [cause.explains(printed) for cause in ranked],
            "tried": [cause.tried for cause in ranked],
        }
    )
    has = has_line({"loss": line.loss, "gradient norm": line.norm})
    lines = [
        title(stack),
        *drawn_lines(notes),
        "",
        f"{logged}: {has}" + ("." if printed.step is None else f", at step {printed.step}."),
        *read.lines,
        f"Theory: {said_line(healthy.line)}, at {batch} sequences of {stack.tokens} tokens{of_tokens}.",
        *(zipf_lines(stack, healthy.line) if is_zipf else []),
        *said_deviations(healthy.line),
        "",
        *(_said(healthy, printed, near, ranked, undecided=undecided) if not fits else []),
        *(far or _FINE * fits if judged else _ALONE),
        *([f"Not computed, for want of a rule or within --max-time: {'; '.join(missing)}."] if missing else []),
        *layer_lines(layers, unmatched),
        *note_lines(notes),
    ]
    return Result(
        about=f"step 1 of {logged}",
        tables={"causes": table} | ({"layers": layers} if printed.parameters else {}),
        values={
            "stack": stack, "batch": batch, "as_it_should_be": None if undecided or not judged else fits and not far,
            "logged_loss": printed.loss, "logged_norm": printed.norm, "loss": healthy.line.loss,
            "loss_deviation": healthy.line.loss_deviation, "gradient_norm": healthy.line.norm,
            "gradient_norm_deviation": healthy.line.norm_deviation, "notes": notes,
            "read_as": read.lines,
        },
        lines=lines,
        alarm=not (fits or undecided) or bool(far),
    )  # fmt: skip


def _said(healthy: Cause, printed: LogLine, near: list[Cause], ranked: list[Cause], *, undecided: bool) -> list[str]:
    """What is off, and what would explain it."""
    loss, norm = healthy.offs(printed)
    line = healthy.line
    off = []
    if printed.loss is not None and abs(loss) > _BEYOND:
        off += [f"the loss is {printed.loss / line.loss:.4g} times theory's, {abs(loss):.3g} deviations"]
    if printed.norm is not None and abs(norm) > _BEYOND:
        off += [f"the gradient norm is {printed.norm / line.norm:.4g} times theory's, {abs(norm):.3g} deviations"]
    verdict = "Step 1 is undecided without --text FILE" if undecided else "Step 1 is not what it should be"
    lines = [f"{verdict}: {'; '.join(off)}."]
    if not near:
        return [*lines, f"No usual cause explains it, of {len(ranked)} that were computed."]
    lines += ["What would explain it, the text before all others, and then the nearest first:"]
    return lines + [
        f"  {cause.words}: loss {cause.line.loss:.4g}, gradient norm {cause.line.norm:.4g}"
        + f" (the nearest of {cause.tried} numbers that were tried)" * (cause.tried > 1)
        for cause in near
    ]


def _of_text(
    words: int, known: Mapping[float, FirstLine], predicted: Callable[[TextLaw], FirstLine], logged: LogLine
) -> list[Cause]:
    """A text that repeats words as usual ones do and explains a log, as Zipf's law with an exponent; none if none does.

    The norm grows with the exponent, so that a log outside of the two ends is outside of all texts.

    Args:
        words: of the vocabulary.
        known: first lines by the exponent.
        predicted: the line under another law.
        logged: the log.
    """
    _, least, most = next(row for row in USUAL_REPEATS if words >= row[0])
    low, high = (_exponent(repeats, words) for repeats in (least, most))
    lines = {exponent: line for exponent, line in known.items() if low <= exponent <= high}
    norm = math.inf if logged.norm is None else logged.norm
    for _ in range(_MOST_TEXTS):
        below = max((exponent for exponent, line in lines.items() if line.norm <= norm), default=low)
        above = min((exponent for exponent, line in lines.items() if line.norm > norm), default=high)
        exponent = next((end for end in (above, below) if end not in lines), None)
        if exponent is None:
            if below >= above or not lines[below].norm <= norm < lines[above].norm:
                return []
            share = math.log(norm / lines[below].norm) / math.log(lines[above].norm / lines[below].norm)
            exponent = below + share * (above - below)
        law = TextLaw.zipf(exponent, words)
        line = lines[exponent] = predicted(law)
        words_of_cause = (
            f"a text of --text zipf:{exponent:.3g}, in which two words are the same with the chance {law.across:.3g} "
            f"(usual texts: {least:g} to {most:g})"
        )
        cause = Cause(words_of_cause, line)
        if cause.explains(logged):
            return [cause]
        if abs(cause.offs(logged)[0]) > _BEYOND:  # no text moves the loss as far
            return []
    return []


def _exponent(repeats: float, words: int) -> float:
    """The exponent of Zipf's law at which two of so many words are the same with that chance; 0, if more often at 0."""
    low, high = 0.0, 3.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if TextLaw.zipf(middle, words).across < repeats else (low, middle)
    return low


def _as_it_should_be(printed: LogLine) -> str:
    if printed.loss is not None and printed.norm is not None:
        return "Loss and norm of step 1 are what they should be"
    return f"The {'loss' if printed.norm is None else 'norm'} of step 1 is what it should be"


def _of_one_matrix(line: FirstLine, layers: pd.DataFrame, read: Reading) -> Iterator[Cause]:
    """A gradient in one layer that is furthest from theory, of those that were logged; all others as they should be."""
    if layers.empty or not read.is_to_scale:
        return
    matrix = layers.loc[np.log(layers["ratio"]).abs().idxmax()]
    square = line.norm**2 + matrix["logged"] ** 2 - matrix["theory"] ** 2
    if square > 0:
        words = f"the gradient of {matrix['role']} in layer {matrix['layer']} is {matrix['ratio']:.3g} times theory's"
        yield Cause(words, replace(line, norm=math.sqrt(square)))


def _of_the_log(line: FirstLine, read: Reading, stack: Stack, batch: int) -> Iterator[Cause]:
    """What a log may do to the numbers of a network that is as it should be, but for what is known of it."""
    printed = read.line

    def times(loss: float, norm: float) -> FirstLine:
        return replace(
            line, loss=line.loss * loss, loss_deviation=line.loss_deviation * loss, norm=line.norm * norm,
            norm_deviation=line.norm_deviation * norm,
        )  # fmt: skip

    vocabularies = {-(-stack.vocab // size) * size for size in _PADDINGS} - {stack.vocab}
    for vocab in sorted(vocabularies):
        padded = replace(line, loss=line.loss + math.log(vocab / stack.vocab))
        yield Cause(f"the vocabulary is padded to {vocab}", padded)
    yield Cause("the loss is in bits", times(1.0 / math.log(2.0), 1.0))
    positions = batch * stack.tokens
    sums = {f"all {positions} tokens": positions, f"the {stack.tokens} tokens of a sequence": stack.tokens}
    if "sum" not in read.settled:
        for tokens, number in sums.items():
            yield Cause(f"the loss is a sum over {tokens}", times(number, number))
            if printed.norm is not None:
                yield Cause(f"the gradient is of a sum over {tokens}", times(1.0, number))
    elif read.of.is_sum:
        yield Cause("the loss is a mean, and the gradient of a sum", times(1.0 / positions, 1.0))
        yield Cause("the loss is a sum, and the gradient of a mean", times(1.0, 1.0 / positions))
    if printed.norm is None:
        return
    ratio = printed.norm / line.norm
    divisors = [k for k in range(2, min(batch, 2**20) + 1) if batch % k == 0]
    for power, what in ((1, "added up over {} accumulation steps or devices"), (-1, "divided once too often, by {}")):
        if divisors:
            k = min(divisors, key=lambda k, power=power: abs(math.log(ratio / k**power)))  # type: ignore[misc]
            words = f"the gradient is {what.format(k)}"
            yield Cause(words, times(1.0, float(k) ** power), len(divisors))
    squared = replace(line, norm=line.norm**2, norm_deviation=2.0 * line.norm * line.norm_deviation)
    if "square" not in read.settled:
        yield Cause("the norm is squared", squared)
    threshold = min(_THRESHOLDS, key=lambda limit: abs(math.log(printed.norm / limit)))  # type: ignore[operator]
    if line.norm > threshold and "clipped" not in read.settled:
        clipped = replace(line, norm=threshold, norm_deviation=threshold * _ROUND)
        yield Cause(f"the norm is logged after it was clipped at {threshold:g}", clipped, len(_THRESHOLDS))


def _other_weights(
    given: Mapping[str, Any], of: Description, stack: Stack
) -> Iterator[tuple[str, Stack, tuple[Note, ...]]]:
    """Networks of other weights that are a usual cause: in words, each, and notes on it."""
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
            (f"weights are drawn by {words}", replace(of, drawn_by=name), dict(given))
            for name, words in codes.items()
            if name != of.drawn_by
        ]
    seen = {stack}
    for words, described, fields in others:
        try:
            other, notes = described.read(fields)
        except ValueError:  # a code's rule is about other networks
            continue
        if other in seen:
            continue
        seen.add(other)
        yield words, other, notes
