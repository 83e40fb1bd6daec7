"""Reports on one module: how far healthy ones are from the thresholds, and what others and planted faults raise.

Thresholds of checks/models were set after the first test had been looked at. The seeds of the other two are others, and
were chosen before.
"""

import math
from collections import defaultdict
from functools import partial

import pytest
import torch

from checks.models.exact_alarms import values, whole
from checks.models.judge import judged_module
from tests.evidence.test_probe_models import interval
from tests.helpers.evidence_file import kept_cases, record, rounded
from tests.helpers.single_modules import GLOBAL, HEALTHY, LOCAL, planted

pytestmark = pytest.mark.evidence
SET = {"widths": [32, 64], "depths": [3, 6, 12], "seeds": [1000, 1001, 1002, 1003]}
JUDGED = {"widths": [32, 64], "depths": [4, 8], "seeds": [20261126, 20261127, 20261128]}
FAULT_SEED, FAULTY, DEPTH = 52000, 20, 4


def reports(sizes, name, seed):
    for width in sizes["widths"]:
        for depth in sizes["depths"]:
            torch.manual_seed(seed)
            yield depth, judged_module(*HEALTHY[name](width, depth), name=name)


def numbers(report, depth):
    """What thresholds are of, each as far from them as it comes."""
    tests, layers = report.probed.tests, report.layers
    size, classes, known = (whole(tests, what) for what in ("cross_entropy", "classes", "label_entropy"))
    energy = [of["energy"].iloc[-1] / of["energy"].iloc[0] for _, of in layers.groupby("part")]
    gradient = [of["gradient"].iloc[0] / of["gradient"].iloc[-1] for _, of in layers.groupby("part")]
    logits = layers["logits"].dropna()
    found = {
        "loss over ln V": size / math.log(classes),
        "energy growth over L": max(max(one, 1 / one) for one in energy) / depth,
        "gradient growth over root L": max(max(one, 1 / one) for one in gradient) / depth**0.5,
        "norm response": max(values(tests, "norm_response").values()),
        "bias over matrix": max(values(tests, "bias_over_matrix").values(), default=0.0),
        "units": max(0.0, layers["dead"].max(), layers["saturated"].max()),
        "rows that repeat": max(values(tests, "repeated_rows").values(), default=0.0),
    }
    if known > 0:
        found["labels' entropy over loss"] = known / size
    if len(logits):
        middle = logits.median()
        found |= {
            "standard deviation of logits": logits.max(),
            "logits over other layers'": max(logits.max() / middle, middle / logits.min()),
            "sum over keys from 1": max(
                abs(one - 1) for end in ("low", "high") for one in values(tests, f"key_sum_{end}").values()
            ),
        }
    return found


def numbers_case(name, seed):
    return [numbers(report, depth) for depth, report in reports(SET, name, seed)]


def set_cases(_):
    return {("set", name, seed): partial(numbers_case, name, seed) for seed in SET["seeds"] for name in HEALTHY}


def healthy_case(name, seed):
    """The first alarm of every module; "" where there is none."""
    found = reports(JUDGED, name, seed)
    return [f"{name}, depth {depth}: {one.alarms[0]}" if one.alarms else "" for depth, one in found]


def healthy_cases(_):
    return {("one", name, seed): partial(healthy_case, name, seed) for seed in JUDGED["seeds"] for name in HEALTHY}


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


CASES = {"set": set_cases, "healthy": healthy_cases, "faults": fault_cases}


def test_numbers_that_thresholds_were_set_on(kept_folder):
    pytest.importorskip("transformers")
    furthest, modules = defaultdict(dict), 0
    for (_, name, _), rows in kept_cases(kept_folder, set_cases(kept_folder)).items():
        modules += len(rows)
        for what, value in (pair for row in rows for pair in row.items()):
            furthest[what][name] = max(float(value), furthest[what].get(name, 0.0))
    found = {what: {"furthest": max(of.values()), "by family": of} for what, of in furthest.items()}
    record("probe-one-thresholds", SET | {"modules": modules} | rounded(found))


def test_healthy_modules_of_other_seeds_and_depths(kept_folder):
    pytest.importorskip("transformers")
    found = [one for of in kept_cases(kept_folder, healthy_cases(kept_folder)).values() for one in of]
    said = [one for one in found if one]
    record("probe-one-healthy", JUDGED | {"modules": len(found), "with an alarm": len(said), "said": said,
                                          "95% of the rate": interval(len(said), len(found))})  # fmt: skip
    assert len(said) <= 0.05 * len(found)


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
