"""`python -m studies warmup`: a grid of tiny models, stopped and continued, and what is said of bad input."""

import json
import pickle
from functools import partial

import pandas as pd
import pytest

from simulate.runs.execution import Execution, InProcess
from studies.__main__ import run as main
from studies.parallel_text import read_pairs
from studies.table_cache import read_frame
from studies.trainer import train
from studies.translation_model import parameter_count
from studies.warmup import runs as kept
from studies.warmup.grid import read_grid
from studies.warmup.outcomes import measured_row
from studies.warmup.reproduce import grid_named
from studies.warmup.runs import run_all
from tests.helpers.parallel_text import write

GRID = """
updates = 4
batch_tokens = 60
every = 2
rate_seeds = 1
start = 2
[model]
width = 8
depth = 1
heads = 2
ffn_width = 8
vocab = 40
[text]
units = "words"
validation_pairs = 10
seed = 0
[paper]
adam = [[0.01, 0.02]]
fixed = [0.005]
sgd = [0.1]
[[runs]]
optimizer = ["adam"]
warmup = [1, 2]
peak = [0.01]
reading = ["b"]
seeds = 2
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("text"), count=60)


def command(files, out, grid, *more):
    texts = ["--source", str(files[0]), "--target", str(files[1])]
    return ["warmup", *texts, "--out", str(out), "--preset", str(grid), *more]


@pytest.fixture
def grid(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(GRID, encoding="utf-8")
    return file


def test_the_grid_of_the_small_preset():
    """168 runs as the paper's experiments need them, and six at a fixed rate."""
    found = grid_named("small")
    count = {}
    for run in found.runs:
        kind = run.described()["optimizer"], run.reading
        count[kind] = count.get(kind, 0) + 1
    assert count == {
        ("adam", "a"): 48, ("adam", "b"): 48, ("adam", "both"): 24, ("adam", "fixed"): 6, ("radam", "b"): 12,
        ("radam", "both"): 12, ("sgd", "b"): 12, ("sgd", "both"): 12,
    }  # fmt: skip
    assert [run.training.seed for run in found.runs if run.rates] == [0] * 58
    assert [run.training.seed for run in found.runs] == [0] * 58 + [1] * 58 + [2] * 58
    by_reading = {run.reading: run.training.schedule for run in found.runs if run.training.schedule.warmup in (1, 144)}
    rates = {name: [s.rate(t) / s.peak for t in (1, 144, 576)] for name, s in by_reading.items()}
    assert rates["a"] == pytest.approx([1, 1 / 12, 1 / 24])
    assert rates["b"] == pytest.approx([1, 1, 1 / 2])
    assert rates["both"] == pytest.approx([1 / 144, 1, 1 / 2])
    assert rates["fixed"] == [1, 1, 1]


def test_the_grid_of_the_paper_s_sizes():
    found = grid_named("paper")
    assert len(found.runs) == 3 * (20 + 8 + 4 + 1)
    assert parameter_count(found.translation) == pytest.approx(41.8e6, rel=0.01)
    assert {run.training.schedule.peak for run in found.runs} == {1e-4, 5e-4, 1e-3, 5e-3}


def test_the_grid_of_a_prefix():
    """Seven arms of three seeds at the paper's sizes, no rate of which decays."""
    found = grid_named("prefix")
    assert found.prefix
    assert found.translation == grid_named("paper").translation
    arms = {(d["placement"], d["warmup"], d["peak"]) for d in (run.described() for run in found.runs)}
    assert arms == {
        ("post", 1, 1e-3), ("post", 500, 1e-3), ("post", 4000, 1e-3), ("pre", 1, 1e-3), ("pre", 4000, 1e-3),
        ("post", 1, 5e-4), ("post", 500, 5e-4),
    }  # fmt: skip
    assert [run.training.seed for run in found.runs] == [0] * 7 + [1] * 7 + [2] * 7
    assert {run.training.schedule.rate(1000) / run.training.schedule.peak for run in found.runs} == {1.0, 0.25}


def test_a_run_that_is_cut_off_leaves_its_record(files, tmp_path, monkeypatch):
    """The table up to the update that was measured last, which makes a row; a finished run leaves none."""
    grid = read_grid(GRID)
    texts = grid.texts(read_pairs(*files, vocab=40))

    def killed(update, *_):
        if update == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(kept, "train", partial(train, on_update=killed))
        kept.one_run(grid.runs[0], texts, tmp_path, "cpu")
    record = tmp_path / "records" / f"{kept.name_of(grid.runs[0], texts)}.parquet"
    row = measured_row(read_frame(record), 4.0, grid.start)
    assert row["updates"] == [0, 2]
    whole = kept.one_run(grid.runs[0], texts, tmp_path, "cpu")
    assert measured_row(whole, 4.0, grid.start)["validation"][:2] == row["validation"]
    assert not record.exists()


