"""Training without matrices: the law of drawn ones in number, beside a plain loop, and exponents in the width."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from checks.fits import power_law
from checks.stacks.training import last_of, meetings, wide_limits, width_exponents
from checks.statistics import estimate
from gradbounds.actions.training.plan import Plan
from simulate import Cell
from simulate.runs.memory import BatchLimits
from simulate.training.optimizers import Optimizer
from simulate.training.schedule import Schedule, roles
from simulate.training.train import Training, train, train_block, train_task
from tests.helpers.evidence_file import kept_case, record, rounded
from tests.helpers.same_law import FALSE_ALARM, differences, repeated_words
from tests.helpers.twins.training import trained_slowly
from theory import Stack
from theory.first_step.prediction import first_step

pytestmark = pytest.mark.evidence

DRAWS, SEEDS = 20_000, 200
SGD = {"momentum": 0.8, "weight_decay": 0.1}
POLAR = {"name": "polar", "momentum": 0.5, "weight_decay": 0.2}

# d, n, L, steps, batch, optimizer, fields: n below, at and above d, and n k above it. "text" is one window of repeated
# words, "windows" is another at every step.
LAWS = [
    ("post", 8, 3, 2, 3, "same", SGD, {}),
    ("post", 8, 8, 1, 1, "fresh", {}, {}),
    ("post", 8, 12, 1, 2, "same", POLAR, {}),
    ("post", 16, 4, 2, 5, "fresh", SGD, {"output_projection": "random"}),
    ("post", 16, 4, 2, 3, "same", SGD, {"down_gain": 1e-50, "value_gain": 1e-50}),
    ("pre", 8, 3, 2, 4, "fresh", SGD, {"ffn_ratio": 2.0}),
    ("pre", 16, 4, 2, 5, "same", SGD, {"input_correlation": 1.0}),
    ("pre", 16, 16, 1, 2, "fresh", POLAR, {}),
    ("pre", 64, 8, 1, 3, "same", SGD, {}),
    ("peri", 8, 3, 2, 3, "same", SGD, {"ffn": "gated", "activation": "silu"}),
    ("peri", 16, 6, 2, 4, "fresh", SGD, {}),
    ("post", 16, 3, 1, 3, "same", SGD, {"query_key_scale": 1.0, "heads": 2, "mask": "causal"}),
    ("post", 16, 6, 2, 3, "text", SGD, {}),
    ("pre", 8, 4, 1, 4, "text", POLAR, {}),
    ("post", 16, 4, 2, 4, "windows", SGD, {"positions": "learned"}),
]


def schedule_of(stack, steps, batch, rule, rate=0.1):
    shown = {"text": "same", "windows": "fresh"}.get(batch, batch)
    return Schedule.of(
        roles(stack), steps=steps, learning_rate=rate, optimizer=Optimizer(**rule), factors=None, batch=shown
    )


def numbers(stack, schedule, engine, text=None):
    """Recorded numbers of step 1, one in the middle and the last, in float64; each engine has seeds of its own."""
    cell, steps = (
        Cell(stack, engine, dtype="float64", text=text),
        sorted({1, (schedule.steps + 1) // 2, schedule.steps}),
    )
    parts = []
    for block in range(DRAWS // 1000):
        found = train_block(cell, schedule, 1000 * (1 + (engine == "dense")) + block, 1000)
        names = ["loss", "logit_change_sq", "feature_change_sq", "hidden_energy"]
        names += [f"grad_sq_{role}" for role in roles(stack)]
        parts.append(np.concatenate([found[n][:, steps].reshape(1000, -1) for n in names if n in found], 1) ** 0.25)
    return np.concatenate(parts)


def test_laws():
    found = {}
    for placement, d, n, depth, steps, batch, rule, fields in LAWS:
        stack = Stack(placement=placement, width=d, depth=depth, tokens=n, vocab=4, **fields)
        schedule = schedule_of(stack, steps, batch, rule)
        text = repeated_words(stack) if batch in ("text", "windows") else None
        dense, other = (numbers(stack, schedule, engine, text) for engine in ("dense", "conditioned"))
        case = f"{placement}, d = {d}, n = {n}, L = {depth}, {steps} steps, {batch}, {rule.get('name', 'sgd')}"
        found[case + "".join(f", {name} = {value}" for name, value in fields.items())] = differences(dense, other)
    record(
        "training-laws",
        {"draws of each engine": DRAWS, "false alarm per case": FALSE_ALARM, "differences": found},
    )
    assert not any(found.values())


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_a_plain_loop(placement):
    """Ten steps at d = 512: every recorded number of 200 networks of each within 3% or 4 standard errors."""
    stack = Stack(placement=placement, width=512, depth=2, tokens=8, vocab=32)
    schedule = schedule_of(stack, 10, "same", SGD, rate=0.01)
    mine = train(
        stack, steps=10, learning_rate=0.01, draws=SEEDS, seed=1, engine="conditioned", momentum=0.8, weight_decay=0.1
    )
    draws = []
    for seed in range(SEEDS):
        g = torch.Generator().manual_seed(seed)
        weights = {
            role: [torch.randn(512, 512, generator=g) * 512**-0.5 for _ in range(2)] for role in ("WV", "W1", "W2")
        } | {"Wemb": [torch.randn(512, 32, generator=g) * 512**-0.5]}
        batch = torch.randn(8, 512, generator=g), torch.randint(32, (8,), generator=g)
        draws.append(trained_slowly(stack, weights, [batch] * 11, schedule))
    odd, worst = [], 0.0
    for name in draws[0]:
        own = np.stack([one[name].numpy() for one in draws]).astype(float)
        theirs = mine[name].astype(float).reshape(own.shape)
        for index in np.ndindex(own.shape[1:]):
            first, second = estimate(theirs[(slice(None), *index)]), estimate(own[(slice(None), *index)])
            apart, sem = abs(first.mean - second.mean), np.hypot(first.sem, second.sem)
            worst = max(worst, apart / second.mean if second.mean else 0.0)
            if apart > max(0.03 * second.mean, 4 * sem):
                odd.append(f"{name} {index}: {first.mean:.4g} and {second.mean:.4g}, error {sem:.2g}")
    record(f"training-loop-{placement}", {"networks of each": SEEDS, "largest difference": worst, "odd": odd})
    assert not odd


WIDTHS, NETWORKS = [256, 1024, 4096, 16384], 192


def exponents(stacks, rates, theory=None):
    """Of root mean squares after step 1, with their 95% intervals; and of theory's, with the same weights."""
    found = [
        train(stack, steps=1, learning_rate=rate, draws=NETWORKS, seed=3, engine="conditioned")
        for stack, rate in zip(stacks, rates, strict=True)
    ]
    said = {}
    for name, pick in (("logit_change_sq", np.s_[:, 1]), ("feature_change_sq", np.s_[:, 1, -1])):
        each = [estimate(one[name][pick].astype(float)) for one in found]
        law = power_law(WIDTHS, [float(one.mean) for one in each], [float(one.sem) for one in each])
        low, high = law.interval()
        said[name] = {"exponent": law.exponent / 2, "interval": [low / 2, high / 2]}
        if theory is not None and name == "logit_change_sq":
            said[name]["theory"] = float(np.dot(law.weights, np.log(theory))) / 2
    return said


