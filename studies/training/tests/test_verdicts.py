"""Verdicts on training: exponents in the width, limits of wide networks, and where gradients meet."""

from dataclasses import replace

import numpy as np
import pytest

from studies.training.optimizers import Optimizer
from studies.training.schedule import Schedule, roles
from studies.training.train import Training, training_cell
from studies.training.verdicts import meetings, wide_limits, width_exponents
from theory import Stack
from theory.first_step.prediction import first_step

WIDTHS = [64, 256, 1024, 4096]
DRAWS = 400


def made(stack, rate=0.1, optimizer="sgd", *, seed=0, **curves):
    """Draws whose means over networks are given by step, (steps + 1,), with an error of half a percent; no network."""
    steps = len(next(iter(curves.values()))) - 1
    schedule = Schedule.of(
        roles(stack), steps=steps, learning_rate=rate, optimizer=Optimizer(name=optimizer), factors=None, batch="same"
    )
    rng = np.random.default_rng([seed, stack.width])
    arrays = {}
    for name, mean in curves.items():
        scatter = rng.normal(1.0, 0.1, (DRAWS, 1))
        values = np.asarray(mean) * scatter
        arrays[name] = values if name in ("loss", "logit_change_sq") else values[:, :, None]
    return Training(training_cell(stack, schedule, engine="conditioned"), schedule, 0, arrays)


def grid(logits, features, **fields):
    """Networks of every width, with squared changes after two steps that are given as functions of the width."""
    stacks = [Stack(placement="post", width=d, depth=1, tokens=2, vocab=4, **fields) for d in WIDTHS]
    return [
        made(s, logit_change_sq=[0.0, logits(s), logits(s)], feature_change_sq=[0.0, features(s), features(s)])
        for s in stacks
    ]


def words(found, *, mup):
    rows = width_exponents(found, mup=mup)
    return {(row.quantity, row.step): (row.source, row.verdict) for row in rows.itertuples()}


def test_exponents():
    """What theory and the limits say holds; logits that stay where they should grow fail. False alarm 1e-4 each."""
    right = grid(lambda s: 0.01 * first_step(s).logit_change_sq, lambda s: s.width * 1e-5)
    found = words(right, mup=False)
    assert found["logit_change_sq", 1] == ("theory", "holds")
    assert found["feature_change_sq", 1] == found["feature_change_sq", 2] == ("limit", "holds")
    lazy = words(grid(lambda s: 1e-3, lambda s: 1e-5), mup=False)
    assert {word for _, word in lazy.values()} == {"fails"}
    assert {said for said in words(grid(lambda s: 1e-3, lambda s: 1e-5), mup=True).values()} == {("limit", "holds")}
    slow = grid(lambda s: 1e-3, lambda s: s.width**-0.2)
    assert words(slow, mup=True)["feature_change_sq", 1] == ("limit", "fails")


def test_rates_count():
    """At rates like 1/d features move by less and less; nothing is claimed of features under polar factors."""
    stacks = [Stack(placement="pre", width=d, depth=1, tokens=2, vocab=4) for d in WIDTHS]
    found = [made(s, 1 / s.width, feature_change_sq=[0.0, 0.1 / s.width]) for s in stacks]
    (row,) = width_exponents(found, mup=False).itertuples()
    assert (row.expected, row.verdict) == (pytest.approx(-0.5), "holds")
    found = [made(s, 0.1, "polar", feature_change_sq=[0.0, 0.1]) for s in stacks]
    (row,) = width_exponents(found, mup=False).itertuples()
    assert row.verdict == ""
    assert not len(width_exponents(found[:2], mup=False))


def test_limits():
    """A line in 1/d gives the limit and what the others say of the widest; a curve like d^(-1/4) is refuted."""
    found = grid(lambda s: 0.04 * (1 + 200 / s.width), lambda s: s.width**-0.5)
    rows = wide_limits(found, mup=True).set_index(["quantity", "step"])
    said = rows.loc["logit_change_sq", 1]
    assert said["low"] < 0.2 < said["high"]
    assert said["slope"] == pytest.approx(200, rel=0.1)
    assert (said["verdict"], abs(said["left_out"]) < 4) == ("holds", True)
    wrong = rows.loc["feature_change_sq", 2]
    assert (wrong["verdict"], wrong["fit"] < 1e-4) == ("fails", True)
    assert not len(wide_limits(found, mup=False))


def test_meetings():
    """The first step at which Post-LN's gradient is no larger, with an interval; none within the steps is infinite."""
    stack = Stack(placement="post", width=64, depth=1, tokens=2, vocab=4)
    pre = made(replace(stack, placement="pre"), grad_sq_W2=[1.0, 1.0, 1.0, 1.0])
    (row,) = meetings([made(stack, grad_sq_W2=[4.0, 2.0, 0.5, 3.0], seed=1), pre]).itertuples()
    assert (row.step, row.low, row.high, row.steps) == (2, 2, 2, 3)
    assert row.first == pytest.approx(2, rel=0.05)
    (row,) = meetings([made(stack, grad_sq_W2=[4.0, 2.0, 1.0, 0.5], seed=1), pre]).itertuples()
    assert (row.low, row.high) == (2, 3)
    (row,) = meetings([made(stack, grad_sq_W2=[4.0, 4.0, 4.0, 4.0], seed=1), pre]).itertuples()
    assert row.step == np.inf
    assert not len(meetings([pre]))
