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
from checks.models.coordinate_exponents import exponent_excess, exponent_lead, wider_by
from simulate.modules.coordinates import coordinate_steps
from tests.evidence.test_probe_models import interval
from tests.helpers.evidence_file import DEVICE, kept_cases, record, rounded
from tests.helpers.model_families import VOCAB
from tests.helpers.parametrized_models import BREACHES, FACTORS, HEALTHY, OF_DEPTH, adam, check, sgd, transformer
from tests.helpers.single_modules import Decoder, next_word

pytestmark = pytest.mark.evidence
SEEDS, STEPS = 4, 2
SET, SET_RUNS = 1000, 3
JUDGED, RUNS = 20261126, 20
PLANTED, FAULTY = 52000, 20
# A run's seeds at the check's widths, the default of `probe --seeds`, and the same at widths four times as large.
DENSE = {
    "first seed": 4000, "runs": 16, "seeds of a run": 8, "widths": [64, 128, 256], "dense widths": [256, 512, 1024],
    "of depths": {"depths": [2, 4, 8], "widths": [64], "dense widths": [256]},
}  # fmt: skip
# How far an exponent may be from the dense sample's, and how long its interval.
NEAR, SHORT = 0.1, 0.1


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


def test_exponents_of_right_parametrizations():
    off = {}
    for name, kind in HEALTHY.items():
        tables = [check(*kind, seed=SET + run, seeds=SEEDS, steps=STEPS).steps for run in range(SET_RUNS)]
        asked = pd.concat(tables).dropna(subset="off")
        off[name] = asked["off"].abs().groupby(asked["quantity"]).max().to_dict()
    record("probe-steps-exponents", {"first seed": SET, "runs": SET_RUNS, "furthest off": rounded(off)})


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


def dense_case(name, run):
    """Judged exponents of one run at both sizes, with half of each interval and what is asked, by what they are of."""
    sizes = DENSE["of depths"] if HEALTHY[name][2] == "completep" else DENSE
    found = {}
    for k, of in enumerate(("", "dense ")):
        seed = DENSE["first seed"] + 2 * run + k
        table = check(
            *HEALTHY[name], seed=seed, seeds=DENSE["seeds of a run"], steps=STEPS, widths=sizes[f"{of}widths"],
            device=DEVICE,
        ).steps.dropna(subset="off")  # fmt: skip
        if name.endswith("CompleteP"):
            table = table[table["against"] == "depth"]
        found[f"{of}exponents"] = {
            f"{row.place} {row.parameter} {row.quantity} {row.step}": [
                row.exponent,
                (row.high - row.low) / 2,
                row.asked_low,
                row.asked_high,
            ]
            for row in table.itertuples()
        }
    return found


def dense_cases(_):
    return {("dense", name, run): partial(dense_case, name, run) for name in HEALTHY for run in range(DENSE["runs"])}


def pooled(runs):
    """Exponents of all seeds of all runs, half of their 95% intervals, and standard errors.

    Runs have as many seeds at every size, so that the mean of their exponents is the exponent of all seeds' means.
    """
    seeds = DENSE["seeds of a run"]
    exponents, halves = np.array(runs)[..., :2].transpose(2, 0, 1)
    errors = halves / stdtrit(3 * (seeds - 1), 0.975)
    quantile = stdtrit(3 * (seeds - 1) * len(runs), 0.975)
    pooled_errors = np.sqrt((errors**2).mean(0) / len(runs))
    return exponents.mean(0), quantile * pooled_errors, pooled_errors