def test_exponents():
    """Rate of the standard parametrization: half of theory's critical one at the greatest width, the same at all."""
    found = {}
    for placement in ("post", "pre"):
        stacks = [Stack(placement=placement, width=d, depth=2, tokens=4, vocab=16) for d in WIDTHS]
        rate = 0.5 * first_step(stacks[-1]).critical_rate
        theory = [first_step(stack).logit_change_sq for stack in stacks]
        found[f"{placement}, standard"] = exponents(stacks, [rate] * len(WIDTHS), theory)
        stacks = [replace(stack, output_scale=stack.width**-0.5) for stack in stacks]
        rates = [dict.fromkeys(roles(stack), 1.0) | {"Wemb": 1.0 / stack.width} for stack in stacks]
        found[f"{placement}, mu-P"] = exponents(stacks, rates)
    record("training-exponents", {"widths": WIDTHS, "networks": NETWORKS, "exponents of rms changes": found})
    for case, said in found.items():
        for name, limit in (("logit_change_sq", 1.0), ("feature_change_sq", 0.5)):
            expected = said[name].get("theory", limit if "standard" in case else 0.0)
            assert abs(said[name]["exponent"] - expected) < 0.03, (case, name)
            assert np.ptp(said[name]["interval"]) < 0.05, (case, name)


