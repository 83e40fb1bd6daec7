"""The view `gradbounds predict --learning-rate`: the effect of step 1 on the loss at one learning rate."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from gradbounds.actions.batch import NAMES_OF_ROLES, Asked, law_of, quick_batch
from gradbounds.actions.card import OWN_RATES, evidence, rate_limits, rate_range, rate_text
from gradbounds.actions.first_line import (
    masked_share,
    normal_ranges,
    quick_cost,
    quick_sampling,
    scale_of_batch,
    spread_of_texts,
)
from gradbounds.actions.plan import batch_text, named, planned
from gradbounds.budget import Budget, each_once
from gradbounds.described_network import Description
from gradbounds.layer_summary import card_row, slowed_text, slowest_step
from gradbounds.network_text import drawn_lines, note_lines, title
from gradbounds.plain_text import table_lines
from gradbounds.progress import shown
from gradbounds.result import Result
from simulate.counts import check_count
from simulate.threads import one_numpy_thread
from theory import Stack
from theory.configurations import Note
from theory.configurations.vectors import has_own_rates, logit_multiplier
from theory.coverage import NoRuleError, gaps, require
from theory.first_step.batch_step import (
    ERRORS,
    MEASURED_SCALES,
    BatchStep,
    Ranges,
    batch_steps,
    cost_of_steps,
    measured_rates,
)
from theory.mean_field.text_law import TextLaw
from theory.mean_field.tied.text_output import OwnTokenError
from theory.stack.optimizers import NAMES, Optimizer

_BEYOND = "far beyond"
# Rates of public AdamW runs, divided by step 1's critical rate (docs/report.md, rates of public runs). PEAKS: the
# lowest and the highest peak of a warm-up that trained, the number of models, and their fewest and most steps of a
# warm-up. RAMPS, of 15 to 100 steps: a rate, the number of ramps that blew up at it or above, and of all that blew up.
PEAKS, RAMPS, _RAMP = (0.69, 58, 7, 600, 2000), (0.44, 4, 5), 100
_RUNS = (
    "Published AdamW models ({2}, all successes) had warm-ups of {3} to {4} steps to {0:g} to {1:g} times step 1's "
    "critical rate; this {5}. Theory of step 1 does not judge later steps."
)
_RAMPS = "{1} of {2} ramps of up to 100 steps that blew up did so at {0:g} times step 1's critical rate or above."
_MOST = 1e100  # learning rate, whose square is finite
_MIXED = (0.02, 0.3)  # measured ratios of AdamW's to Muon's learning rate
# The limits of the quadratic model of the loss: changes of logits, and the largest relative update of a matrix. It
# holds up to the first number and fails above the second: a softmax and a network of products are quadratic only in
# small changes of logits and weights.
_LOGITS, _UPDATES = (0.5, 2.0), (0.1, 0.5)
# The smallest measured critical rate divided by the predicted one with which the change of the loss has an error.
# Muon has none with gated units, as _MUON states.
_CLOSE = 0.4


@dataclass(frozen=True, slots=True)
class RateOfStep:
    """The predicted effect of an optimizer's first step at one learning rate."""

    optimizer: Optimizer
    title: str
    rate: float
    step: BatchStep
    limits: tuple[float, float]  # of the critical rate, divided by the predicted one; (0, inf) if unknown

    @property
    def logits(self) -> float:
        """Return the root mean square change of the logits in step 1: of all logits, or of the labels' if larger."""
        return self.rate * self.step.logit_move

    @property
    def update(self) -> tuple[str, float]:
        """Return the name of the matrix with the largest relative update in step 1, and this update's size."""
        by_matrix = {
            NAMES_OF_ROLES.get(role, role) if not np.ndim(values) else f"{role} of layer {layer}": float(value)
            for role, values in self.step.relative_updates.items()
            for layer, value in enumerate(np.atleast_1d(values), 1)
        }
        name, update = max(by_matrix.items(), key=lambda item: item[1])
        return name, self.rate * update

    @property
    def region(self) -> str:
        """Describe in words whether the quadratic approximation of the loss holds at this learning rate."""
        return ("inside", "at the edge", _BEYOND)[
            max(
                sum(value > limit for limit in limits)
                for value, limits in ((self.logits, _LOGITS), (self.update[1], _UPDATES))
            )
        ]

    @property
    def sign(self) -> str:
        """Describe whether the loss falls or rises in step 1, or that this is unknown; a rise is to second order."""
        share = self.rate / self.step.critical_rate
        return "falls" if share <= self.limits[0] else "rises" if share >= self.limits[1] else "may fall or rise"

    def has_error(self, stack: Stack) -> bool:
        """Return whether the error of the loss's change was measured in such networks."""
        return self.limits[0] >= _CLOSE and (self.optimizer, stack.ffn) != ("muon", "gated")

    def row(self) -> dict[str, Any]:
        """Return all predicted numbers of step 1 as one row of a table."""
        change, error = self.step.change(self.rate)
        name, update = self.update
        return {
            "optimizer": self.optimizer, "rate": self.rate, "loss_change": change, "loss_change_error": error,
            "logit_change": self.logits, "most_updated": name, "relative_update": update, "region": self.region,
            "critical_rate": self.step.critical_rate,
        }  # fmt: skip


