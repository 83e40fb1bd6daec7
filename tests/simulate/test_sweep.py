"""Sweeps: what lands is what `sample` gives, whatever the workers, the order and the interruptions."""

import signal
import sys

import numpy as np
import pytest

from simulate import Cell, Run, read_windows, sample
from simulate.runs.execution import Execution, InProcess
from simulate.runs.sweep import sample_into
from theory import Stack

REQUEST = {"request": {"draws": 70, "seed": 3}}


def test_what_is_read_back_is_what_sample_gives(tmp_path, cells):
    sample_into([*cells, cells[0]], draws=70, seed=3, run=Run.create(tmp_path / "run", REQUEST))
    found = {s.cell.name: s for s in Run.open(tmp_path / "run").samples()}
    assert set(found) == {cell.name for cell in cells}
    for cell in cells:
        stored = found[cell.name]
        assert stored.draws == 128, "70 draws in blocks of 64"
        assert stored.cell.key == cell.key
        assert (stored.seeds == 3).all()
        direct = sample(cell.stack, draws=128, seed=3, text=cell.text)
        for name in direct:
            np.testing.assert_array_equal(stored[name], direct[name], err_msg=name)
        if cell.text is not None:
            np.testing.assert_array_equal(stored.cell.text.ids, cell.text.ids)


def test_one_text_under_several_stacks(tmp_path):
    """Tokens and vocabulary decide a text's windows: every Stack keeps its own."""
    path = tmp_path / "words.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat " * 3)
    stacks = [Stack(width=8, depth=1, tokens=n, vocab=v) for n in (2, 4) for v in (3, 6)]
    cells = [Cell(s, text=read_windows(path, tokens=s.tokens, vocab=s.vocab)) for s in stacks]
    run = Run.create(tmp_path / "run", REQUEST)
    sample_into(cells, draws=1, seed=3, run=run)
    stored = {s.stack: s.cell.text.ids for s in run.samples()}
    for cell in cells:
        np.testing.assert_array_equal(stored[cell.stack], cell.text.ids)


def test_workers_and_order_change_nothing(tmp_path, cells):
    one, two = (Run.create(tmp_path / name, REQUEST) for name in ("one", "two"))
    sample_into(cells, draws=70, seed=3, run=one)
    sample_into(cells[::-1], draws=70, seed=3, run=two, execution=Execution(workers=2, task_seconds=0.01, at_once=2))
    for a, b in zip(one.samples(), two.samples(), strict=True):
        assert a.cell.key == b.cell.key
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_waits_for_a_file_that_is_being_written(tmp_path, cells, monkeypatch):
    run, append = Run.create(tmp_path / "run", REQUEST), Run.append

    def interrupted(self, blocks):
        signal.raise_signal(signal.SIGINT)
        append(self, blocks)

    monkeypatch.setattr(Run, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample_into(cells, draws=70, seed=3, run=run, execution=Execution(land_every=0.0))
    assert len(run.landed()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "^draws"),
        ({"seed": -1}, "^seed"),
        ({"cells": []}, "^cells"),
        ({"execution": {"workers": 2}}, "^execution must be an Execution, such as"),
    ],
)
def test_bad_arguments(tmp_path, cells, arguments, message):
    run = Run.create(tmp_path / "run", REQUEST)
    with pytest.raises(ValueError, match=message):
        sample_into(**({"cells": cells, "draws": 1, "seed": 0, "run": run} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "^workers must be an integer of at least 1, got 0"),
        ({"at_once": -1}, "^at_once must be an integer of at least 0, got -1"),
        ({"land_every": -1.0}, "^land_every must be a number of seconds of at least 0, got -1.0"),
        ({"land_every": float("nan")}, "^land_every"),
        ({"task_seconds": float("inf")}, "^task_seconds must be a number of seconds of at least 0, got inf"),
    ],
)
def test_bad_executions(arguments, message):
    with pytest.raises(ValueError, match=message):
        Execution(**arguments)


def test_what_a_sweep_reports(tmp_path, cells):
    run, seen = Run.create(tmp_path / "run", REQUEST), []
    sample_into(cells, draws=70, seed=3, run=run, on_block=seen.append)
    assert [now.blocks for now in seen] == [(k, 6) for k in range(1, 7)]
    assert [now.cells for now in seen] == [(k // 2, 3) for k in range(1, 7)]
    assert [now.draws for now in seen] == [64 * k for k in range(1, 7)]
    shares = [now.share for now in seen]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_files_follow_the_clock(tmp_path, cells):
    every, late = (Run.create(tmp_path / name, REQUEST) for name in ("every", "late"))
    sample_into(cells, draws=200, seed=3, run=every, execution=Execution(land_every=0.0))
    sample_into(cells, draws=200, seed=3, run=late, execution=Execution(land_every=1e6))
    assert len(list((every.folder / "blocks").iterdir())) > 3
    assert len(list((late.folder / "blocks").iterdir())) == 1
    assert every.landed() == late.landed()


def test_files_hold_so_many_blocks(tmp_path, cells, monkeypatch):
    """What waits for the disk is bounded, whatever the clock says."""
    monkeypatch.setattr(sys.modules["simulate.runs.sweep"], "_FILE_BLOCKS", 4)
    run = Run.create(tmp_path / "run", REQUEST)
    sample_into(cells, draws=200, seed=3, run=run, execution=Execution(land_every=1e6))
    assert [len(rows.group_by(["cell", "block"]).aggregate([])) for rows in run.tables()] == [4, 4, 4]


def test_an_error_in_a_block_lands_the_others(tmp_path, cells, monkeypatch):
    run, submit = Run.create(tmp_path / "run", REQUEST), InProcess.submit

    def fails_at_the_fourth(self, fn, cell, seed, blocks, *rest):
        if (cell.name, *blocks) == (cells[1].name, 1):
            return submit(self, lambda: 1 / 0)
        return submit(self, fn, cell, seed, blocks, *rest)

    monkeypatch.setattr(InProcess, "submit", fails_at_the_fourth)
    with pytest.raises(ZeroDivisionError):
        sample_into(cells, draws=70, seed=3, run=run, execution=Execution(at_once=1))
    assert len(run.landed()) == 3
