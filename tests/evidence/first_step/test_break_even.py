"""Break-even rates of smaller networks scaled like published ones, and whether their powers reach larger ones."""

from typing import Any

import numpy as np
import pytest

from gradbounds.actions.break_even import extrapolated, scaled, stepped
from simulate.curvature.first_step import sampled_steps
from tests.helpers.evidence_file import kept_case, record, rounded
from theory.configurations import stack_from_config
from theory.first_step.prediction import first_step

# Of tracing, torch's own.
pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

MODELS = ("llama-3-8b", "pythia-1.4b")
OPTIMIZERS = ("sgd", "adam")
DRAWS, LARGER = 16, (512, 16)
LEFT_OUT = 8
"""Draws of the larger size, which no extrapolation sees."""


def one_model(model: str) -> dict[str, Any]:
    """At its own size, and at one that is stepped as well."""
    stack, _ = stack_from_config(like=model, tokens=16)
    steps = stepped(stack, OPTIMIZERS, DRAWS, 0)
    larger = scaled(stack, *LARGER)
    seen = [sampled_steps(larger, OPTIMIZERS, seed=1000 + draw) for draw in range(LEFT_OUT)]
    medians = steps.groupby(["optimizer", "width", "depth"], sort=False)["ratio"].median().reset_index()
    at_larger = {}
    for name in OPTIMIZERS:
        logs = np.log([draw[name].break_even_rate / first_step(larger, name).critical_rate for draw in seen])
        error = float(np.std(logs, ddof=1) / LEFT_OUT**0.5)
        at_larger[name] = {"ratio": float(np.exp(logs.mean())), "relative error": error}
    return rounded(
        {
            "medians": medians.to_dict("records"),
            "never back": int(steps["ratio"].isna().sum()),
            "own size": extrapolated(steps, stack).to_dict("records"),
            "larger": extrapolated(steps, larger).to_dict("records"),
            "larger, seen": at_larger,
        }
    )  # fmt: skip


def test_break_even_rates(kept_folder):
    """The 95% intervals at d = 512 and L = 16 meet what networks do there."""
    found = {model: kept_case(kept_folder, model, lambda model=model: one_model(model)) for model in MODELS}
    record("break-even", {"draws": DRAWS, "larger": LARGER, "draws there": LEFT_OUT, "models": found}, short=True)
    for row in found.values():
        for end in row["larger"]:
            seen = row["larger, seen"][end["optimizer"]]
            # Of the mean that is seen too, at twice its error.
            spread = np.exp(2 * seen["relative error"])
            assert end["low"] / spread < seen["ratio"] < end["high"] * spread, (end, seen)
