"""Runs that somebody else is writing: watched, judged and drawn."""

import os

import numpy as np
import pytest
from rich.console import Console

from gradbounds.actions.watch import state, view, watch
from gradbounds.cli import main
from simulate import Cell, Run
from simulate.runs import cell
from simulate.runs.cost import block_work
from simulate.runs.sweep import sample_into
from tests.helpers.interruption import BLOCKS, landed, start, wait_for_a_file
from theory import Stack

STACKS = [Stack(width=d, depth=1, tokens=2, vocab=4) for d in (8, 16, 32)]


@pytest.fixture
def cells(monkeypatch):
    monkeypatch.setattr(cell, "MOST_DRAWS", 16)
    return [Cell(stack) for stack in STACKS]


def begun(tmp_path, cells, draws, **more):
    """A run of which 128 draws of each cell are asked for and some have landed, all of them 10 s after its start."""
    about = {
        "request": {"command": "sweep", "seed": 0}, "draws": 128,
        "sessions": [{"started": "2026-01-01T00:00:00+00:00"}],
    }  # fmt: skip
    run = Run.create(tmp_path / "run", about | more)
    sample_into(cells, draws=draws, seed=0, run=run)
    for file in run.files():
        os.utime(file, (1767225610, 1767225610))
    return run


def test_the_state_of_a_run(tmp_path, cells):
    run = begun(tmp_path, cells, {c.name: draws for c, draws in zip(cells, (128, 32, 16), strict=True)})
    now = state(run, cells)
    np.testing.assert_array_equal(now.draws, [128, 32, 16])
    np.testing.assert_array_equal(now.wanted, [128, 128, 128])
    assert not now.done
    costs = np.array([cell_cost(c) for c in cells])
    assert now.seconds_left == pytest.approx(10 * (costs @ [0, 96, 112]) / (costs @ [128, 32, 16]))
    values = {s.cell.name: s["grad_sq_W2"][:, -1].astype(float) for s in run.samples()}
    for k, one in enumerate(cells):
        found = values[one.name]
        assert now.means[k] == pytest.approx(found.mean())
        assert now.variances[k] == pytest.approx(found.var(ddof=1) / found.mean() ** 2)
    sample_into(cells, draws=128, seed=0, run=run)
    assert state(run, cells).done


def test_a_dead_sweep_is_called_stopped(tmp_path, cells):
    """Where nothing has landed for long: while somebody holds the folder it is at work, and else not."""
    run = begun(tmp_path, cells, 64)
    with run.hold():
        assert not state(run, cells).stopped
    now = state(run, cells)
    assert now.stopped
    console = Console(width=200)
    with console.capture() as said:
        console.print(view(now))
    assert "stopped: the command that began it continues it" in said.get()
    assert " left" not in said.get()


def cell_cost(one):
    return block_work(one).cost / one.draws_per_block


def test_nothing_has_landed(tmp_path, cells):
    run = Run.create(tmp_path / "run", begun(tmp_path / "other", cells, 16).manifest)
    now = state(run, cells)
    assert (now.draws == 0).all()
    assert now.seconds_left is None
    assert not now.done


def test_a_run_to_a_precision(tmp_path, cells):
    """What is wanted is what the variances so far ask for, and it is done when the errors are that small."""
    run = begun(tmp_path, cells, 128, target={"sem": 0.02, "max_draws": 2**16})
    now = state(run, cells)
    expected = np.array([now.variances[k] / 4 / 0.02**2 for k in range(3)])
    assert (now.wanted >= np.maximum(expected, 128)).all()
    assert (now.wanted <= np.maximum(1.06 * expected + 16, 128)).all()
    assert len(now.missed) == (expected > 128).sum() > 0
    sample_into(cells, draws={c.name: int(n) for c, n in zip(cells, 2 * now.wanted, strict=True)}, seed=0, run=run)
    assert state(run, cells).done


def test_commands_on_a_run_that_is_being_written(blank_pictures, tmp_path, capsys):
    """`check`, `figures` and `watch` give what there is so far, and the sweep goes on."""
    out = tmp_path / "run"
    process = start(out)
    wait_for_a_file(out, process)
    before = landed(out)
    assert main(["runs", "watch", str(out)]) == 0
    said = capsys.readouterr().out
    assert " of 10 cells, " in said
    assert " left, last landed " in said
    assert main(["check", str(out)]) == 0
    assert main(["figures", str(out), "--out", str(tmp_path / "figures")]) == 0
    assert (tmp_path / "figures" / "gradient_over_layers.png").exists()
    assert before < BLOCKS
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    capsys.readouterr()
    assert main(["runs", "watch", str(out)]) == 0
    assert "10 of 10 cells, 100% of 7680 draws, finished" in capsys.readouterr().out


def test_cells_with_one_draw_are_left_out(blank_pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cell, "MOST_DRAWS", 1)
    line = ["sweep", "--width", "8", "16", "--depth", "1", "--placement", "post", "--draws"]
    assert main([*line, "1", "--out", str(tmp_path / "run")]) == 0
    for command in (["check"], ["figures", "--out", str(tmp_path / "figures")]):
        assert main([command[0], str(tmp_path / "run"), *command[1:]]) == 2
        assert "run must have cells of at least 2 draws, to give errors" in capsys.readouterr().err
    cells = [Cell(Stack(width=width, depth=1, placement="post")) for width in (8, 16)]
    sample_into(cells[:1], draws=2, seed=0, run=Run.open(tmp_path / "run"))
    assert main(["check", str(tmp_path / "run")]) == 0
    assert "left out: 1 of 2 cells, which have one draw so far" in capsys.readouterr().out


def test_bad_input(tmp_path, capsys):
    assert main(["runs", "watch", str(tmp_path)]) == 2
    assert "run must be a folder that `gradbounds sweep` wrote" in capsys.readouterr().err
    Run.create(tmp_path / "merged", {"request": {"command": "merge"}})
    assert main(["runs", "watch", str(tmp_path / "merged")]) == 2
    assert "run must be one of `gradbounds sweep`" in capsys.readouterr().err
    with pytest.raises(ValueError, match="^every must be a positive number of seconds, got 0"):
        watch(tmp_path, every=0)


def test_the_error_shown_is_that_of_the_norm(tmp_path, cells, capsys):
    """In percent, beside the root mean square: half of the relative error of the mean square."""
    run = begun(tmp_path, cells[:1], 64)
    console = Console(width=200)
    console.print(view(state(run, cells[:1])))
    (samples,) = run.samples()
    squares = samples["grad_sq_W2"][:, -1].astype(float)
    percent = 100 * squares.std(ddof=1) / 8 / squares.mean() / 2
    assert f"{squares.mean() ** 0.5:.4g} ± {percent:.2g}%" in capsys.readouterr().out