def predict_rate(
    asked: Asked, batch: int, of: Description, rate: float, optimizers: Sequence[Optimizer], *,
    warmup_steps: int | None = None, epsilon: float = 1e-8, adamw_rate: float | None = None, plan: bool = False,
    is_logged: bool = False,
) -> Result:  # fmt: skip
    """Predict the effect of step 1 at a learning rate, and when a warm-up exceeds the critical learning rate.

    With `adamw_rate`, at most 0.3 times `rate`, Muon's step is a mix: AdamW trains the output matrix at that rate. The
    loss and the gradient norm of step 1 are printed, too, unless a log with its own prediction `is_logged`.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
        NoRuleError: there is no rule for the network.
    """
    optimizers = sorted(optimizers, key=lambda name: (name == "sgd", name != "adam"))  # the most used one first
    _check(batch, rate, optimizers, warmup_steps, epsilon, adamw_rate)
    stack, notes = of.read(asked.given)
    require(stack, "noise_scale")
    if has_own_rates(notes):
        raise NoRuleError(OWN_RATES)
    if missing := gaps(replace(stack, tokens=2), "first_step"):
        raise NoRuleError(f"theory has no rule for a first step of {missing[0].networks}: {missing[0].because}.")
    of_text, times, masked = law_of(stack, asked.text), logit_multiplier(notes), masked_share(notes)
    law = of_text or TextLaw.distinct(stack.vocab)
    rate_1 = rate / (warmup_steps or 1)
    solved: set[Optimizer] = {*optimizers, "sgd"} if of_text is not None else {*optimizers}  # the scale needs SGD's
    cost = cost_of_steps(stack, [*solved], batch)
    if of_text is not None:
        cost += quick_cost(stack, of_text, None)
    ratio = None if adamw_rate is None else adamw_rate / rate
    titles = NAMES if ratio is None else NAMES | {"muon": f"{NAMES['muon']} with AdamW at {ratio * rate_1:.3g}"}
    names = ", ".join(map(titles.__getitem__, optimizers))
    if plan:
        return planned(
            (stack, notes, of), batch_text(batch, stack.tokens, asked.text, asked.of_tokens),
            f"change of the loss in step 1 at {rate_1:.3g}, critical rate, for {names}", cost,
        )  # fmt: skip
    with shown(f"predicting the first step by {names}", cost), one_numpy_thread(), each_once():
        moves = batch_steps(stack, optimizers, batch, law, multiplier=times, masked=masked, adam_ratio=ratio)
        scale = None if of_text is None else kernel_scale(stack, of_text, batch, moves, notes)
        rows, slowed = list[str](), list[str]()
        with suppress(ValueError):  # no rule for a batch of this text, or it takes long
            rows, slowed = _of_quick_batch(asked, batch, of, epsilon, has_adam="adam" in moves)
    if failed := [name for name, step in moves.items() if step.critical_rate <= 0]:
        others = " ".join(name for name in optimizers if name not in failed)
        raise NoRuleError(
            f"the critical rate of {' and '.join(NAMES[name] for name in failed)} is unknown: theory's estimate of the "
            f"gain or curvature is not positive here{f'; --optimizer {others} omits it' * bool(others)}."
        )
    alone = [name for name in optimizers if name != "muon" or adamw_rate is None]
    limits = {
        name: (0.0, math.inf) if scale is None or name not in alone else rate_range(stack, [scale], name, times, masked)
        for name in moves
    }
    steps = [
        RateOfStep(name, titles[name], rate_1, step.rescaled(scale or 1.0), limits[name])
        for name, step in moves.items()
    ]
    table = pd.DataFrame([step.row() for step in steps])
    source = "" if scale is None else evidence(stack, [scale], times, masked)
    networks, ranges, rises = measured_rates(stack, times, masked)
    moved, of_muon = _muon_lines(stack, ratio, is_measured="muon" in ranges) if "muon" in optimizers else ([], [])
    warmed = f", the first of {warmup_steps} steps of a linear warm-up to {rate:g}" if warmup_steps else ""
    return Result(
        about=f"step 1 of {title(stack)}", tables={"learning_rate": table},
        values={"stack": stack, "batch": batch, "notes": notes, "kernel_scale": scale},
        lines=[
            *_verdicts(rate, warmup_steps, steps, stack.placement, rises, known=source),
            *moved, "",
            f"{named(stack, notes, of)}: step 1 at the learning rate {rate_1:.3g}{warmed},",
            f"from {batch_text(batch, stack.tokens, asked.text, asked.of_tokens)}",
            *rows * (not is_logged),
            *[f"{masked:.0%} of the words are masked, and the others do not count in the loss."] * bool(masked),
            *_table(steps, stack), "",
            *_evidence_lines(
                steps, _measured(networks, ranges, alone) * bool(alone), stack, scale, is_far=source == "extrapolated"
            ),
            *slowed, *of_muon,
            *drawn_lines(notes, others=False),
            *note_lines(notes, masked=masked),
        ],
    )  # fmt: skip


