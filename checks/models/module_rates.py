"""The first step from any module: its rates over seeds, exponents, what limits them, and theory beside them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from checks.fits import pooled_exponent
from checks.models.alarm import WHOLE_MODEL, Alarm, Finding, merged
from simulate.curvature.module_step import WHOLE
from theory import NoRuleError, Stack
from theory.first_step.prediction import first_step

_SIZE = ["optimizer", "width", "depth"]
_COLUMNS = [
    *_SIZE, "seeds", "critical_rate", "critical_sem", "predicted", "predicted_sem", "hessian_rate", "hessian_none",
    "break_even_rate", "break_even_low", "break_even_high", "break_even_none", "passes", "limits", "limits_share",
    "limits_rate", "below_critical", "below_break_even",
]  # fmt: skip
EXPONENTS = ["optimizer", "rate", "against", "exponent", "low", "high"]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleRates:
    """Rates of the first step from a module.

    Attributes:
        steps: what was measured, as `simulate.curvature.module_step.module_steps` has it.
        table: one row per optimizer, width and depth: critical_rate 2 E g·u/E u'Gu over the seeds with its standard
            error, theory's for the Stack beside it (predicted, NaN where there is none), the median hessian_rate with
            how many seeds have none (hessian_none), the geometric mean of break_even_rate with its 95% interval
            (Student's t of the logarithms) and how many seeds have none, the median of its forward passes, the group
            that limits the step, which has the largest part of u'Gu, with that share and the critical rate of its step
            alone; and in how many seeds the learning rate is below each of the two rates (NaN where none is asked for).
        exponents: optimizer, rate ("critical" or "break-even"), against ("width" at the largest depth or "depth" at the
            largest width), exponent of the geometric mean, low, high (95%); a row where there are three values.
        reasons: why theory has no rule, once each.
        learning_rate: that was asked about, or None.
    """

    steps: pd.DataFrame
    table: pd.DataFrame
    exponents: pd.DataFrame
    reasons: tuple[str, ...]
    learning_rate: float | None

    def lines(self) -> list[str]:
        """The report as text."""
        return [*_table_lines(self.table), *_exponent_lines(self), *_answers(self), *_missing(self)]


def check_first_step(optimizers: Sequence[str], learning_rate: float | None) -> None:
    """Refuse a learning rate that nothing is compared with.

    Raises:
        ValueError: it is not above 0, or there is no optimizer.
    """
    if learning_rate is None:
        return
    if not optimizers:
        raise ValueError("first_step must name an optimizer where learning_rate is given.")
    if not 0 < learning_rate < float("inf"):
        raise ValueError(f"learning_rate must be a number above 0, got {learning_rate!r}.")


def module_rates(
    steps: pd.DataFrame, stack: Callable[[int, int], Stack] | None = None, learning_rate: float | None = None
) -> ModuleRates:
    """Judge the first steps of a module.

    Args:
        steps: as `simulate.curvature.module_step.module_steps` has them.
        stack: the Stack of a width and a depth, whose matrices, inputs and loss the module has.
        learning_rate: that is compared with the rates of every seed.
    """
    rows, reasons = [], dict[str, None]()
    # All sizes of one optimizer, then the next.
    places = {name: place for place, name in enumerate(dict.fromkeys(steps["optimizer"]))}
    ordered = steps.sort_values("optimizer", key=lambda names: names.map(places), kind="stable")
    for key, group in ordered.groupby(_SIZE, sort=False):
        optimizer, width, depth = key
        predicted = (float("nan"), float("nan"))
        if stack is not None:
            try:
                step = first_step(stack(int(width), int(depth)), optimizer)
                predicted = step.critical_rate, step.critical_rate_sem
            except NoRuleError as error:
                reasons[str(error).partition(", got ")[0]] = None
        rows.append((*key, *_row(group, predicted, learning_rate)))
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return ModuleRates(steps, table, _exponents(_of_whole(steps)), tuple(reasons), learning_rate)


def _of_whole(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole steps with each seed's rates."""
    whole = steps[steps["group"] == WHOLE]
    return whole.assign(
        critical=2 * whole["gain"] / whole["curvature"].where(whole["curvature"] > 0),
        hessian_rate=2 * whole["gain"] / whole["hessian"].where(whole["hessian"] > 0),
    )


def _row(rows: pd.DataFrame, predicted: tuple[float, float], learning_rate: float | None) -> tuple[object, ...]:
    """Of one optimizer at one size, without these."""
    whole = _of_whole(rows)
    rate, sem = ratio_of_means(2 * whole["gain"].to_numpy(), whole["curvature"].to_numpy())
    ends = whole["break_even_rate"]
    middle, low, high = geometric_mean(ends.dropna().to_numpy())
    groups = rows[rows["group"] != WHOLE].groupby("group", sort=False)[["gain", "curvature", "share"]].mean()
    limits, share, alone = "", float("nan"), float("nan")
    if groups["share"].notna().any():
        limits = str(groups["share"].idxmax())
        of_it = groups.loc[limits]
        share, alone = float(of_it["share"]), float(2 * of_it["gain"] / of_it["curvature"])
    below = [float("nan"), float("nan")]
    if learning_rate is not None:
        # A loss that stays below its start is below it at this rate too.
        below = [float((learning_rate < whole["critical"]).sum()), float((learning_rate < ends.fillna(np.inf)).sum())]
    hessians = whole["hessian_rate"]
    return (
        len(whole), rate, sem, *predicted, float(hessians.median()), int(hessians.isna().sum()),
        middle, low, high, int(ends.isna().sum()), float(whole["passes"].median()), limits, share, alone, *below,
    )  # fmt: skip


def ratio_of_means(top: np.ndarray, bottom: np.ndarray) -> tuple[float, float]:
    """E a/E b over seeds and its standard error, to first order; NaN of one seed, or where a number is missing."""
    rate = float(top.mean() / bottom.mean())
    if len(top) < 2:
        return rate, float("nan")
    return rate, float(np.std(top - rate * bottom, ddof=1) / len(top) ** 0.5 / abs(bottom.mean()))


def geometric_mean(values: np.ndarray) -> tuple[float, float, float]:
    """Of positive numbers, with its 95% interval by Student's t of the logarithms; NaN where there are too few."""
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    logs = np.log(values)
    half = float(stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)) if len(logs) > 1 else float("nan")
    middle = float(logs.mean())
    return tuple(float(np.exp(log)) for log in (middle, middle - half, middle + half))  # type: ignore[return-value]


