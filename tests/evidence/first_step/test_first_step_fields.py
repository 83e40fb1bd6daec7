"""First steps of random stacks from all fields at once, by a seed that was fixed beforehand, beside theory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from checks.first_step import first_step
from simulate.curvature.first_step import direction, first_step_problem, gradients, measure_step
from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.given_outputs import first_step_given
from tests.helpers.random_stacks import random_stacks
from theory import NoRuleError, Stack
from theory.coverage import gaps
from theory.mean_field.inputs import loss_positions

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SEED, STACKS, WIDTH, NETWORKS = 20_271, 60, 256, 16
OPTIMIZERS = ("sgd", "adam")
NUMBERS = {"gain": "gain", "curvature": "curvature", "change": "logit_change_sq"}
FLOOR, FAR = 0.05, 4.0


def case(stack: Stack) -> dict[str, Any]:
    """Why there is no theory; or networks over theory given their outputs, with errors, and the stated error."""
    if lacking := gaps(stack, "first_step"):
        return {"refused": [gap.networks for gap in lacking]}
    torch.set_num_threads(1)
    found: dict[str, Any] = {optimizer: {name: ([], []) for name in NUMBERS} for optimizer in OPTIMIZERS}
    for seed in range(NETWORKS):
        problem = first_step_problem(stack, seed=seed)
        loss, gradient = gradients(problem)
        ((given, labels),) = problem.data
        p, r = outputs(stack, problem.model(given).detach(), labels, given.get("places"))
        for optimizer in OPTIMIZERS:
            measured = measure_step(problem, gradient, direction(gradient, optimizer), loss, ends=False)
            theory = first_step_given(stack, p, r, optimizer, seed=seed)
            for name, attribute in NUMBERS.items():
                networks, predicted = found[optimizer][name]
                networks.append(getattr(measured, attribute))
                predicted.append(float(theory[name][0]))
    step = first_step(stack, "adam")
    return {
        "stated error": step.implied_error, "not known": step.no_coefficient,
        "over theory": {
            optimizer: {name: quotient(*pair) for name, pair in numbers.items()} for optimizer, numbers in found.items()
        },
    }  # fmt: skip


def outputs(stack: Stack, logits: torch.Tensor, labels: torch.Tensor, places: torch.Tensor | None) -> tuple[Any, Any]:
    """Softmax of the positions that count, (1, P, V), and gradients at the logits of all, (1, N, V)."""
    counted = np.flatnonzero(loss_positions(stack)) if places is None else places.numpy()
    p, r = torch.softmax(logits, -1).numpy(), np.zeros((stack.rows, stack.vocab))
    certain = np.full_like(p, stack.label_smoothing / stack.vocab)
    certain[np.arange(len(p)), labels.numpy()] += 1.0 - stack.label_smoothing
    r[counted] = (p - certain) / len(p)
    return p[None], r[None]


def quotient(networks: list[float], theory: list[float]) -> list[float]:
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