def beside_dense(runs):
    """Of one kind, by quantity: how far what is said of sizes four times as large is from them, of all runs and of one.

    Powers are what `ahead` makes of exponents.
    """
    keys = [key for key in runs[0]["exponents"] if all(key in run[of] for run in runs for of in run)]
    by_run = np.array([[run["exponents"][key] for key in keys] for run in runs])
    asked = by_run[0, :, 2:]
    exponents, halves, errors = pooled(by_run)
    dense, dense_halves, dense_errors = pooled([[run["dense exponents"][key] for key in keys] for run in runs])
    wider, wider_alone = (wider_by(3 * (DENSE["seeds of a run"] - 1) * count) for count in (len(runs), 1))
    powers, power_halves = np.transpose(
        [exponent_lead(*of, wider) for of in zip(exponents, halves, asked, strict=True)]
    )
    single, single_halves = np.transpose(
        [[exponent_lead(*of[:2], of[2:], wider_alone) for of in run] for run in by_run], (2, 0, 1)
    )  # fmt: skip
    two_errors = 2 * np.hypot(errors * power_halves / halves, dense_errors)
    # The same sum of every power that is inside its range, whether its interval leaves out the lower end or not.
    every = np.array([
        exponent_excess(exponent, of) if of[0] < exponent < of[1] else exponent
        for exponent, of in zip(exponents, asked, strict=True)
    ])  # fmt: skip
    found = {}
    for quantity in ("coordinates", "own", "passed"):
        of = np.array([key.split(" ")[-2] == quantity for key in keys])
        if not of.any():
            continue
        away, alone = np.abs(powers - dense)[of], np.abs(single - dense)[:, of]
        covered = alone <= single_halves[:, of]
        found[quantity] = {
            "exponents": int(of.sum()), "asked to be in a range": int((asked[of, 0] < asked[of, 1]).sum()),
            "seen as sums": int((powers != exponents)[of].sum()),
            "within 0.1": int((away <= NEAR).sum()), "furthest": float(away.max()),
            "within 0.1 as they are": int((np.abs(exponents - dense)[of] <= NEAR).sum()),
            "within 0.1, all in a range as sums": int((np.abs(every - dense)[of] <= NEAR).sum()),
            "made worse by 0.01 or more": int((away - np.abs(exponents - dense)[of] >= 0.01).sum()),
            "intervals of at most 0.1": int((2 * power_halves[of] <= SHORT).sum()),
            "longest interval": float(2 * power_halves[of].max()),
            "longest dense interval": float(2 * dense_halves[of].max()),
            "one run: part within 0.1": float((alone <= NEAR).mean()), "one run: furthest": float(alone.max()),
            "one run: part within 0.1 as they are":
                float((np.abs(by_run[..., 0] - dense)[:, of] <= NEAR).mean()),
            "one run: median interval": float(np.median(2 * single_halves[:, of])),
            "beyond 0.1 by two errors": int((away - two_errors[of] > NEAR).sum()),
            "one run: intervals with the dense exponent": float(covered.mean()),
            "beyond": [key for key, far in zip(np.array(keys)[of], away, strict=True) if far > NEAR],
        }  # fmt: skip
    columns = np.column_stack([exponents, halves, asked, powers, power_halves, dense, dense_halves])
    return found, {key: [round(float(number), 4) for number in row] for key, row in zip(keys, columns, strict=True)}


SUMMED = (
    "exponents", "asked to be in a range", "seen as sums", "within 0.1", "within 0.1 as they are",
    "within 0.1, all in a range as sums", "made worse by 0.01 or more", "intervals of at most 0.1",
    "beyond 0.1 by two errors",
)  # fmt: skip


def test_exponents_beside_a_dense_sample(kept_folder):
    cases = kept_cases(kept_folder, dense_cases(kept_folder))
    found, powers = {}, {}
    for name in HEALTHY:
        found[name], powers[name] = beside_dense([cases["dense", name, run] for run in range(DENSE["runs"])])
    every = [of for by in found.values() for of in by.values()]
    sums = {what: sum(of[what] for of in every) for what in SUMMED}
    shares = {
        what: round(sum(of[what] * of["exponents"] for of in every) / sums["exponents"], 4)
        for what in ("one run: part within 0.1", "one run: part within 0.1 as they are")
    }  # fmt: skip
    record("probe-steps-dense", DENSE | {"device": DEVICE} | sums | shares | {
        "kinds": rounded(found),
        "columns": ["exponent", "half of its interval", "asked from", "to", "said of four times the size",
                    "half of that interval", "dense exponent", "half of its interval"],
        "powers": powers,
    }, short=True)  # fmt: skip
    missed = [
        f"{name}, {quantity}: {of['within 0.1']} of {of['exponents']} within 0.1, "
        f"{of['intervals of at most 0.1']} intervals of at most 0.1"
        for name, by in found.items() for quantity, of in by.items()
        if min(of["within 0.1"], of["intervals of at most 0.1"]) < of["exponents"]
    ]  # fmt: skip
    # The rule of `ahead` was set on seeds from 3000: with both ends to be left out by the 95% interval, 442 powers and
    # 440 intervals kept to these bars; at LEVEL, as all other words, and at the lower end alone, where errors are
    # stretched, 442 and 442. These seeds were run once, after that.
    assert not missed, "; ".join(missed)


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


CASES = {"healthy": healthy_cases, "narrow": narrow_cases, "dense": dense_cases, "planted": planted_cases}


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