GRID = [64, 128, 256, 512]
CHANGING = ["post", "pre", "rezero", "unnormed", "deepnorm", "peri", "scaled", "output", "keel", "residual"]
AT, RATES = [1, 5, 20], {"standard": Plan(steps=20, learning_rate=0.5, in_critical_rates=True),
                         "mu-P": Plan(steps=20, learning_rate=0.5, mup=True)}  # fmt: skip


def changes_of(placement, name):
    """Exponents of the changes at three steps, and limits at d = infinity in mu-P; None where theory has no rate."""
    plan, found = RATES[name], []
    for width in GRID:
        try:
            cell = plan.cell(Stack(placement=placement, width=width, depth=2, tokens=4, vocab=16))
        except ValueError:
            return None
        blocks = [train_task(cell, 5, [k], BatchLimits())[0] for k in range(cell.blocks(64))]
        shape = {True: (-1, 21, 2), False: (-1, 21)}
        arrays = {
            one: np.concatenate([block[one] for block in blocks]).reshape(shape[one == "feature_change_sq"])
            for one in ("loss", "feature_change_sq", "logit_change_sq")
        }
        found.append(Training(cell, cell.trained, 5, arrays))
    rows = width_exponents(found, mup=plan.mup, at=AT)
    rows = rows[["quantity", "step", "exponent", "low", "high", "verdict"]].to_dict("records")
    widest = [float(last_of(found[-1], row["quantity"], row["step"]).mean() ** 0.5) for row in rows]
    columns = ["quantity", "step", "limit", "low", "high", "residual", "fit", "left_out", "verdict"]
    return {
        "exponents": [row | {"at the widest": change} for row, change in zip(rows, widest, strict=True)],
        "limits": wide_limits(found, mup=plan.mup)[columns].to_dict("records"),
    }


def test_which_placements_learn_features(kept_folder):
    """Exponents of changes at a rate of half the critical one, and in mu-P at 0.5; limits at d = infinity there.

    No placement is claimed to be lazy. Asserted is that in mu-P no limit of Post-LN's and Pre-LN's loss and changes is
    one that the widest networks refute.
    """
    found = {
        f"{placement}, {name}": kept_case(kept_folder, f"{placement} {name}", partial(changes_of, placement, name))
        for placement in CHANGING
        for name in RATES
    }
    setting = {"L": 2, "n": 4, "V": 16, "widths": GRID, "networks": 64, "rate": 0.5}
    exponents = {name: one["exponents"] if one else [] for name, one in found.items()}
    limits = {placement: found[f"{placement}, mu-P"]["limits"] for placement in ("post", "pre")}
    record("training-placements", setting | {"exponents of rms changes": rounded(exponents)})
    record("training-limits", setting | {"limits": rounded(limits)})
    assert all(row["verdict"] != "fails" for rows in limits.values() for row in rows)


def meeting_at(depth, rate):
    """Where the gradients of a pair meet, and its losses after the last step."""
    plan = Plan(steps=40, learning_rate=rate, in_critical_rates=True)
    found = []
    for placement in ("post", "pre"):
        stack = Stack(placement=placement, width=256, depth=depth, tokens=4, vocab=16)
        found.append(train(stack, steps=40, learning_rate=plan.rate(stack), draws=64, seed=6, engine="conditioned"))
    (row,) = meetings(found).to_dict("records")
    loss = {one.stack.placement: float(one["loss"][:, -1].mean()) for one in found}
    row |= {name: None for name in ("step", "low", "high") if row[name] == np.inf}
    return {"rate over critical": rate} | row | {"last loss": loss}


def test_where_gradients_meet(kept_folder):
    """The step at which Post-LN's last gradient has fallen to Pre-LN's, an observation: asserted is where it begins."""
    rows = [
        kept_case(kept_folder, f"meeting {depth} {rate}", partial(meeting_at, depth, rate))
        for depth in (6, 12)
        for rate in (0.25, 0.5, 1.0)
    ]
    record("training-meetings", {"d": 256, "n": 4, "V": 16, "networks": 64, "pairs": rounded(rows)})
    assert all(row["first"] > 1 for row in rows)
