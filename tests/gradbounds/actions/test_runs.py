"""The commands on run folders: list, look into, merge, export."""

import numpy as np
import pandas as pd
import pytest

import gradbounds
from gradbounds.cli import main
from simulate import Run
from theory import QUANTITIES


def test_merged_runs(tmp_path, capsys):
    """Two seeds of one grid, and a part of the same run twice."""
    arguments = ["sweep", "--width", "8", "--depth", "1", "2", "--draws"]
    for name, draws, seed in (("a", 64, 0), ("b", 128, 0), ("c", 64, 1)):
        assert main([*arguments, str(draws), "--seed", str(seed), "--out", str(tmp_path / name)]) == 0
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert main(["runs", "merge", a, b, "--out", str(tmp_path / "ab")]) == 0
    whole = {s.cell.name: s for s in Run.open(b).samples()}
    for s in Run.open(tmp_path / "ab").samples():
        np.testing.assert_array_equal(s["loss"], whole[s.cell.name]["loss"])
    assert main([*arguments, "192", "--out", str(tmp_path / "ab")]) == 0, "one request: its command continues it"
    assert {s.draws for s in Run.open(tmp_path / "ab").samples()} == {192}
    for _ in range(2):
        assert main(["runs", "merge", b, c, "--out", str(tmp_path / "bc")]) == 0, "the same merge again changes nothing"
        pooled = Run.open(tmp_path / "bc").samples()
        assert {s.draws for s in pooled} == {192}
        assert all(sorted(set(s.seeds.tolist())) == [0, 1] for s in pooled)
    assert main([*arguments, "192", "--out", str(tmp_path / "bc")]) == 2
    assert "holds another run" in capsys.readouterr().err


def test_runs_lists_and_inspects(tmp_path, capsys):
    for name, vocab in (("one", "9"), ("two", "10:39:+1")):
        sizes = ["--width", "8", "--depth", "1", "--vocab", vocab, "--draws", "1"]
        assert main(["sweep", *sizes, "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert main(["runs", str(tmp_path)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in listed[1:]] == [
        ["one", "sweep", "0", "2", "1"],
        ["two", "sweep", "0", "60", "1"],
    ]
    assert main(["runs", str(tmp_path / "two")]) == 0
    said = capsys.readouterr().out
    assert "all cells: width 8, depth 1, engine " in said, "what is as by default is not said"
    assert "... and 30 cells more" in said
    assert f"(gradbounds {gradbounds.__version__}, " in said


def test_exported_draws(tmp_path, capsys):
    assert main(["sweep", "--width", "8", "--depth", "1", "2", "--out", str(tmp_path / "run")]) == 0
    assert main(["runs", "export", str(tmp_path / "run"), "--csv", str(tmp_path / "draws.csv")]) == 0
    table = pd.read_csv(tmp_path / "draws.csv")
    assert len(table) == 2 * 64 * (2 + 3)
    assert {name for name, q in QUANTITIES.items() if q.in_paper} <= set(table.columns)
    samples = Run.open(tmp_path / "run").samples()
    mean = table[table["layer"] == 1].groupby("cell")["grad_sq_W2"].mean()
    for s in samples:
        assert mean[s.cell.name] == pytest.approx(s["grad_sq_W2"][:, 0].astype(float).mean())


def test_export_leaves_no_half_file(tmp_path, monkeypatch, capsys):
    assert main(["sweep", "--width", "8", "--depth", "1", "--out", str(tmp_path / "run")]) == 0
    (tmp_path / "draws.csv").write_text("what was there")
    broken = iter([*Run.open(tmp_path / "run").frames()])

    def frames(self):
        yield next(broken)
        raise ValueError("run must hold whole Parquet files")

    monkeypatch.setattr(Run, "frames", frames)
    assert main(["runs", "export", str(tmp_path / "run"), "--csv", str(tmp_path / "draws.csv")]) == 2
    assert (tmp_path / "draws.csv").read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draws.csv", "run"]
