"""The view `gradbounds predict --learning-rate`: the effect of step 1 on the loss at one learning rate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from gradbounds.actions.batch import Asked, family_of, law_of, norms_by_layer
from gradbounds.actions.card import rate_range
from gradbounds.actions.first_line import quick_cost, quick_sampling, scale_of_batch
from gradbounds.actions.plan import batch_text, named, planned
from gradbounds.budget import Budget
from gradbounds.described_network import Description
from gradbounds.layer_summary import slowest_step
from gradbounds.network_text import drawn_lines, note_lines, title
from gradbounds.plain_text import table_lines
from gradbounds.progress import shown
from gradbounds.result import Result
from simulate.counts import check_count
from simulate.threads import one_numpy_thread
from theory import Stack
from theory.configurations.vectors import learned_vectors
from theory.coverage import NoRuleError, gaps, require
from theory.first_step.batch_step import (
    ERRORS,
    GATED_RANGE,
    LEAST_MEASURED,
    RATE_RANGES,
    BatchStep,
    batch_steps,
    cost_of_steps,
)
from theory.mean_field.text_law import TextLaw
from theory.mean_field.tied.text_output import OwnTokenError
from theory.stack.optimizers import NAMES, Optimizer

INSIDE, EDGE = "inside", "at the edge"
_BEYOND = "far beyond"
_MOST = 1e100  # learning rate, whose square is finite
_LOGITS, _UPDATES = (0.5, 2.0), (0.1, 0.5)
"""The limits of the quadratic model of the loss: changes of logits, and the largest relative update of a matrix.

It holds up to the first number and fails above the second: a softmax and a network of products are quadratic only in
small changes of logits and weights.
"""


@dataclass(frozen=True, slots=True)
class RateOfStep:
    """The predicted effect of an optimizer's first step at one learning rate."""

    optimizer: Optimizer
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
            role if not np.ndim(values) else f"{role} of layer {layer}": float(value)
            for role, values in self.step.relative_updates.items()
            for layer, value in enumerate(np.atleast_1d(values), 1)
        }
        name, update = max(by_matrix.items(), key=lambda item: item[1])
        return name, self.rate * update

    @property
    def region(self) -> str:
        """Describe in words whether the quadratic approximation of the loss holds at this learning rate."""
        return (INSIDE, EDGE, _BEYOND)[
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
    warmup_steps: int | None = None, plan: bool = False,
) -> Result:  # fmt: skip
    """Predict the effect of step 1 at a learning rate, and when a warm-up exceeds the critical learning rate.

    Raises:
        ValueError: an argument is outside its range, or a configuration cannot be read.
        NoRuleError: there is no rule for the network.
    """
    check_count("batch", batch, 1)
    if warmup_steps is not None:
        check_count("warmup_steps", warmup_steps, 1)
    if not 0.0 < rate <= _MOST:
        raise ValueError(f"learning_rate must be a positive number of at most {_MOST:g}, got {rate!r}.")
    stack, notes = of.read(asked.given)
    require(stack, "noise_scale")
    if missing := gaps(replace(stack, tokens=2), "first_step"):
        raise NoRuleError(f"theory has no rule for a first step of {missing[0].networks}: {missing[0].because}.")
    of_text = law_of(stack, asked.text)
    law = of_text or TextLaw.distinct(stack.vocab)
    first = rate / (warmup_steps or 1)
    # The factor of the batch needs SGD's step.
    solved: set[Optimizer] = {*optimizers, "sgd"} if of_text is not None else {*optimizers}
    cost = cost_of_steps(stack, [*solved], batch)
    if of_text is not None:
        cost += quick_cost(stack, of_text, None)
    if plan:
        what = f"loss after step 1 at {first:.3g}, critical rate, for {', '.join(map(NAMES.__getitem__, optimizers))}"
        return planned((stack, notes, of), batch_text(batch, stack.tokens, asked.text, asked.of_tokens), what, cost)
    with shown(f"predicting the first step of {len(optimizers)} optimizers", cost), one_numpy_thread():
        by_name = batch_steps(stack, optimizers, batch, law)
        vectors = learned_vectors(stack, family_of(notes, of), notes)
        scale, slowed = (None, []) if of_text is None else kernel_scale(stack, of_text, batch, by_name, vectors)
    if failed := [name for name, step in by_name.items() if step.critical_rate <= 0]:
        others = " ".join(name for name in optimizers if name not in failed)
        raise ValueError(
            f"the critical rate of {' and '.join(NAMES[name] for name in failed)} is unknown: theory's estimate of the "
            f"gain or curvature is not positive here{f'; --optimizer {others} omits it' * bool(others)}."
        )
    limits = {
        name: (0.0, math.inf) if scale is None or name not in RATE_RANGES else rate_range(stack, scale, name)
        for name in by_name
    }
    steps = [RateOfStep(name, first, step.rescaled(scale or 1.0), limits[name]) for name, step in by_name.items()]
    table = pd.DataFrame([step.row() for step in steps])
    range_of = "in 9 of 10 networks" if (scale or 0.0) >= LEAST_MEASURED else "range, extrapolated"
    warmed = f", the first of {warmup_steps} steps of a linear warm-up to {rate:g}" if warmup_steps else ""
    return Result(
        about=f"step 1 of {title(stack)}", tables={"learning_rate": table},
        values={"stack": stack, "batch": batch, "notes": notes, "kernel_scale": scale},
        lines=[
            f"{named(stack, notes, of)}: step 1 at the learning rate {first:.3g}{warmed},",
            f"from {batch_text(batch, stack.tokens, asked.text, asked.of_tokens)}", "", *_table(steps, range_of), "",
            *_sentences(rate, warmup_steps, steps), *slowed, *_LIMITS,
            *[_UNSCALED] * (scale is None), _MUON if "muon" in optimizers else "Muon: add --optimizer adam muon.",
            *([_FAR.format(scale)] if scale is not None and scale < LEAST_MEASURED else []),
            *drawn_lines(notes), *note_lines(notes),
        ],
    )  # fmt: skip


