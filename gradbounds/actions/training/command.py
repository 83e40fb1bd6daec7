"""`gradbounds train`: quantities at each step of training, and their exponents in the width."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from rich.progress import track

from checks.fits import LEAST_POINTS, power_law
from figures import training_steps
from gradbounds.actions.figures import save
from gradbounds.json_output import tell
from simulate.runs.files import write_whole
from simulate.runs.sample import check_count
from simulate.training.optimizers import OptimizerName
from simulate.training.schedule import BatchName, roles
from simulate.training.train import Training, train
from theory import NoRuleError, Stack
from theory.first_step.prediction import first_step
from theory.stack import TITLES

# What the table on the screen has, by quantity; the last layer's of those that layers have.
_SHOWN = {
    "loss": "loss",
    "grad_sq_W2": "||dL/dW2||^2",
    "feature_change_sq": "features' change",
    "logit_change_sq": "logits' change",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How every network is trained.

    Attributes:
        steps: their number.
        learning_rate: of every matrix.
        in_critical_rates: whether the rate is in units of each network's critical rate in theory.
        mup: whether σ_e is d^(-1/2) and the rate of W_emb is divided by d.
        optimizer: "sgd" or "muon".
        momentum: of every matrix.
        weight_decay: of every matrix.
        batch: "same" or "fresh".
        engine: "auto", "dense" or "conditioned".
    """

    steps: int
    learning_rate: float
    in_critical_rates: bool = False
    mup: bool = False
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch: BatchName = "same"
    engine: Literal["auto", "dense", "conditioned"] = "auto"

    def stack(self, given: Stack) -> Stack:
        """The network, in the parametrization.

        Raises:
            ValueError: it is mu-P, and the output scale is given, or the optimizer is not SGD.
        """
        if not self.mup:
            return given
        if given.output_scale != 1.0 or self.optimizer != "sgd" or self.in_critical_rates:
            raise ValueError(
                "parametrization must be 'standard' with an output_scale, with muon and with rates in critical ones; "
                "'mup' here is a rule for the rates of sgd, which sets output_scale to d^(-1/2)."
            )
        return replace(given, output_scale=given.width**-0.5)

    def rate(self, stack: Stack) -> float | Mapping[str, float]:
        """The learning rate, or rates by role.

        Raises:
            ValueError: the rate is in critical ones, and theory has none.
        """
        if self.mup:
            return dict.fromkeys(roles(stack), self.learning_rate) | {"Wemb": self.learning_rate / stack.width}
        if not self.in_critical_rates:
            return self.learning_rate
        try:
            return self.learning_rate * first_step(stack, self.optimizer).critical_rate
        except NoRuleError as error:
            raise ValueError(f"rate_unit must be 'one' where theory has no critical rate: {error}") from error


def trainings(stacks: Sequence[Stack], plan: Plan, *, draws: int, seed: int, out: Path | None) -> int:
    """Train networks of every kind, print what changes, and write a table and a figure into a folder.

    Raises:
        ValueError: an argument is outside its range, training does not cover a network, or the folder cannot be
            written.
    """
    check_count("draws", draws, 2)  # one draw has no error
    shown = sys.stderr.isatty()
    parts = []
    for given in track(stacks, description="training", disable=not shown, transient=True):
        stack = plan.stack(given)
        found = train(
            stack, steps=plan.steps, learning_rate=plan.rate(stack), optimizer=plan.optimizer, momentum=plan.momentum,
            weight_decay=plan.weight_decay, batch=plan.batch, engine=plan.engine, draws=draws, seed=seed,
        )  # fmt: skip
        parts.append(_means(found))
    table = pd.concat(parts, ignore_index=True)
    exponents = _exponents(table)
    tell(steps=table, exponents=exponents)
    print("\n".join(_lines(table, exponents)))
    if out is not None:
        write_whole(out / "training.csv", table.to_csv(index=False).encode())
        print(f"Table   {out / 'training.csv'}")
        if "logit_change_sq" in set(table["quantity"]):
            print(f"Figure  {save(training_steps(table), out, 'training')[-1]}")
    return 0


def _means(found: Training) -> pd.DataFrame:
    """One row per quantity, step and layer: mean and standard error over draws; layer 0 is the network."""
    rows = []
    for name, values in found.arrays.items():
        wide = values.astype(float) if values.ndim == 3 else values.astype(float)[:, :, None]
        mean, sem = wide.mean(0), wide.std(0, ddof=1) / found.draws**0.5
        for step, layer in np.ndindex(mean.shape):
            at = layer + 1 if values.ndim == 3 else 0
            rows.append(
                {"quantity": name, "step": step, "layer": at, "mean": mean[step, layer], "sem": sem[step, layer]}
            )
    network = asdict(found.stack) | {"engine": found.cell.engine, "draws": found.draws}
    return pd.DataFrame(rows).assign(**network)


def _last(table: pd.DataFrame) -> pd.DataFrame:
    """What is shown of every network: the network's quantities, and those of its last layer."""
    kept = table["quantity"].isin(list(_SHOWN)) & table["layer"].isin([0]).where(
        table["quantity"].isin(["loss", "logit_change_sq"]), table["layer"] == table["depth"]
    )
    return table[kept]


def _exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Exponents in d of the changes after the first step and after the last, with 95% intervals, where d varies."""
    rows = []
    last = _last(table)
    chosen = last[last["quantity"].str.endswith("change_sq") & last["step"].isin([1, last["step"].max()])]
    for (placement, depth, quantity, step), some in chosen.groupby(
        ["placement", "depth", "quantity", "step"], sort=False
    ):
        if some["width"].nunique() < max(LEAST_POINTS, len(some)) or not (some["mean"] > 0).all():
            continue
        # Of the root mean square: half the exponent of the mean square.
        law = power_law(some["width"], some["mean"], some["sem"])
        low, high = law.interval()
        about = {"placement": placement, "depth": depth, "quantity": quantity, "step": step}
        rows.append(about | {"exponent": law.exponent / 2, "low": low / 2, "high": high / 2})
    return pd.DataFrame(rows, columns=["placement", "depth", "quantity", "step", "exponent", "low", "high"])


def _lines(table: pd.DataFrame, exponents: pd.DataFrame) -> list[str]:
    last = _last(table)
    steps = sorted({0, 1, last["step"].max()})
    shown = []
    for (placement, width, depth), some in last.groupby(["placement", "width", "depth"], sort=False):
        for step in steps:
            row = {"placement": TITLES[placement], "width": width, "depth": depth, "step": step}
            for name, said in _SHOWN.items():
                value = some[(some["quantity"] == name) & (some["step"] == step)]["mean"]
                if len(value):
                    root = name.endswith("change_sq")
                    row[said] = f"{value.iloc[0] ** 0.5 if root else value.iloc[0]:.3g}"
            shown.append(row)
    lines = ["Means over networks; changes since step 0 are roots of mean squares, features' relative to their size."]
    lines += ["W2 and features are the last layer's.", "", *pd.DataFrame(shown).to_string(index=False).splitlines()]
    if len(exponents):
        lines += ["", "Exponents in d of the changes, with 95% intervals:"]
        lines += [
            f"{TITLES[row.placement]}, L = {row.depth}, {_SHOWN[row.quantity]}, step {row.step}: "
            f"d^{row.exponent:.3f} ({row.low:.3f} to {row.high:.3f})"
            for row in exponents.itertuples()
        ]
    return lines
