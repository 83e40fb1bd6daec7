"""Run folders: what lands, what is read back, what is refused."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from simulate import Cell, Run, read_windows, sample, sweep
from simulate.store import Block
from theory import QUANTITIES, Stack

REQUEST = {"request": {"draws": 70, "seed": 3}}


@pytest.fixture
def cells(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("the cat sat on the mat and the dog sat on the cat " * 3)
    stack = Stack(width=16, depth=3, tokens=4, vocab=6)
    return [Cell(Stack(width=8, depth=2)), Cell(stack), Cell(stack, text=read_windows(path, tokens=4, vocab=6))]


def table(run):
    rows = [pq.read_table(file) for file in sorted((run.folder / "blocks").glob("*.parquet"))]
    frames = [t.to_pandas() for t in rows]
    joined = np.concatenate([f[["cell", "draw"]].to_records(index=False) for f in frames])
    return joined, {s.cell.name: s for s in run.samples()}


def test_what_is_read_back_is_what_sample_gives(tmp_path, cells):
    run = Run.create(tmp_path / "run", REQUEST)
    sweep(cells, draws=70, seed=3, run=run)
    found = {s.cell.name: s for s in Run.open(tmp_path / "run").samples()}
    assert set(found) == {cell.name for cell in cells}
    for cell in cells:
        stored = found[cell.name]
        assert stored.draws == 128, "70 draws in blocks of 64"
        assert stored.cell.key == cell.key
        assert stored.seed == 3
        direct = sample(cell.stack, draws=128, seed=3, text=cell.text)
        for name in QUANTITIES:
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
    sweep(cells, draws=1, seed=3, run=run)
    stored = {s.stack: s.cell.text.ids for s in run.samples()}
    for cell in cells:
        np.testing.assert_array_equal(stored[cell.stack], cell.text.ids)


def test_workers_and_order_change_nothing(tmp_path, cells):
    one, two = (Run.create(tmp_path / name, REQUEST) for name in ("one", "two"))
    sweep(cells, draws=70, seed=3, run=one)
    sweep(cells[::-1], draws=70, seed=3, run=two, workers=2)
    for a, b in zip(one.samples(), two.samples(), strict=True):
        assert a.cell.key == b.cell.key
        for name in QUANTITIES:
            np.testing.assert_array_equal(a[name], b[name])


def test_landed_blocks_are_not_computed_again(tmp_path, cells):
    run = Run.create(tmp_path / "run", REQUEST)
    calls = []
    sweep(cells[:1], draws=64, seed=3, run=run)
    sweep(cells, draws=70, seed=3, run=run, on_block=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 5) for i in range(1, 6)], "six blocks in all, one of them landed"
    sweep(cells, draws=70, seed=3, run=run, on_block=lambda done, total: calls.append(None))
    assert None not in calls
    joined, _ = table(run)
    assert np.unique(joined).size == joined.size


def test_an_interrupted_sweep_keeps_what_it_had(tmp_path, cells):
    run = Run.create(tmp_path / "run", REQUEST)

    def stop_at_three(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(cells, draws=70, seed=3, run=run, on_block=stop_at_three)
    assert len(run.landed()) == 3
    sweep(cells, draws=70, seed=3, run=run)
    assert len(run.landed()) == 6
    assert not list(run.folder.rglob("*.tmp"))


def test_a_folder_of_another_run_is_refused(tmp_path):
    Run.create(tmp_path / "run", REQUEST)
    assert Run.create(tmp_path / "run", REQUEST).manifest["request"] == REQUEST["request"]
    with pytest.raises(ValueError, match="^out must be a new folder or one of the same command, but .* another run"):
        Run.create(tmp_path / "run", {"request": {"draws": 71, "seed": 3}})
    replaced = Run.create(tmp_path / "run", {"request": {"draws": 71, "seed": 3}}, replace=True)
    assert Run.open(replaced.folder).manifest["request"]["draws"] == 71


def test_replacing_a_run_removes_its_draws_only(tmp_path, cells):
    run = Run.create(tmp_path / "run", REQUEST)
    sweep(cells, draws=1, seed=3, run=run)
    (run.folder / "notes.txt").write_text("mine")
    again = Run.create(tmp_path / "run", REQUEST, replace=True)
    assert again.landed() == set()
    assert (run.folder / "notes.txt").read_text() == "mine"


def test_folders_that_are_no_run(tmp_path):
    with pytest.raises(ValueError, match="^run must be a folder that `gradbounds sweep` wrote"):
        Run.open(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="^out must be a new or empty folder"):
        Run.create(tmp_path / "full", REQUEST)
    with pytest.raises(ValueError, match="^out must be a new or empty folder"):
        Run.create(tmp_path / "full" / "thesis.tex", REQUEST)
    with pytest.raises(ValueError, match="^out must be a place that can be written"):
        Run.create("/proc/nowhere/run", REQUEST)
    run = Run.create(tmp_path / "empty", REQUEST)
    with pytest.raises(ValueError, match="^run must hold draws, but .* has none"):
        run.samples()
    (tmp_path / "empty" / "manifest.toml").write_text("format = 1\n")
    with pytest.raises(ValueError, match="^out must be a new folder or one of the same command"):
        Run.create(tmp_path / "empty", REQUEST)
    (tmp_path / "empty" / "manifest.toml").write_text("format = 99\n")
    with pytest.raises(ValueError, match="^run must have format 1, but .* has 99"):
        Run.open(tmp_path / "empty")


def test_a_damaged_file_is_named(tmp_path, cells):
    run = Run.create(tmp_path / "run", REQUEST)
    sweep(cells[:1], draws=1, seed=3, run=run)
    (file,) = (run.folder / "blocks").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged file"):
        run.samples()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"draws": 0}, "^draws"), ({"seed": -1}, "^seed"), ({"workers": 0}, "^workers"), ({"cells": []}, "^cells")],
)
def test_bad_arguments(tmp_path, cells, arguments, message):
    run = Run.create(tmp_path / "run", REQUEST)
    with pytest.raises(ValueError, match=message):
        sweep(**({"cells": cells, "draws": 1, "seed": 0, "run": run} | arguments))


def test_an_empty_file_is_never_written(tmp_path):
    run = Run.create(tmp_path / "run", REQUEST)
    run.append([])
    assert not list(run.folder.rglob("*.parquet"))
    cell = Cell(Stack(width=8, depth=1))
    values = {name: array for name, array in sample(cell.stack, draws=64, seed=0).items() if name != "head_norm"}
    run.append([Block(cell, 0, 0, values)])
    assert "head_norm" not in run.samples()[0], "a quantity that an engine does not give stays absent"