def _exponents(whole: pd.DataFrame) -> pd.DataFrame:
    """Weighted fits of ln of the geometric means; the scatter over seeds is pooled over the sizes of a fit."""
    rows = []
    for optimizer, group in whole.groupby("optimizer", sort=False):
        for against, other in (("width", "depth"), ("depth", "width")):
            here = group[group[other] == group[other].max()]
            for rate, column in (("critical", "critical"), ("break-even", "break_even_rate")):
                logs = np.log(here[column]).groupby(here[against]).agg(["count", "mean", "var"])
                count, mean, variance = logs.to_numpy(float).T
                if fitted := pooled_exponent(logs.index.to_numpy(float), np.exp(mean), count, variance):
                    rows.append((optimizer, rate, against, *fitted))
    return pd.DataFrame(rows, columns=EXPONENTS)


def _table_lines(table: pd.DataFrame) -> list[str]:
    shown = table[_SIZE].copy()
    shown["critical"] = [
        f"{_number(rate)} +- {_number(sem, 1)}" if np.isfinite(rate) else "-"
        for rate, sem in _pairs(table, "critical_rate", "critical_sem")
    ]
    if table["predicted"].notna().any():
        shown["theory"] = [_number(rate) for rate in table["predicted"]]
        shown["ratio"] = [_number(a / b) for a, b in _pairs(table, "critical_rate", "predicted")]
    shown["Hessian"] = [
        _number(rate) + (f" ({n} none)" if n else "") for rate, n in _pairs(table, "hessian_rate", "hessian_none")
    ]
    shown["break-even"] = [
        (
            f"{_number(row.break_even_rate)} [{_number(row.break_even_low)}, {_number(row.break_even_high)}]"
            if np.isfinite(row.break_even_rate)
            else "-"
        )
        + (f" ({row.break_even_none} none)" if row.break_even_none else "")
        for row in table.itertuples()
    ]
    shown["largest part of u'Gu"] = [
        f"{row.limits}, {100 * row.limits_share:.0f}%, alone {_number(row.limits_rate)}" if row.limits else "-"
        for row in table.itertuples()
    ]
    seeds = int(table["seeds"].max())
    lines = [
        "First step, rates at which the loss is back at its start. Critical: by the quadratic model with Gauss-Newton, "
        f"ratio of means of {seeds} seeds +- s.e.; Hessian: with the Hessian, median; break-even: in fact, geometric "
        "mean [95%].",
    ]
    return [*lines, *shown.to_string(index=False).splitlines()]


