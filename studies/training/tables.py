"""What `python -m studies training` prints and writes: means at every step, and what follows from them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from studies.training.train import Training
from studies.training.verdicts import meetings, wide_limits, width_exponents
from theory.stack import TITLES

# What the table on the screen has, by quantity; the last layer's of those that layers have.
_SHOWN = {
    "loss": "loss",
    "grad_sq_W2": "||dL/dW2||^2",
    "feature_change_sq": "features' change",
    "logit_change_sq": "logits' change",
}


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """Tables of a run of training.

    Attributes:
        steps: a row per network, quantity, step and layer: mean and standard error over draws; layer 0 is the network.
        exponents: of `studies.training.verdicts.width_exponents`.
        limits: of `studies.training.verdicts.wide_limits`.
        meetings: of `studies.training.verdicts.meetings`.
    """

    steps: pd.DataFrame
    exponents: pd.DataFrame
    limits: pd.DataFrame
    meetings: pd.DataFrame


def findings(found: Sequence[Training], *, mup: bool) -> Findings:
    """All tables; `mup` is whether output scale and rates are those of mu-P."""
    steps = pd.concat([_means(training) for training in found], ignore_index=True)
    return Findings(steps, width_exponents(found, mup=mup), wide_limits(found, mup=mup), meetings(found))


def _means(training: Training) -> pd.DataFrame:
    """One row per quantity, step and layer: mean and standard error over draws; layer 0 is the network."""
    rows = []
    for name, values in training.arrays.items():
        wide = values.astype(float) if values.ndim == 3 else values.astype(float)[:, :, None]
        with np.errstate(invalid="ignore", over="ignore"):  # of networks that have diverged
            mean, sem = wide.mean(0), wide.std(0, ddof=1) / training.draws**0.5
        for step, layer in np.ndindex(mean.shape):
            at = layer + 1 if values.ndim == 3 else 0
            rows.append(
                {"quantity": name, "step": step, "layer": at, "mean": mean[step, layer], "sem": sem[step, layer]}
            )
    network = asdict(training.stack) | {"engine": training.cell.engine, "draws": training.draws}
    return pd.DataFrame(rows).assign(**network)


def _last(table: pd.DataFrame) -> pd.DataFrame:
    """What is shown of every network: the network's quantities, and those of its last layer."""
    kept = table["quantity"].isin(list(_SHOWN)) & table["layer"].isin([0]).where(
        table["quantity"].isin(["loss", "logit_change_sq"]), table["layer"] == table["depth"]
    )
    return table[kept]


def format_findings(found: Findings) -> list[str]:
    """All tables as text."""
    text = ["Means over networks; changes since step 0 are roots of mean squares, features' relative to their size."]
    text += ["W2 and features are the last layer's.", "", *_steps(found.steps).to_string(index=False).splitlines()]
    if len(found.exponents):
        text += ["", "Exponents in d of the changes, with 95% intervals, and what is claimed over these widths:"]
        text += [_exponent(row) for row in found.exponents.itertuples()]
    if len(found.limits):
        text += ["", "At d = infinity, by a + b/d, with 95% intervals; the widest is what the others say:"]
        shown = found.limits["step"].isin({1, found.limits["step"].max()})
        text += [_limit(row) for row in found.limits[shown].itertuples()]
    if len(found.meetings):
        text += ["", "Where Post-LN's gradient of the last W2 has fallen to Pre-LN's (an observation):"]
        text += [_meeting(row) for row in found.meetings.itertuples()]
    return text


def _steps(table: pd.DataFrame) -> pd.DataFrame:
    last, shown = _last(table), []
    for (placement, width, depth), rows in last.groupby(["placement", "width", "depth"], sort=False):
        for step in sorted({0, 1, last["step"].max()}):
            row = {"placement": TITLES[placement], "width": width, "depth": depth, "step": step}
            for name, label in _SHOWN.items():
                value = rows[(rows["quantity"] == name) & (rows["step"] == step)]["mean"]
                if len(value):
                    root = name.endswith("change_sq")
                    row[label] = f"{value.iloc[0] ** 0.5 if root else value.iloc[0]:.3g}"
            shown.append(row)
    return pd.DataFrame(shown)


def _named(row: Any) -> str:
    return f"{TITLES[row.placement]}, L = {row.depth}, {_SHOWN[row.quantity]}, step {row.step}"


def _exponent(row: Any) -> str:
    line = f"{_named(row)}: d^{row.exponent:.3f} ({row.low:.3f} to {row.high:.3f})"
    return f"{line}; {row.source} d^{row.expected:.3f}: {row.verdict}" if row.verdict else line


def _limit(row: Any) -> str:
    line = f"{_named(row)}: {row.limit:.4g} ({row.low:.4g} to {row.high:.4g})"
    return f"{line}; widest off by {abs(row.left_out):.1f} s.e.: {row.verdict}"


def _meeting(row: Any) -> str:
    def step(value: float) -> str:
        return f"{value:.0f}" if np.isfinite(value) else f"more than {row.steps}"

    ratios = f"ratio of the norms {row.first:.3g} at first, {row.last:.3g} after step {row.steps}"
    return f"d = {row.width}, L = {row.depth}: step {step(row.step)} ({step(row.low)} to {step(row.high)}); {ratios}"
