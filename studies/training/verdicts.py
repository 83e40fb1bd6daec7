"""What training does as the width grows, and where Post-LN's gradients meet Pre-LN's.

Exponents in d of the changes of features and logits are judged as all exponents are: against theory over the same
widths where there is one, or else against the limit. Changes are roots of mean squares over draws since step 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from checks.fits import power_law
from checks.series import exponent_series
from checks.statistics import MARGIN, Agreement, Array, Estimate, estimate, scalar_agreement
from checks.verdict import EXPONENT_MARGIN, Word
from studies.training.train import Training
from theory import NoRuleError
from theory.first_step.prediction import first_step

CHANGES = ("logit_change_sq", "feature_change_sq")

STANDARD = {"logit_change_sq": 1.0, "feature_change_sq": 0.5}
"""Exponents in d of the first step of SGD at a rate that does not depend on d, with σ_e = 1 and V fixed."""

_WORDS: dict[Agreement, Word] = {"agrees": "holds", "differs": "fails", "undecided": "undecided"}


def last_of(one: Training, quantity: str, step: int) -> Array:
    """Draws of a quantity after a step, of the network or of its last layer."""
    values = one[quantity][:, step].astype(float)
    return np.asarray(values if values.ndim == 1 else values[:, -1])


def width_series(found: Sequence[Training], *, mup: bool) -> Iterator[tuple[dict[str, Any], list[Training]]]:
    """Networks that differ in the width alone, of at least three widths, with the placement and the depth.

    Args:
        found: of any grid.
        mup: whether the output scale follows the width as well.
    """
    for series in exponent_series(found, "width", free=["output_scale"] if mup else []):
        yield {"placement": series[0].stack.placement, "depth": series[0].stack.depth}, series


def width_exponents(found: Sequence[Training], *, mup: bool, at: Sequence[int] = ()) -> pd.DataFrame:
    """Exponents in d of the changes after the first step and the last, with 95% intervals and verdicts.

    What is claimed is theory's exponent over the same widths with the same weights (logits after one step, without
    weight decay), or the limit: 0 in mu-P, and for SGD `STANDARD`, to which the exponent of the rates is added. A limit
    is claimed of these widths: narrow ones may fail it, and rates beyond the critical one do.

    Args:
        found: of any grid.
        mup: whether output scale and rates are those of mu-P.
        at: the steps; the first and the last if none are given.

    Returns:
        One row per series, quantity and step: placement, depth, quantity, step, exponent, low, high; expected, source
        ("theory", "limit" or "") and verdict ("" where nothing is claimed).
    """
    rows = []
    for about, series in width_series(found, mup=mup):
        widths = [training.stack.width for training in series]
        for quantity in (name for name in CHANGES if name in series[0]):
            for step in at or sorted({1, series[0].schedule.steps}):
                each = _estimates(series, quantity, step)
                if not all(0 < change.mean < np.inf for change in each):
                    continue
                law = power_law(widths, [change.mean for change in each], [change.sem for change in each])
                # Of the root mean square: half the exponent of the mean square.
                exponent, sem, (low, high) = law.exponent / 2, law.sem / 2, law.interval()
                row = about | {"quantity": quantity, "step": step, "exponent": exponent}
                row |= {"low": low / 2, "high": high / 2, "expected": np.nan, "source": "", "verdict": ""}
                if (claimed := _claimed(series, quantity, step, np.array(law.weights), mup=mup)) is not None:
                    word = _WORDS[scalar_agreement(exponent, claimed[0], sem, EXPONENT_MARGIN)]
                    row |= {"expected": claimed[0], "source": claimed[1], "verdict": word}
                rows.append(row)
    names = ["placement", "depth", "quantity", "step", "exponent", "low", "high", "expected", "source", "verdict"]
    return pd.DataFrame(rows, columns=names)


def _estimates(series: Sequence[Training], quantity: str, step: int) -> list[Estimate]:
    """Means over draws; of networks that have diverged they are not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        return [estimate(last_of(training, quantity, step)) for training in series]


def _claimed(
    series: Sequence[Training], quantity: str, step: int, weights: Array, *, mup: bool
) -> tuple[float, str] | None:
    """The exponent of the root mean square that there should be, and by what."""
    if mup:
        return None if series[0].stack.has_scalars else (0.0, "limit")
    schedules = [training.schedule for training in series]
    if any(len(set(schedule.rates.values())) > 1 for schedule in schedules) or schedules[0].factors[0] == 0:
        return None
    rates = np.array([next(iter(schedule.rates.values())) for schedule in schedules])
    rule, slope = schedules[0].optimizer, float(weights @ np.log(rates))
    if quantity == "logit_change_sq" and step == 1 and not rule.weight_decay:
        try:
            changes = [first_step(training.stack, rule.name).logit_change_sq for training in series]
            return float(weights @ np.log(changes)) / 2 + slope, "theory"
        except NoRuleError:
            pass
    # Where branches begin at nothing, features move by what scalars learn, which is another order.
    limited = rule.name == "sgd" and not series[0].stack.has_scalars
    return (STANDARD[quantity] + slope, "limit") if limited else None