def _check(
    batch: int, rate: float, optimizers: Sequence[Optimizer], warmup_steps: int | None, epsilon: float,
    adamw_rate: float | None,
) -> None:  # fmt: skip
    # Raise a ValueError for an argument outside its range.
    check_count("batch", batch, 1)
    check_count("warmup_steps", 1 if warmup_steps is None else warmup_steps, 1)
    if adamw_rate is not None and "muon" not in optimizers:
        raise ValueError(f"adamw_rate requires the optimizer muon, got {' '.join(optimizers)}.")
    for name, number, least, most, reason in (
        ("learning_rate", rate, 1e-100, _MOST, ""), ("adam_epsilon", epsilon, 0.0, _MOST, ""),
        (
            "adamw_rate", adamw_rate or 0.0, 0.0, (1.0 + 1e-9) * _MIXED[1] * rate,
            f" ({_MIXED[1]:g} times learning_rate, the largest measured)",
        ),
    ):  # fmt: skip
        if not least <= number <= most:
            raise ValueError(f"{name} must be a number from {least:g} to {most:g}{reason}, got {number!r}.")


def kernel_scale(
    stack: Stack, law: TextLaw, batch: int, steps: Mapping[Optimizer, BatchStep], notes: Sequence[Note] = ()
) -> float | None:
    """Return a batch's squared gradient norm divided by SGD's first-order decrease of the loss per learning rate.

    The number is None if no rule gives the batch's squared norm, or if the prediction takes long. Norms include the
    factors on matrices and the masked words in `notes`.

    Raises:
        OwnTokenError: the softmax of a tied network gives positions' own tokens too large a probability.
    """
    try:
        patterns, coarse = quick_sampling(stack, law, None)  # as `--compare` does
        # For tied embeddings, coarse groups have a rule for half as many tokens. It omits a small part of WK.
        coarse = coarse or bool(gaps(replace(stack, sequences=2), "grouped"))
        scale = scale_of_batch(stack, law, patterns, Budget.of(None, None), coarse=coarse, notes=notes)
    except OwnTokenError:  # the batch is refused
        raise
    except ValueError:  # no rule for a batch of this text, or it takes long
        return None
    sgd = steps if "sgd" in steps else batch_steps(
        stack, ["sgd"], batch, law, multiplier=logit_multiplier(notes), masked=masked_share(notes)
    )  # fmt: skip
    return sum(float(np.nansum(square)) for square in scale.grad_sq(batch).values()) / sgd["sgd"].gain