def kernel_scale(
    stack: Stack, law: TextLaw, batch: int, steps: Mapping[Optimizer, BatchStep], vectors: Sequence[str] = ()
) -> tuple[float | None, list[str]]:
    """Return a batch's squared gradient norm divided by SGD's first-order decrease of the loss per learning rate.

    The number is None if no rule gives the batch's squared norm, or if the prediction takes long. The second result is
    at most one line on AdamW's epsilon, for a gradient norm that includes the biases, gains and tables in `vectors`.

    Raises:
        OwnTokenError: the softmax of a tied network gives positions' own tokens too large a probability.
    """
    try:
        patterns, coarse = quick_sampling(stack, law, None)  # as `--compare` does
        scale = scale_of_batch(stack, law, patterns, Budget.of(None, None), coarse=coarse)
    except OwnTokenError:  # the batch is refused
        raise
    except ValueError:  # no rule for a batch of this text, or it takes long
        return None, []
    squares = scale.grad_sq(batch)
    whole = sum(float(np.nansum(square)) for square in squares.values())
    norms = norms_by_layer(squares, scale.grad_sq_sem(batch))
    factor, where = slowest_step(stack, norms, scale.norm(batch, vectors)[0] ** 2)
    sgd = steps if "sgd" in steps else batch_steps(stack, ["sgd"], batch, law)
    return whole / sgd["sgd"].gain, [
        f"AdamW's epsilon (1e-8, gradients clipped to norm 1) slows {where} to {factor:.1g}x. Rates are for epsilon 0."
    ] * ("adam" in steps and bool(where))


def _table(steps: Sequence[RateOfStep], range_of: str) -> list[str]:
    # Return a row for each optimizer. A change of the loss far beyond the quadratic approximation has a sign at most.
    head = ("optimizer", "loss in step 1", "critical rate", range_of, "change of logits", "largest relative update")
    rows = []
    for each in steps:
        (change, error), critical, (name, update) = each.step.change(each.rate), each.step.critical_rate, each.update
        is_known = math.isfinite(each.limits[1])
        falls = f"{change:+.3g}{f' +- {error:.1g}' * is_known}" if each.region != _BEYOND else each.sign
        ends = " to ".join(f"{critical * limit:.2g}" for limit in each.limits) if is_known else "not measured"
        rows.append(
            (NAMES[each.optimizer], falls, f"{critical:.2g}", ends, f"{each.logits:.2g}", f"{update:.2g} ({name})")
        )
    return table_lines(head, rows)


