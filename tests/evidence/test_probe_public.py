"""Kinds of faults that public problems had, planted with code of our own: what the report on one module says of each.

Kinds, families, sizes and bars were chosen before the first run, whose seeds began at 61,000: on it an epsilon of what
a norm divides was silent, and sums over keys within 0.02 of 1 were. The rules of both were changed then; these seeds
are others.
"""

from functools import partial
from typing import Any

import pytest
import torch

from checks.models.judge import judged_module
from tests.evidence.test_probe_models import interval
from tests.evidence.test_probe_wild import run as run_module
from tests.helpers.evidence_file import kept_cases, record, rounded
from tests.helpers.public_faults import KINDS, divided_by_norm

pytestmark = pytest.mark.evidence
RUNS, FIRST_SEED, DEPTH, WIDTHS, BAR = 20, 62_000, 4, (32, 64), 0.9
EPSILON = "epsilon of 1, one layer"
ANSWERS = ("alarm", "note", "fact")
# Kinds that miss the bar, and why.
SHORT = {
    "key biases of 1000": "BERT's stands by itself and all its entries are equal, which is a note, as it may be meant",
}


def place(kind: str, number: int) -> tuple[str, int, int]:
    """The family, layer and width of a run; every family has all layers and widths in turn."""
    families = KINDS[kind].families
    turn = number // len(families)
    return families[number % len(families)], 1 + (number + turn) % DEPTH, WIDTHS[turn % len(WIDTHS)]


def public_case(kind: str, number: int) -> dict[str, Any]:
    family, layer, width = place(kind, number)
    torch.manual_seed(FIRST_SEED + number)
    single = KINDS[kind].plant(family, layer, width, DEPTH)
    report = judged_module(*single)
    found: dict[str, Any] = KINDS[kind].answers(report, layer)
    if found["other"]:
        found["said"] = [str(alarm) for alarm in report.alarms]
    if kind == EPSILON:
        found["divided"] = divided_by_norm(single, layer, run_module)
    return found


def public_cases(_):
    return {("public", kind, number): partial(public_case, kind, number) for kind in KINDS for number in range(RUNS)}


def of_kind(folder, kind):
    cases = {key: case for key, case in public_cases(folder).items() if key[1] == kind}
    return [(*place(kind, number), answer) for (_, _, number), answer in kept_cases(folder, cases).items()]


def right(kind, answer):
    """Whether it is a right answer; of a healthy module silence."""
    return any(answer[by] for by in KINDS[kind].asked) if KINDS[kind].asked else not answer["other"]


def summary(kind, found):
    named = sum(right(kind, answer) for *_, answer in found)
    total = {"list": KINDS[kind].section, "right answer": " or ".join(KINDS[kind].asked) or "none", "runs": len(found),
             "right": named, "95%": interval(named, len(found))}  # fmt: skip
    families = {}
    for name in KINDS[kind].families:
        here = [answer for family, *_, answer in found if family == name]
        families[name] = {"runs": len(here)} | {by: sum(answer[by] for answer in here) for by in ANSWERS}
        if "divided" in here[0]:
            values = [answer["divided"] for answer in here]
            families[name]["variance that its norm divides by"] = [min(values), max(values)]
    if KINDS[kind].asked:
        total |= {f"by {by}": sum(answer[by] for *_, answer in found) for by in ANSWERS}
        total["by family"] = families
    total["with another alarm"] = sum(answer["other"] for *_, answer in found)
    total["not right"] = [
        f"{family}, layer {layer}, d = {width}" for family, layer, width, answer in found if not right(kind, answer)
    ]
    return total


def test_public_kinds(kept_folder):
    pytest.importorskip("transformers")
    kinds = {kind: summary(kind, of_kind(kept_folder, kind)) for kind in KINDS}
    faulty = {kind: of for kind, of in kinds.items() if KINDS[kind].asked}
    totals = {
        "kinds": len(faulty), "runs": sum(of["runs"] for of in faulty.values()),
        "right answers": sum(of["right"] for of in faulty.values()),
        "by alarm": sum(of["by alarm"] for of in faulty.values()),
        "healthy runs": sum(of["runs"] for kind, of in kinds.items() if kind not in faulty),
        "healthy runs with an alarm": sum(of["with another alarm"] for kind, of in kinds.items() if kind not in faulty),
    }  # fmt: skip
    about = {"depth": DEPTH, "widths": list(WIDTHS), "first seed": FIRST_SEED} | totals
    record("probe-public", rounded(about | {"of a kind": kinds}))
    assert totals["healthy runs with an alarm"] == 0


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[pytest.mark.xfail(reason=SHORT[kind], strict=True)] if kind in SHORT else [])
    for kind in KINDS
])  # fmt: skip
def test_a_public_kind_is_answered(kept_folder, kind):
    """Healthy modules stay silent; epsilons are named by an alarm where the norm divides by less than them."""
    pytest.importorskip("transformers")
    found = of_kind(kept_folder, kind)
    if not KINDS[kind].asked:
        assert not any(answer["other"] for *_, answer in found)
        return
    if kind == EPSILON:
        below = [answer for *_, answer in found if answer["divided"] < 1]
        assert len(below) > RUNS / 4
        assert all(answer["alarm"] for answer in below)
    assert sum(right(kind, answer) for *_, answer in found) >= BAR * len(found)
