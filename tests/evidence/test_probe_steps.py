"""Steps judged: false alarms on right parametrizations, and planted breaches.

The margin of checks/models is half of the least that a wrong power makes. The seeds were chosen before they ran.
"""

import re
import time
from functools import partial

import pytest
import torch

import gradbounds as gb
from simulate.modules.coordinates import coordinate_steps
from tests.evidence.test_probe_models import interval
from tests.helpers.evidence_file import kept_cases, record, rounded
from tests.helpers.model_families import VOCAB
from tests.helpers.parametrized_models import BREACHES, FACTORS, HEALTHY, OF_DEPTH, adam, check, sgd, transformer
from tests.helpers.single_modules import Decoder, next_word

pytestmark = pytest.mark.evidence
SEEDS, STEPS = 4, 2
JUDGED, RUNS = 20261126, 20
PLANTED, FAULTY = 52000, 20


NARROW_SEEDS = 8
NARROW = {
    "Transformer, Adam, mu-P": (transformer, adam, "mup", (8, 16, 32)),
    "Transformer, Adam, standard": (transformer, adam, "sp", (8, 16, 32)),
    "Transformer, SGD, mu-P": (transformer, sgd, "mup", (32, 64, 128)),
    "Transformer, SGD, mu-P, narrow": (transformer, sgd, "mup", (16, 32, 64)),
}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def healthy_case(name):
    """Of one kind: its alarms, how many exponents were judged and how many agree, and what it took."""
    begun = time.process_time()
    reports = [check(*HEALTHY[name], seed=JUDGED + run, seeds=SEEDS, steps=STEPS) for run in range(RUNS)]
    words = [report.steps["word"] for report in reports]
    return {
        "alarms": [f"{name}: {report.alarms[0]}" for report in reports if report.alarms],
        "judged": sum(int(of.isin(["agrees", "undecided", "breach"]).sum()) for of in words),
        "agree": sum(int((of == "agrees").sum()) for of in words),
        "seconds": time.process_time() - begun,
    }


def healthy_cases(_):
    return {("healthy", name): partial(healthy_case, name) for name in HEALTHY}


def test_right_parametrizations_of_other_seeds(kept_folder):
    found = kept_cases(kept_folder, healthy_cases(kept_folder)).values()
    alarms, runs = [alarm for case in found for alarm in case["alarms"]], RUNS * len(HEALTHY)
    judged, agree, seconds = (sum(case[what] for case in found) for what in ("judged", "agree", "seconds"))
    record("probe-steps-healthy", {
        "first seed": JUDGED, "seeds of a run": SEEDS, "steps": STEPS, "runs": runs, "with an alarm": len(alarms),
        "95% of the rate": interval(len(alarms), runs), "runs of a kind": RUNS, "kinds": list(HEALTHY),
        "alarms": alarms, "exponents judged": judged, "of these agree": agree, "CPU minutes": round(seconds / 60, 1),
    })  # fmt: skip
    assert len(alarms) <= 0.05 * runs


def narrow_case(name):
    """Alarms of right ones of which 32 vectors outnumber the width, or, by SGD in mu-P, attention is at the start."""
    *kind, widths = NARROW[name]
    reports = [
        check(*kind, seed=JUDGED + run, seeds=NARROW_SEEDS, steps=STEPS, widths=list(widths)) for run in range(RUNS)
    ]
    return {"alarms": [f"{name}: {report.alarms[0]}" for report in reports if report.alarms]}


def narrow_cases(_):
    return {("narrow", name): partial(narrow_case, name) for name in NARROW}


def test_right_parametrizations_at_narrow_widths(kept_folder):
    alarms = [alarm for case in kept_cases(kept_folder, narrow_cases(kept_folder)).values() for alarm in case["alarms"]]
    runs = RUNS * len(NARROW)
    record("probe-steps-narrow", {
        "first seed": JUDGED, "seeds of a run": NARROW_SEEDS, "steps": STEPS, "runs": runs, "runs of a kind": RUNS,
        "widths": {name: list(widths) for name, (*_, widths) in NARROW.items()}, "with an alarm": len(alarms),
        "95% of the rate": interval(len(alarms), runs), "alarms": alarms,
    })  # fmt: skip
    assert len(alarms) <= 0.05 * runs


def planted_case(breach):
    """How many runs of one breach have an alarm of its kind that has its weight among the names."""
    kind, name = (BREACHES | OF_DEPTH)[breach]
    rule = "completep" if breach in OF_DEPTH else "mup"
    named, alone, missed, factors = 0, 0, [], []
    for run in range(FAULTY):
        alarms = check(transformer, adam, rule, breach, seed=PLANTED + run, seeds=SEEDS, steps=STEPS).alarms
        right = [alarm for alarm in alarms if alarm.kind == kind and (name in alarm.part or "in all" in alarm.part)]
        named += bool(right)
        alone += len(alarms) == len(right) == 1
        factors += [float(times[1]) for one in right[:1] if (times := re.search(r"it is ([\d.]+) times too", one.what))]
        missed += [] if right else [f"seed {PLANTED + run}: {[str(alarm) for alarm in alarms[:2]]}"]
    return {
        "runs": FAULTY,
        "named": named,
        "95%": interval(named, FAULTY),
        "as the only alarm": alone,
        "missed": missed,
        "factors that mend": sorted(set(factors)),
        "factor planted": FACTORS.get(breach),
    }


def planted_cases(_):
    return {(name,): partial(planted_case, name) for name in BREACHES | OF_DEPTH}


def test_planted_breaches(kept_folder):
    power = {name: of for (name,), of in kept_cases(kept_folder, planted_cases(kept_folder)).items()}
    record("probe-steps-breaches", {"first seed": PLANTED, "seeds of a run": SEEDS, "steps": STEPS, "power": power})
    assert all(of["named"] >= 0.9 * FAULTY for of in power.values())
    for of in power.values():
        planted = of["factor planted"]
        assert all(abs(factor / planted - 1) <= 0.1 for factor in of["factors that mend"] if planted)
        assert planted is None or of["factors that mend"]


def test_seconds():
    """Steps beside the same steps without measuring, and a report on one module of 30 million parameters."""
    seconds = {}
    # What is imported at the first step is no part of the cost.
    coordinate_steps(transformer, adam, widths=[8], depths=[1], steps=1, seeds=1)
    for width in (128, 512):
        begun = time.process_time()
        coordinate_steps(transformer, adam, widths=[width], depths=[4], steps=STEPS, seeds=1)
        measured = time.process_time() - begun
        torch.manual_seed(0)
        module, batch = transformer(width, 4)
        inputs, loss = batch(0)
        optimizer = adam(module, width)
        begun = time.process_time()
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(module(inputs)).backward()
            optimizer.step()
        seconds[f"width {width}: measured over not"] = measured / (time.process_time() - begun)
    torch.manual_seed(0)
    module, words = Decoder(512, 10, attends=True), torch.randint(VOCAB, (2, 64))
    begun = time.process_time()
    gb.probe(module, words, loss=next_word(words))
    seconds["CPU seconds of a report"] = time.process_time() - begun
    millions = sum(weight.numel() for weight in module.parameters()) / 1e6
    record("probe-steps-costs", rounded(seconds | {"million parameters": millions, "tokens": words.numel()}))
    assert seconds["CPU seconds of a report"] < 20