def _sentences(rate: float, warmup_steps: int | None, steps: Sequence[RateOfStep]) -> list[str]:
    # States for every optimizer whether step 1 lowers the loss, and when a warm-up passes a critical rate with a range.
    lines = []
    for each in steps:
        critical = each.step.critical_rate
        lines.append(
            f"{NAMES[each.optimizer]}: {each.rate:.3g} is {each.rate / critical:.2g} times the critical rate. "
            f"The loss {each.sign} in step 1."
        )
        early, share, late = (critical * limit / rate for limit in (each.limits[0], 1.0, each.limits[1]))
        if 0.0 < early < 1.0 and warmup_steps:
            first, middle, last = (math.ceil(part * warmup_steps) for part in (early, share, late))
            until = f"to {last}" if late <= 1.0 else "at the earliest, perhaps never,"
            lines.append(
                (
                    f"  The warm-up exceeds step 1's critical rate from step {middle} of {warmup_steps} on "
                    f"({first} {until} by its range).\n"
                    if share < 1.0
                    else f"  The warm-up may exceed step 1's critical rate from step {first} of {warmup_steps} on.\n"
                )
                + "  Whether those steps are safe is unknown: training changes the critical rate."
            )
        elif 0.0 < early < 1.0:
            warmed = f", as in a linear warm-up of at least {math.ceil(1 / early):,} steps to {rate:g}"
            lines.append(f"  Step 1 lowers the loss up to {critical * each.limits[0]:.1e}{warmed * (early > 1e-6)}.")
    return lines


_FAR = (
    "These rates are extrapolated: the batch's squared gradient is {:.2g} times its approximation by few positions.\n"
    "Errors of rates were measured only where that factor is at least 0.2."
)
_MUON = (
    "Muon on captions, 4 to 128 sequences, plain units: the fall of the loss was within its error in 19 of 19\n"
    "cases. The curvature was up to 2.2 times the predicted one; with gated units, 5 times.\n"
    "R is that of torch.optim.Muon by default, for all matrices, the output matrix included. Usual recipes train\n"
    "embeddings, the output matrix and norm gains by AdamW, with a critical rate of its own."
)
_UNSCALED = (
    "The batch's gradient is unknown here, so the error of these critical rates is unknown, too.\n"
    "With small embeddings, they are far too small."
)
_LIMITS = (
    "",
    "The critical rate is the learning rate above which step 1 raises the quadratic (Gauss-Newton) loss. The model's",
    "card prints a range at least as wide, by a quick estimate. --first-step concerns one sequence of tokens that all\n"
    "differ.",
    f"The loss has a number where logits change by at most {_LOGITS[1]:g} and matrices by {_UPDATES[1]:g} of their",
    f"norm; above {_LOGITS[0]:g} and {_UPDATES[0]:g}, it is less accurate.",
    "The theory does not recommend a learning rate.",
    f"In 9 of 10 measured networks, the error was at most {ERRORS['gain']:.0%} for the first-order change of the loss.",
    f"In 8 of 10, the error of the second-order change was at most {ERRORS['curvature']:.0%}.",
    "Measured critical rates were {:g} to {:g} (SGD), {:g} to {:g} (AdamW) and {:g} to {:g} (Muon) times the".format(
        *(limit for limits in RATE_RANGES.values() for limit in limits)
    ),
    "predicted ones in 114 networks and in all 10 of a later list; with gated units, "
    f"{GATED_RANGE[0]:g} to {GATED_RANGE[1]:g} times in 20 and in 10 later.",
    "The predicted step does not change biases, norm gains, position tables or an untied embedding table.",
)
