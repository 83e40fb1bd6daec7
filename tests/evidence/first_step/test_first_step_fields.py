"""First steps of random stacks from all fields at once, by a seed that was fixed beforehand, beside theory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checks.first_step import first_step
from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.given_outputs import NUMBERS, step_pairs
from tests.helpers.random_stacks import random_stacks
from theory import NoRuleError, Stack
from theory.coverage import gaps

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SEED, STACKS, WIDTH, NETWORKS = 20_271, 60, 256, 16
OPTIMIZERS = ("sgd", "adam")
FLOOR, FAR = 0.05, 4.0


def case(stack: Stack) -> dict[str, Any]:
    """Why there is no theory; or networks over theory given their outputs, with errors, and the stated error."""
    if lacking := gaps(stack, "first_step"):
        return {"refused": [gap.networks for gap in lacking]}
    pairs = [step_pairs(stack, OPTIMIZERS, seed) for seed in range(NETWORKS)]
    step = first_step(stack, "adam")
    return {
        "stated error": step.implied_error, "not known": step.no_coefficient,
        "over theory": {
            optimizer: {name: quotient(*zip(*(one[optimizer][name] for one in pairs), strict=True)) for name in NUMBERS}
            for optimizer in OPTIMIZERS
        },
    }  # fmt: skip


def quotient(networks: tuple[float, ...], theory: tuple[float, ...]) -> list[float]:
    """Of the means, and its standard error."""
    measured, predicted = np.array(networks), np.array(theory)
    ratio = measured.mean() / predicted.mean()
    error = (measured - ratio * predicted).std(ddof=1) / len(networks) ** 0.5 / predicted.mean()
    return [float(ratio), float(error)]


def test_random_stacks(kept_folder):
    """What is judged is within its stated error or 5%, and 4 standard errors; what is refused has its reason."""
    found = {}
    for number, stack in enumerate(random_stacks(SEED, 0, STACKS)):
        try:
            narrow = replace(stack, width=WIDTH)
        except ValueError:  # a field asks for its own width
            continue
        if narrow.heads * 2 > WIDTH:
            narrow = replace(narrow, heads=8, kv_heads=0)
        found[str(number)] = {"stack": narrow.relaxed} | kept_case(
            kept_folder, f"first step {narrow!r}", lambda narrow=narrow: case(narrow)
        )
    record("first-step-fields", rounded({"seed": SEED, "stacks": found}), short=True)
    wrong = [
        (number, optimizer, name, ratio, error, one["stated error"])
        for number, one in found.items() if "over theory" in one and not one["not known"]
        for optimizer, numbers in one["over theory"].items()
        for name, (ratio, error) in numbers.items()
        if abs(ratio - 1) > max(FLOOR, one["stated error"]) + FAR * error
    ]  # fmt: skip
    assert not wrong
    assert all(one["refused"] for one in found.values() if "refused" in one)


def test_refusals_are_errors():
    """What has a gap has no number."""
    for stack in random_stacks(SEED, 0, STACKS):
        if gaps(stack, "first_step"):
            with pytest.raises(NoRuleError):
                first_step(stack)