def _pairs(table: pd.DataFrame, *names: str) -> list[tuple[float, ...]]:
    return list(zip(*(table[name] for name in names), strict=True))


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if np.isfinite(value) else "-"


def _exponent_lines(rates: ModuleRates) -> list[str]:
    letters = {"width": "d", "depth": "L"}
    lines = []
    for (optimizer, against), group in rates.exponents.groupby(["optimizer", "against"], sort=False):
        powers = [
            f"{r.rate} ~ {letters[str(against)]}^{r.exponent:.2f} [{r.low:.2f}, {r.high:.2f}]"
            for r in group.itertuples()
        ]
        lines.append(f"first step of {optimizer}: {', '.join(powers)}")
    return lines


def _answers(rates: ModuleRates) -> list[str]:
    """Whether the learning rate is below, in words."""
    if rates.learning_rate is None:
        return []
    lines = []
    for optimizer, group in rates.table.groupby("optimizer", sort=False):
        total = int(group["seeds"].sum())
        parts = [f"below the break-even rate in {int(group['below_break_even'].sum())} of {total} networks"]
        if group["critical_rate"].notna().any():
            parts.append(f"below the critical rate in {int(group['below_critical'].sum())}")
        least = group.sort_values("break_even_rate").iloc[0]
        where = ""
        if np.isfinite(least["break_even_rate"]):
            times = rates.learning_rate / least["break_even_rate"]
            where = (
                f"; {times:.2g} times the break-even rate at width {least['width']}, depth {least['depth']}, the least"
            )
        lines.append(f"learning rate {rates.learning_rate:g}, first step of {optimizer}: {', '.join(parts)}{where}")
    return lines


def above_break_even(rates: ModuleRates) -> list[Alarm]:
    """An alarm for every optimizer whose first step with the learning rate raises the loss, beyond the rate's error."""
    if rates.learning_rate is None:
        return []
    findings = []
    for row in rates.table.itertuples(index=False):
        end = row.break_even_high if np.isfinite(row.break_even_high) else row.break_even_rate
        if rates.learning_rate > end:
            what = f"the learning rate is {{}} times the one at which the first step of {row.optimizer} gains nothing"
            finding = Finding(WHOLE_MODEL, "rate", what, (rates.learning_rate / row.break_even_rate,))
            findings.append(((int(row.width), int(row.depth)), "", finding))
    return merged(findings)


def _missing(rates: ModuleRates) -> list[str]:
    lines = [f"theory of the first step has no rule: {reason}" for reason in rates.reasons]
    if rates.table["critical_rate"].isna().any():
        lines.append(
            "no critical rate: the loss is linear in what the module gives, or that holds no tensor of floats, or a "
            "number is not finite; let the module give its logits, and the loss be a function of them"
        )
    return lines
