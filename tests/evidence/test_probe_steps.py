"""Steps judged: exponents of right parametrizations, false alarms on other seeds, and planted breaches.

The margin of checks/models is half of the least that a wrong power makes, and the first test says how far right
networks are from it. The seeds of the other two are others, and were chosen before they ran.
"""

import re
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import stdtrit

import gradbounds as gb
from simulate.modules.coordinates import coordinate_steps
from tests.evidence.test_probe_models import interval
from tests.helpers.evidence_file import DEVICE, kept_cases, record, rounded
from tests.helpers.model_families import VOCAB
from tests.helpers.parametrized_models import BREACHES, FACTORS, HEALTHY, OF_DEPTH, adam, check, transformer
from tests.helpers.single_modules import Decoder, next_word

pytestmark = pytest.mark.evidence
SEEDS, STEPS = 4, 2
SET, SET_RUNS = 1000, 3
JUDGED, RUNS = 20261126, 20
PLANTED, FAULTY = 52000, 20
DENSE = {
    "first seed": 3000, "runs": 16, "seeds of a run": 8, "widths": [64, 128, 256], "dense widths": [256, 512, 1024],
    "of depths": {"depths": [2, 4, 8], "widths": [64], "dense widths": [256]},
}  # fmt: skip
"""A run's seeds at the check's widths, the default of `probe --seeds`, and the same at widths four times as large."""
NEAR, SHORT = 0.1, 0.1
"""How far an exponent may be from the dense sample's, and how long its interval."""


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_exponents_of_right_parametrizations():
    off = {}
    for name, kind in HEALTHY.items():
        tables = [check(*kind, seed=SET + run, seeds=SEEDS, steps=STEPS).table for run in range(SET_RUNS)]
        asked = pd.concat(tables).dropna(subset="off")
        off[name] = asked["off"].abs().groupby(asked["quantity"]).max().to_dict()
    record("probe-steps-exponents", {"first seed": SET, "runs": SET_RUNS, "furthest off": rounded(off)})


def healthy_case(name):
    """Of one kind: its alarms, how many exponents were judged and how many agree, and what it took."""
    begun = time.process_time()
    reports = [check(*HEALTHY[name], seed=JUDGED + run, seeds=SEEDS, steps=STEPS) for run in range(RUNS)]
    words = [report.table["word"] for report in reports]
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


def dense_case(name, run):
    """Judged exponents of one run at both sizes, with half of each interval, by place, weight, quantity and step."""
    sizes = DENSE["of depths"] if HEALTHY[name][2] == "completep" else DENSE
    found = {}
    for k, of in enumerate(("", "dense ")):
        seed = DENSE["first seed"] + 2 * run + k
        table = check(
            *HEALTHY[name], seed=seed, seeds=DENSE["seeds of a run"], steps=STEPS, widths=sizes[f"{of}widths"],
            device=DEVICE,
        ).table.dropna(subset="off")  # fmt: skip
        if name.endswith("CompleteP"):
            table = table[table["against"] == "depth"]
        found[f"{of}exponents"] = {
            f"{row.place} {row.parameter} {row.quantity} {row.step}": [row.exponent, (row.high - row.low) / 2]
            for row in table.itertuples()
        }
    return found


def dense_cases(_):
    cases = {("dense", name, run): partial(dense_case, name, run) for name in HEALTHY for run in range(DENSE["runs"])}
    return cases | {("small steps",): small_steps_case}


def small_steps_case():
    """Exponents of updates of matrices in the standard parametrization at the dense widths, at a rate of 1e-5."""
    stepped = check(
        transformer, partial(adam, rate=1e-5), "sp", seed=DENSE["first seed"], seeds=SEEDS, steps=1,
        widths=DENSE["dense widths"],
    ).table  # fmt: skip
    rows = stepped[(stepped["quantity"] == "own") & stepped["role"].isin(["hidden", "output"])]
    return {f"{row.place} {row.parameter}": row.exponent for row in rows.itertuples()}


def pooled(runs):
    """Exponents with half of their 95% intervals and standard errors, of all seeds of all runs.

    Runs have as many seeds at every size, so that the mean of their exponents is the exponent of all seeds' means.
    """
    seeds = DENSE["seeds of a run"]
    exponents, halves = np.array(runs).transpose(2, 0, 1)
    errors = halves / stdtrit(3 * (seeds - 1), 0.975)
    quantile = stdtrit(3 * (seeds - 1) * len(runs), 0.975)
    pooled_errors = np.sqrt((errors**2).mean(0) / len(runs))
    return exponents.mean(0), quantile * pooled_errors, pooled_errors


