"""Which statistic of initialization predicts the largest stable rate: fitted on small stacks, judged on larger ones."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

UNBOUNDED = 1000.0
"""Critical rates beyond which a stable rate is called none."""

STATISTICS = (
    "2/λ", "1/tr G", "1/rms change of logits", "1/|g|²", "critical rate", "Hessian rate", "break-even rate", "1/d",
)  # fmt: skip
"""Rates of `initial_statistics`."""

LEVEL = 0.9
"""Of prediction intervals, and of the interval of their coverage."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """How one statistic did.

    Attributes:
        statistic: its name; a rate, to whose power the stable rate was taken to be proportional.
        exponent: that power, fitted.
        coverage: the share of judged networks whose stable rate lies in its 90% prediction interval.
        coverage_low: the lower end of the coverage's own 90% interval, as if networks of one stack were one trial.
        coverage_high: the upper end.
        interval_ratio: the median ratio of the upper to the lower end of the prediction intervals.
        off: the median factor, of at least 1, by which judged networks are off the prediction.
        networks: how many were judged.
    """

    statistic: str
    exponent: float
    coverage: float
    coverage_low: float
    coverage_high: float
    interval_ratio: float
    off: float
    networks: int


def with_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """A table of networks with the column `bounded`: whether the stable rate is at most `UNBOUNDED` critical rates.

    Beyond, a network learnt its few labels in one leap, whatever the rate, and what ended the search was float32.
    """
    return table.assign(bounded=table["eta_max"] <= UNBOUNDED * table["critical rate"])


def committed_networks() -> pd.DataFrame:
    """One row for each committed network: its stack, loss, stable rate and statistics, in studies/stable_rate/data."""
    files = sorted((Path(__file__).parent / "data").glob("*.json"))
    stacks = [stack for file in files for stack in json.loads(file.read_text(encoding="utf-8"))["stacks"]]
    return with_bounds(pd.concat([pd.DataFrame(stack) for stack in stacks], ignore_index=True))


def format_predictors(table: pd.DataFrame) -> list[str]:
    """How well each statistic predicts the stable rate: lines fitted on narrow stacks and judged on the widest.

    Where there is one width all networks are fitted and judged.
    """
    widest = (table["width"] == table["width"].max()).to_numpy()
    fitted = ~widest if table["width"].nunique() > 1 else widest
    lines = [f"{'statistic':24} {'power':>7} {'inside 90%':>11} {'off by':>7}"]
    for statistic in STATISTICS:
        try:
            line = predictor(table, statistic, fitted, widest)
        except ValueError:
            continue
        lines.append(f"{statistic:24} {line.exponent:7.2f} {line.coverage:11.2f} {line.off:7.2f}")
    return lines


def predictor(table: pd.DataFrame, statistic: str, fitted: np.ndarray, judged: np.ndarray) -> Predictor:
    """A least-squares line of the stable rate over one statistic, on logarithmic scales, over all fitted rows.

    Args:
        table: of `with_bounds`; rows that are not bounded are left out.
        statistic: a column; rows where it is not a positive number are left out.
        fitted: whether the line is fitted to a row, (rows,).
        judged: whether it is judged on a row, (rows,).

    Raises:
        ValueError: fewer than three rows to fit, or none to judge.
    """
    known = (table["bounded"] & (table[statistic] > 0)).to_numpy()
    x, y = np.log(table[statistic].where(known, 1.0).to_numpy(float)), np.log(table["eta_max"].to_numpy(float))
    to_fit, to_judge = fitted & known, judged & known
    if to_fit.sum() < 3 or not to_judge.any():
        raise ValueError(f"table must have 3 rows to fit and 1 to judge, got {to_fit.sum()} and {to_judge.sum()}.")
    line = stats.linregress(x[to_fit], y[to_fit])
    off = y[to_judge] - line.intercept - line.slope * x[to_judge]
    half = _half_width(x[to_fit], y[to_fit] - line.intercept - line.slope * x[to_fit], x[to_judge])
    inside = np.abs(off) <= half
    stacks = table.loc[to_judge, ["placement", "width", "depth", "loss"]].drop_duplicates().shape[0]
    share = stats.binomtest(round(float(inside.mean()) * stacks), stacks).proportion_ci(LEVEL)
    return Predictor(
        statistic=statistic,
        exponent=float(line.slope),
        coverage=float(inside.mean()),
        coverage_low=float(share.low),
        coverage_high=float(share.high),
        interval_ratio=float(np.median(np.exp(2 * half))),
        off=float(np.exp(np.median(np.abs(off)))),
        networks=int(to_judge.sum()),
    )


def _half_width(x: np.ndarray, residuals: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Half of the prediction interval of a least-squares line at new points; textbook, with Student's t."""
    free = len(x) - 2
    spread = np.sqrt((residuals**2).sum() / free)
    leverage = 1 / len(x) + (new - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half: np.ndarray = stats.t.ppf((1 + LEVEL) / 2, free) * spread * np.sqrt(1 + leverage)
    return half