def _of_quick_batch(
    asked: Asked, batch: int, of: Description, epsilon: float, *, has_adam: bool
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Return rows with the loss and the gradient norm of step 1, and at most one line on AdamW's epsilon."""
    values = (run := quick_batch(asked, batch, of, patterns=None, max_time=None)).values
    rows = normal_ranges(values["line"], values["notes"], texts=spread_of_texts(asked.text, values["stack"].vocab) > 0)
    slowest = slowest_step(values["stack"], run.columns("layers"), values["line"].norm ** 2, epsilon)
    return [*map(card_row, ("loss", "gradient norm"), rows)], [
        f"{slowed_text(slowest, f' ({epsilon:.0e}, gradients clipped to norm 1)')}; rates hold for an epsilon of 0."
    ] * (has_adam and bool(slowest[1]))


def _table(steps: Sequence[RateOfStep], stack: Stack) -> list[str]:
    # Return a row for each optimizer. A change of the loss far beyond the quadratic approximation has a sign at most.
    head = ("optimizer", "change of loss", "critical rate", "change of logits", "largest relative update")
    rows = []
    for each in steps:
        (change, error), critical, (name, update) = each.step.change(each.rate), each.step.critical_rate, each.update
        number = f"{change:+.3g}{f' +- {error:.1g}' * each.has_error(stack)}"
        falls = number if each.region != _BEYOND else each.sign
        rows.append((each.title, falls, f"{critical:.2g}", f"{each.logits:.2g}", f"{update:.2g} ({name})"))
    return table_lines(head, rows)


def _verdicts(
    rate: float,
    warmup_steps: int | None,
    steps: Sequence[RateOfStep],
    placement: str,
    rises: Ranges,
    *,
    known: str,
) -> list[str]:
    # Answers for every optimizer whether step 1 lowers the loss, and when a warm-up passes that rate.
    lines = []
    for each in steps:
        critical, verb = each.step.critical_rate, {"falls": "lowers", "rises": "raises"}.get(each.sign)
        early, share, late = (critical * limit / rate for limit in (each.limits[0], 1.0, each.limits[1]))
        plan, exact = "", each.limits[0] * rises.get(each.optimizer, (0.0, 0.0))[0]
        is_unsafe = bool(each.limits[0] and rises.get(each.optimizer, (1.0, 1.0))[0] == 0.0)
        second = " in theory" * bool(verb and (verb == "raises" or each.rate >= critical * exact))
        second += ", but not in all sampled networks" * bool(verb == "lowers" and 0.0 < critical * exact <= each.rate)
        if 0.0 < early < 1.0 and warmup_steps:
            first, middle, last = (math.ceil(part * warmup_steps) for part in (early, share, late))
            until = f"to {last}" if late <= 1.0 else "at the earliest, perhaps never"
            plan = (
                f" The warm-up passes that rate at step {middle} of {warmup_steps} ({first} {until}) and ends at "
                f"{1.0 / share:.2g} times it."
                if share < 1.0
                else f" The warm-up may pass that rate from step {first} of {warmup_steps} on."
            )
        elif early >= 1.0 and warmup_steps:
            plan = f" The warm-up stays below that rate in all {warmup_steps} steps."
        size = f" Logits change by {each.logits:.2g}, and {each.update[0]} by {each.update[1]:.2g} of its norm."
        unsafe = " No safe rate is known: losses of sampled networks rose even below that rate."
        steps_to = f" A linear warm-up of at least {math.ceil(1 / max(early, 1e-6)):,} steps to {rate:g} starts at "
        lines += [
            f"{each.title}: step 1 at {each.rate:.3g} {verb or 'may lower or raise'} the loss{second} "
            f"({each.rate / critical:.2g} times its critical rate, {critical:.2g}).{plan}"
            f"{size * (each.region == _BEYOND)}{unsafe * is_unsafe}",
        ]
        lines += [] if is_unsafe else [
            f"{each.title}: {rate_text(rate_limits(critical, each.limits, rises.get(each.optimizer)), known)}."
            + f"{steps_to}{early * rate:.2g} or below." * (not warmup_steps and 1e-6 < early < 1.0)
        ]  # fmt: skip
        if each.optimizer == "adam" and warmup_steps and share < 1.0 and placement == "pre":
            place = "peak is above theirs" if share * PEAKS[1] < 1.0 else "peak is in their range"
            fewer = f", but {warmup_steps} steps are fewer than in any of them: {PEAKS[3]} would be in their range, too"
            lines += [_RUNS.format(*PEAKS, place + fewer * (warmup_steps < PEAKS[3]))]
            lines += [_RAMPS.format(*RAMPS)] * (warmup_steps <= _RAMP)
    return [part for line in lines for part in textwrap.wrap(line, 118, subsequent_indent="  ")]


def _evidence_lines(
    steps: Sequence[RateOfStep], measured: str, stack: Stack, scale: float | None, *, is_far: bool
) -> list[str]:
    """State the limits of the prediction, after a sentence on measured rates, by the factor of `BatchStep.rescaled`."""
    near = [each for each in steps if each.region != _BEYOND]
    sentences = {
        measured: bool(measured and scale is not None),
        "At its critical rate, step 1 leaves the loss unchanged to second order; above, it may raise it.": True,
        f"The change of the loss has no number where logits change by more than {_LOGITS[1]:g} or a matrix by more "
        f"than {_UPDATES[1]:g} of its norm.": len(near) < len(steps),
        f"Where logits change by more than {_LOGITS[0]:g} or a matrix by more than {_UPDATES[0]:g} of its norm, its "
        "number is less accurate.": any(each.region != "inside" for each in near),
        f"+-: to first order, errors were at most {ERRORS['gain']:.0%} in 9 of 10 measured networks; to second order, "
        f"{ERRORS['curvature']:.0%} in 8 of 10.": any(each.has_error(stack) for each in near),
        _UNMOVED: all(each.optimizer != "muon" for each in steps),  # Muon's first lines have it
        "The batch's gradient is unknown here, so the error of these critical rates is unknown, too. With small "
        "embeddings, they are far too small.": scale is None,
    }
    printed = [sentence for sentence, applies in sentences.items() if applies]
    return [
        *(part for line in printed for part in textwrap.wrap(line, 118, break_on_hyphens=False)),
        *([_FAR.format(scale, *MEASURED_SCALES[stack.placement])] if is_far else []),
    ]


def _measured(networks: str, ranges: Ranges, optimizers: Sequence[Optimizer]) -> str:
    """State the range of measured divided by predicted critical rates, and the networks that it is from."""
    chosen = {NAMES[name]: limits for name, limits in ranges.items() if name in optimizers}
    if not chosen:
        return "Too few such networks were measured with these optimizers, so the error of critical rates is unknown."
    words = ", ".join(f"{low:g} to {high:g} ({name})" for name, (low, high) in chosen.items())
    return f"Measured critical rates were within {words} times the predicted ones in {networks}."


def _muon_lines(stack: Stack, ratio: float | None, *, is_measured: bool) -> tuple[list[str], list[str]]:
    """State which parameters Muon moves, or its mix with AdamW at a ratio of rates; then the measured errors.

    `is_measured` is whether such networks were measured with Muon.
    """
    output = "the tied embedding table" if stack.embeddings == "tied" else "the output matrix"
    known = "At" if is_measured and ratio and round(ratio, 9) >= _MIXED[0] else "Extrapolated: at"
    moved, measured = (_MOVED, _MUON.get(stack.placement, "")) if ratio is None else (_MIX, _OF_MIX.format(known))
    return textwrap.wrap(f"{moved.format(output)} {_UNMOVED}", 118, subsequent_indent="  "), [
        line for words in (measured, _SCALED) for line in textwrap.wrap(words, 118)
    ]


_FAR = (
    "Extrapolated: the batch's squared gradient is {:.2g} times its approximation by few positions (errors of rates\n"
    "were measured only from {:g} to {:g} for this placement). Printed ranges are 0.4 to 2.5 times the rate or wider."
)
_MUON_RATES = (
    "Muon's measured critical rates were {} times the predicted ones in {} with plain units, too few for a range."
)
# The numbers are from tests/evidence/batch-steps.json and masked-steps.json.
_MUON = {
    "pre": "With plain units, Muon's fall of the loss was within its error in 28 of 28 measured networks, and in 19 of "
    "28 at four times the rate; gated units have no printed error.",
    "post": _MUON_RATES.format(
        "0.69 to 1.17", "18 Post-LN networks (0.42 to 1.10 times in 11 BERTs with 15% masked words)"
    ),
    "peri": _MUON_RATES.format("0.65 to 1.28", "9 Peri-LN networks"),
}
_MOVED = "Muon moves all matrices of the layers and {0}. Usual recipes train {0} by AdamW: --adamw-rate R2."
_MIX = "Muon moves all matrices of the layers, and AdamW moves {}."
_UNMOVED = "Biases, norm gains, position tables and an untied embedding table do not move."
_SCALED = (
    "Muon's learning rate R is scaled as torch.optim.Muon scales it by default. WQ, WK and WV are three matrices; "
    "rates with one matrix for all (transformers' GPT-2 and GPT-NeoX) are not predicted."
)
# The numbers are from tests/evidence/mixed-steps.json.
_OF_MIX = (
    "The critical rate is Muon's, at this ratio of both rates. {} ratios of 0.02 and 0.3, measured rates were 0.69 to "
    "1.14 times the predicted ones in 16 causal Pre-LN networks with plain units, and 0.44 to 1.12 times in 16 with "
    "gated units. If AdamW also trains biases, norm gains and other tables, as usual, the rate is lower, much so at "
    "0.3."
)