def beside_dense(runs):
    """Of one kind, by quantity: how far exponents of all runs and of one are from the dense sample's, and intervals."""
    keys = [key for key in runs[0]["exponents"] if all(key in run[of] for run in runs for of in run)]
    by_run = [[run["exponents"][key] for key in keys] for run in runs]
    (exponents, halves, errors), (dense, dense_halves, dense_errors) = pooled(by_run), pooled(
        [[run["dense exponents"][key] for key in keys] for run in runs]
    )  # fmt: skip
    two_errors = 2 * np.hypot(errors, dense_errors)
    single, single_halves = np.array(by_run).transpose(2, 0, 1)
    found = {}
    for quantity in ("coordinates", "own", "passed"):
        of = np.array([key.split(" ")[-2] == quantity for key in keys])
        if not of.any():
            continue
        away, alone = np.abs(exponents - dense)[of], np.abs(single - dense)[:, of]
        covered = alone <= single_halves[:, of]
        found[quantity] = {
            "exponents": int(of.sum()), "within 0.1": int((away <= NEAR).sum()), "furthest": float(away.max()),
            "intervals of at most 0.1": int((2 * halves[of] <= SHORT).sum()),
            "longest interval": float(2 * halves[of].max()),
            "longest dense interval": float(2 * dense_halves[of].max()),
            "one run: part within 0.1": float((alone <= NEAR).mean()), "one run: furthest": float(alone.max()),
            "one run: median interval": float(np.median(2 * single_halves[:, of])),
            "beyond 0.1 by two errors": int((away - two_errors[of] > NEAR).sum()),
            "one run: intervals with the dense exponent": float(covered.mean()),
            "beyond": {key: {"exponent": float(exponents[k]), "dense": float(dense[k]),
                             "two errors of the difference": float(two_errors[k]),
                             "runs whose interval has the dense one":
                                 int((np.abs(single - dense)[:, k] <= single_halves[:, k]).sum())}
                       for k, key in enumerate(keys) if of[k] and abs(exponents[k] - dense[k]) > NEAR},
        }  # fmt: skip
    return found


def test_exponents_beside_a_dense_sample(kept_folder):
    cases = kept_cases(kept_folder, dense_cases(kept_folder))
    found = {name: beside_dense([cases["dense", name, run] for run in range(DENSE["runs"])]) for name in HEALTHY}
    every = [of for by in found.values() for of in by.values()]
    count, near, short, surely = (
        sum(of[what] for of in every)
        for what in ("exponents", "within 0.1", "intervals of at most 0.1", "beyond 0.1 by two errors")
    )
    alone = sum(of["one run: part within 0.1"] * of["exponents"] for of in every) / count
    record("probe-steps-dense", DENSE | {
        "device": DEVICE, "exponents": count, "within 0.1": near, "intervals of at most 0.1": short,
        "beyond 0.1 by two errors": surely, "one run: part within 0.1": round(alone, 4), "kinds": rounded(found),
        "standard steps at a rate of 1e-5, dense widths": rounded(cases["small steps",]),
    })  # fmt: skip
    missed = [
        f"{name}, {quantity}: {of['within 0.1']} of {of['exponents']} within 0.1, "
        f"{of['intervals of at most 0.1']} intervals of at most 0.1"
        for name, by in found.items() for quantity, of in by.items()
        if min(of["within 0.1"], of["intervals of at most 0.1"]) < of["exponents"]
    ]  # fmt: skip
    # Local powers, where a bend is beyond its error, mend nothing. With these 128 seeds, beside 16 to 24 at the dense
    # widths, 11 fits were beyond 0.1; 19 powers of the two largest sizes; 15 of a quadratic at the largest; and 15 of
    # one that is drawn on to the dense sizes, where 16 intervals are longer than 0.1. What bends in the depth does so
    # at every width, and standard steps bend at larger widths only. Sums of two known powers follow (`farther`).
    if missed:
        pytest.xfail("; ".join(missed))


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


CASES = {"healthy": healthy_cases, "dense": dense_cases, "planted": planted_cases}


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
