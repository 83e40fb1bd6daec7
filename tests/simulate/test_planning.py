"""What a sweep is said to take."""

import numpy as np
import pytest

from gradbounds.actions import sweep as sampling
from gradbounds.recipe import Recipe
from gradbounds.units import duration
from simulate import Cell
from simulate.runs import planning
from simulate.runs.execution import Execution
from simulate.runs.memory import BatchLimits
from simulate.runs.planning import Plan, plan
from theory import Stack


def test_every_worker_takes_memory_and_shares_the_time(monkeypatch):
    """With one rate for every step: no calibration."""
    monkeypatch.setattr(planning, "_rates", lambda *_: np.array([1.0, 0.0, 0.0, 0.0]))
    cells = [Cell(Stack(width=16, depth=depth)) for depth in (1, 3)]
    one, four = (plan(cells, draws=128, workers=workers, limits=BatchLimits(at_once=1)) for workers in (1, 4))
    assert one.seconds == pytest.approx(2 * (1 + 1) + 2 * (3 + 1)), "two blocks of 64 draws each, and a step more"
    assert four.seconds == pytest.approx(one.seconds / 4)
    assert four.memory == pytest.approx(4 * one.memory)
    assert (four.draws, four.blocks) == (one.draws, one.blocks) == (256, 4)


def test_a_dry_run_names_its_units(monkeypatch):
    known = Plan(cells=1, blocks=2, draws=128, seconds=90.0, memory=3 * 2**30, disk=5 * 2**20)
    monkeypatch.setattr(sampling, "plan", lambda *_, **__: known)
    recipe = Recipe(grid=({"width": [8], "depth": [1], "placement": "post"},))
    said = str(sampling.dry_run(None, recipe, Execution(workers=2)))
    for line in ("time    about 1.5 min with 2 workers", "memory  about 3.0 GiB", "disk    about 5.0 MiB"):
        assert line in said


def test_a_calibration_ends_soon_on_a_slow_machine(monkeypatch):
    """Nothing is repeated once the time is over: a clock on which every look takes a second."""
    ticks, timed = iter(range(10_000)), []
    monkeypatch.setattr(planning.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(planning, "sample_block", lambda cell, *_: timed.append(cell))
    plan([Cell(Stack(width=16))], draws=64, workers=1, limits=BatchLimits(at_once=1))
    assert len(timed) == len(planning._PROBES)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3 * 86400, "72.0 h"), (30 * 86400, "30 days"), (5e4 * 3600, "5.7 years"), (1e60, "1e+09 years")],
)
def test_long_times_are_in_units_that_suit(seconds, said):
    assert duration(seconds).startswith(said)


def test_some_of_many_cells_stand_for_all(monkeypatch):
    """The total within 25%: 100 of 300 cells, whose steps are uniform, have a standard error of 5%."""
    monkeypatch.setattr(planning, "_rates", lambda *_: np.array([1.0, 0.0, 0.0, 0.0]))
    monkeypatch.setattr(planning, "_MOST_CELLS", 100)
    cells = [Cell(Stack(width=width, depth=depth)) for width in range(2, 12) for depth in range(1, 31)]
    some = plan(cells, draws=64, workers=1, limits=BatchLimits(at_once=1))
    monkeypatch.setattr(planning, "_MOST_CELLS", len(cells))
    every = plan(cells, draws=64, workers=1, limits=BatchLimits(at_once=1))
    assert some.seconds == pytest.approx(every.seconds, rel=0.25)
    assert some.seconds != every.seconds
    assert some.memory == pytest.approx(every.memory, rel=0.1)
    assert (some.draws, some.blocks) == (every.draws, every.blocks)