def test_a_prefix_is_judged_by_failures_alone(blank_pictures, files, grid, tmp_path, capsys):
    grid.write_text("prefix = true\n" + GRID, encoding="utf-8")
    assert main(command(files, tmp_path / "run", grid)) == 0
    said = capsys.readouterr().out
    assert "post T = 1, 0.01: undecided before update 4 (seed 0 open, seed 1 open)" in said
    assert "W1" not in said


def test_runs_are_kept_judged_and_never_run_again(blank_pictures, files, grid, tmp_path, capsys, monkeypatch):
    """One seed is in the folder before, the other is trained; and from the rows of all nothing is."""
    out, trained = tmp_path / "run", []
    runs = read_grid(GRID)
    texts = runs.texts(read_pairs(*files, vocab=40))
    run_all(runs.runs[:4], texts, out, execution=Execution(), device="cpu", on_run=lambda _: None)
    monkeypatch.setattr(kept, "train", lambda t, *some, **more: trained.append(t.seed) or train(t, *some, **more))
    assert main(command(files, out, grid)) == 0
    said = capsys.readouterr()
    assert trained == [1] * 4
    assert "training: 8 of 8" in said.err
    assert "adam      post            1 b          0.01" in said.out
    assert "W1   Post-LN, Adam: no warm-up worse than long warm-up, reading (b): " in said.out
    rows = json.loads((out / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["seed"] for row in rows] == [0] * 4 + [1] * 4
    assert set(rows[0]["layers"]) == {"0", "2", "4"}
    assert rows[0]["steps"] == [1, 2, 4]
    assert rows[4]["steps"] == []  # of the second seed no rates are measured
    assert not list((out / "checkpoints").iterdir())
    assert {file.stem for file in out.iterdir()} >= {"losses", "losses_least", "ends", "gradients", "rates"}
    main(command(files, tmp_path / "other", grid, "--known", str(out / "rows.json")))
    assert capsys.readouterr().out.replace("/other/", "/run/") == said.out
    assert len(trained) == 4


class Elsewhere(InProcess):
    """Calls as a process would have them: from what is pickled."""

    def submit(self, fn, /, *args):
        return super().submit(*pickle.loads(pickle.dumps((fn, *args))))


def test_other_processes_give_the_same_tables(files, tmp_path):
    grid = read_grid(GRID)
    texts = grid.texts(read_pairs(*files, vocab=40))
    executions = Execution(), Execution(workers=2, pool=Elsewhere())
    seen, tables = [], []
    for place, execution in enumerate(executions):
        own = {"execution": execution, "device": "cpu", "on_run": seen.append}
        tables.append(run_all(grid.runs[:2], texts, tmp_path / str(place), **own))
    assert sorted(seen) == [0, 0, 1, 1]
    for first, second in zip(*tables, strict=True):
        pd.testing.assert_frame_equal(first, second)


def test_bad_input(files, grid, tmp_path, capsys):
    """One line each, exit code 2, and no folder."""
    unequal = tmp_path / "short"
    unequal.write_text("one line\n", encoding="utf-8")
    large = tmp_path / "large.toml"
    large.write_text(GRID.replace("vocab = 40", "vocab = 4000"), encoding="utf-8")
    out = tmp_path / "run"
    other = command((files[0], unequal), out, grid)
    missing = command((files[0], tmp_path / "none"), out, grid)
    cases = [
        (missing, "target must be"),
        (other, "source and target must have equally many lines"),
        (command(files, out, large), "vocab must be from 5 to 50"),
        (command(files, out, "smal"), "preset must be paper or prefix or small, or a TOML file, got 'smal'."),
        (command(files, out, grid, "--known", str(files[0])), "known must be a file of rows"),
        (command(files, out, grid, "--workers", "0"), "workers must be an integer of at least 1, got 0."),
        (command(files, out, grid, "--seeds", "0"), "seeds must be an integer of at least 1, got 0."),
        (command(files, out, grid, "--device", "tpu"), "device must be"),
    ]
    for arguments, said in cases:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not out.exists()