def meetings(found: Sequence[Training], *, resamples: int = 1000) -> pd.DataFrame:
    """The first step at which the mean square of Post-LN's last ∂L/∂W2 is no larger than Pre-LN's: an observation.

    Where it never gets there `step` is infinite: more than the steps that were trained. The interval is of 95%, by
    resampling draws.

    Args:
        found: of any grid.
        resamples: how many.

    Returns:
        One row per pair that differs in the placement alone: width, depth, step, low, high, steps; `first` and `last`,
        Post-LN's root mean square over Pre-LN's before the first step and after the last.
    """
    pairs: dict[tuple[object, ...], dict[str, Training]] = {}
    for t in found:
        if "grad_sq_W2" in t:
            pairs.setdefault(astuple(replace(t.stack, placement="post")), {})[t.stack.placement] = t
    rows, rng = [], np.random.default_rng(0)
    for pair in pairs.values():
        if not {"post", "pre"} <= set(pair):
            continue
        post, pre = (pair[name]["grad_sq_W2"][:, :, -1].astype(float) for name in ("post", "pre"))
        again = [
            _first_meeting(*(values[rng.integers(len(values), size=len(values))].mean(0) for values in (post, pre)))
            for _ in range(resamples)
        ]
        ratio = (post.mean(0) / pre.mean(0)) ** 0.5
        low, high = np.quantile(again, [0.025, 0.975], method="inverted_cdf")
        stack = pair["post"].stack
        row = {"width": stack.width, "depth": stack.depth, "step": _first_meeting(post.mean(0), pre.mean(0))}
        row |= {"low": low, "high": high, "steps": post.shape[1] - 1, "first": ratio[0], "last": ratio[-1]}
        rows.append(row)
    return pd.DataFrame(rows, columns=["width", "depth", "step", "low", "high", "steps", "first", "last"])


def _first_meeting(post: Array, pre: Array) -> float:
    below = np.flatnonzero(post <= pre)
    return float(below[0]) if len(below) else np.inf


def wide_limits(found: Sequence[Training], *, mup: bool) -> pd.DataFrame:
    """What the loss and the changes are at d = ∞ after every step, by a line in 1/d, with 95% intervals.

    The model is that means of draws are a + b/d, fitted with the weights of their errors; of changes that is their mean
    square, and `limit` its root. It is judged by what the others say of the widest: `left_out` is their error there in
    standard errors of the difference, and the verdict whether the two agree within 3%.

    Args:
        found: networks of at least three widths.
        mup: whether output scale and rates are those of mu-P; elsewhere there are no such limits.

    Returns:
        One row per series, quantity and step from 1 on: placement, depth, quantity, step, limit, low, high, slope
        (b/a), residual (the largest, in standard errors), fit (the p-value of χ²), left_out,
        verdict.
    """
    rows = []
    for about, series in width_series(found, mup=True) if mup else ():
        shares = 1.0 / np.array([training.stack.width for training in series])
        for quantity in (name for name in ("loss", *CHANGES) if name in series[0]):
            for step in range(1, series[0].schedule.steps + 1):
                each = _estimates(series, quantity, step)
                mean, sem = (
                    np.array([getattr(change, name) for change in each], dtype=float) for name in ("mean", "sem")
                )
                if (mean > 0).all() and (sem > 0).all() and np.isfinite(mean + sem).all():
                    rows.append(about | {"quantity": quantity, "step": step} | _limit(shares, mean, sem, quantity))
    names = ["placement", "depth", "quantity", "step", "limit", "low", "high", "slope", "residual", "fit", "left_out"]
    return pd.DataFrame(rows, columns=[*names, "verdict"])


def _limit(shares: Array, mean: Array, sem: Array, quantity: str) -> dict[str, Any]:
    """One row of `wide_limits`; shares are 1/d, of decreasing order."""
    (slope, limit), covariance = np.polyfit(shares, mean, 1, w=1 / sem, cov="unscaled")
    residuals = (mean - limit - slope * shares) / sem
    freedom = len(mean) - 2
    half = float(stats.norm.ppf(0.975)) * covariance[1, 1] ** 0.5
    ends = np.maximum([limit, limit - half, limit + half], 0.0)
    value, low, high = ends if quantity == "loss" else ends**0.5
    extrapolated, error = _said_of_the_widest(shares, mean, sem)
    apart = float(np.hypot(error, sem[-1]))
    return {
        "limit": value, "low": low, "high": high, "slope": slope / limit, "residual": float(np.abs(residuals).max()),
        "fit": float(stats.chi2.sf(residuals @ residuals, freedom)),
        "left_out": float(extrapolated - mean[-1]) / apart,
        "verdict": _WORDS[scalar_agreement(extrapolated, float(mean[-1]), apart, MARGIN * float(mean[-1]))],
    }  # fmt: skip


def _said_of_the_widest(shares: Array, mean: Array, sem: Array) -> tuple[float, float]:
    """What the line through the narrower ones says of the widest, and its standard error."""
    (slope, limit), covariance = np.polyfit(shares[:-1], mean[:-1], 1, w=1 / sem[:-1], cov="unscaled")
    at = np.array([shares[-1], 1.0])
    return float(slope * shares[-1] + limit), float((at @ covariance @ at) ** 0.5)
