"""Reports on one module with a planted fault, on seeds that the thresholds of checks/models were not set on."""

from functools import partial

import pytest
import torch

from checks.models.judge import judged_module
from tests.evidence.test_probe_models import interval
from tests.helpers.evidence_file import kept_cases, record
from tests.helpers.single_modules import GLOBAL, LOCAL, planted

pytestmark = pytest.mark.evidence
FAULT_SEED, FAULTY, DEPTH = 52000, 20, 4


def fault_case(fault, run):
    """Whether it is named, whether something else is, and where it was planted."""
    kind, families, _ = (LOCAL | GLOBAL)[fault]
    family, number, width = families[run % len(families)], 1 + run % DEPTH, (32, 64)[run // DEPTH % 2]
    torch.manual_seed(FAULT_SEED + run)
    alarms = judged_module(*planted(family, fault, number, width, DEPTH)).alarms
    right = [one for one in alarms if kind in str(one) and (fault in GLOBAL or one.layer == number)]
    return bool(right), len(alarms) > len(right), f"{family}, layer {number}, d = {width}"


def fault_cases(_):
    return {
        ("of one", fault, run): partial(fault_case, fault, run) for fault in LOCAL | GLOBAL for run in range(FAULTY)
    }


def test_planted_faults_of_one_module(kept_folder):
    pytest.importorskip("transformers")
    found, power = kept_cases(kept_folder, fault_cases(kept_folder)), {}
    for fault in LOCAL | GLOBAL:
        of = [found["of one", fault, run] for run in range(FAULTY)]
        named = sum(one for one, _, _ in of)
        power[fault] = {"runs": FAULTY, "named": named, "95%": interval(named, FAULTY),
                        "with another alarm": sum(other for _, other, _ in of),
                        "missed": [where for one, _, where in of if not one]}  # fmt: skip
    record("probe-one-faults", {"depth": DEPTH, "first seed": FAULT_SEED, "power": power})
    assert all(of["named"] >= 0.9 * FAULTY for of in power.values())
