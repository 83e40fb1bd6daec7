"""Rates of the steps of a training run: of the run's own batch and dropout, and without a trace in the run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from simulate.modules.factories import seeded
from studies.parallel_text import held_out, read_pairs
from studies.schedules import Schedule
from studies.trained_step import STATISTICS, outputs_at, step_rates
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
        with seeded(step.seed):
            loss = step.made.loss(step.made.module(*step.made.inputs))
        parameters = dict(step.made.module.named_parameters())
        g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(parameters.values()))])
        u = torch.cat([step.direction[name].flatten() for name in parameters])
        gap = u - (g if optimizer == "sgd" else g / (g.abs() + 1e-8))
        seen[step.update] = float(loss.detach()), float(gap.norm() / u.norm())
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
    """At the break-even rate the loss of the batch is its start, and not before; the others are finite differences."""
    rows = []

    def at(step):
        rows.append(step_rates(step))
        exact = replace(step, direction={name: u.double() for name, u in step.direction.items()})
        exact.made.module.double()
        rate, z = rows[0]["break-even rate"], outputs_at(exact, 0.0)
        small = 1e-6 * rate  # below every kink of ReLU
        lower, start, upper = (float(step.made.loss(outputs_at(exact, k * small))) for k in (-1, 0, 1))
        assert float(step.made.loss(outputs_at(exact, rate))) == pytest.approx(start, abs=0.02 * start)
        assert float(step.made.loss(outputs_at(exact, 0.5 * rate))) < start
        gain = (lower - upper) / (2 * small)
        assert rows[0]["gain"] == pytest.approx(gain, rel=1e-3)
        assert rows[0]["hessian rate"] == pytest.approx(2 * gain * small**2 / (lower + upper - 2 * start), rel=1e-2)
        # The Gauss-Newton matrix curves the loss along the linear change of outputs.
        change = (outputs_at(exact, small) - outputs_at(exact, -small)) / 2
        bent = sum(float(step.made.loss(z + k * change)) for k in (-1, 1)) - 2 * start
        assert rows[0]["critical rate"] == pytest.approx(2 * gain * small**2 / bent, rel=1e-2)
        exact.made.module.float()
        return rows[0]

    train(replace(PLAIN, optimizer="sgd", updates=1), *texts, at_step=at)
    assert all(np.isfinite(value) and value > 0 for value in rows[0].values())


def test_a_step_that_does_not_lead_down_has_no_rate(texts):
    def at(step):
        found = step_rates(replace(step, direction={name: -u for name, u in step.direction.items()}))
        assert found["gain"] < 0
        assert np.isnan([found[f"{name} rate"] for name in ("critical", "hessian", "break-even")]).all()
        return found

    train(replace(PLAIN, optimizer="sgd", updates=1), *texts, at_step=at)
