"""Rates of the steps of a training run: of the run's own batch and dropout, and without a trace in the run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from simulate.curvature.module_step import ParameterLine
from studies.parallel_text import held_out, read_pairs
from studies.schedules import Schedule
from studies.trained_step import STATISTICS, step_rates
from studies.trainer import train
from studies.training_run import Training
from studies.translation_model import Translation

MODEL = Translation(width=16, depth=1, heads=2, ffn_width=24, vocab=40, dropout=0.3)
PLAIN = Training(translation=MODEL, schedule=Schedule(peak=1e-2, warmup=2), updates=4, batch_tokens=60, every=2)


@pytest.fixture(scope="module")
def texts(parallel_files):
    return held_out(read_pairs(*parallel_files, vocab=40), 5, seed=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_step_is_the_one_that_was_taken(texts, optimizer):
    """Its loss is the update's, SGD's direction is the gradient, and Adam's first one is g/(|g| + ε)."""
    training, seen = replace(PLAIN, optimizer=optimizer), {}

    def at(step):
        path = ParameterLine(step.made, step.seed - 1)
        u, g = (torch.cat([one.flatten() for one in some.values()]) for some in (step.direction, path.gradient))
        gap = u - (g if optimizer == "sgd" else g / (g.abs() + 1e-8))
        seen[step.update] = path.loss, float(gap.norm() / u.norm())
        return step_rates(step)

    found = train(training, *texts, at_step=at)
    assert list(seen) == [1, 2, 4]
    assert [loss for loss, _ in seen.values()] == pytest.approx([found.losses[u - 1] for u in seen], rel=1e-5)
    # What θ loses to rounding is of 1e-7 of it; gradients that are of rounding alone differ from pass to pass.
    assert seen[1][1] < 5e-3
    assert seen[4][1] < 1e-3 if optimizer == "sgd" else seen[4][1] > 0.1  # which has moments
    table = found.table()
    assert set(table.loc[table["update"] == 1, "statistic"]) == set(STATISTICS)
    without = train(training, *texts)
    assert found.losses == without.losses
    assert table[~table["statistic"].isin(STATISTICS)].reset_index(drop=True).equals(without.table())


def test_rates_bring_the_loss_back(texts):
    """At the break-even rate the loss of the batch is its start, and not before; the gain is the slope of the loss."""
    rows = []

    def at(step):
        path, found = ParameterLine(step.made, step.seed - 1), step_rates(step)
        rows.append(found)
        assert path.at(step.direction, found["break-even rate"]) == pytest.approx(path.loss, abs=0.02 * path.loss)
        assert path.at(step.direction, 0.5 * found["break-even rate"]) < path.loss
        # Of a central difference over a thousandth of it.
        small = 1e-3 * found["break-even rate"]
        slope = (path.at(step.direction, -small) - path.at(step.direction, small)) / (2 * small)
        assert slope == pytest.approx(found["gain"], rel=0.02)
        return found

    train(replace(PLAIN, optimizer="sgd", updates=1), *texts, at_step=at)
    assert all(np.isfinite(value) and value > 0 for value in rows[0].values())


def test_a_step_that_does_not_lead_down_has_no_rate(texts):
    def at(step):
        found = step_rates(replace(step, direction={name: -u for name, u in step.direction.items()}))
        assert found["gain"] < 0
        assert np.isnan([found[f"{name} rate"] for name in ("critical", "hessian", "break-even")]).all()
        return found

    train(replace(PLAIN, optimizer="sgd", updates=1), *texts, at_step=at)
