"""The command on run folders, which lists them and looks into one, and the files that other programs read."""

import pandas as pd
import pytest

import gradbounds
from gradbounds.cli import main
from simulate import Run


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
    assert "... and 30 more cells" in said
    assert f"(gradbounds {gradbounds.__version__}, " in said


def test_pandas_reads_the_draws_of_a_run(tmp_path):
    """Three lines of the docs in place of a command that exported them."""
    assert main(["sweep", "--width", "8", "--depth", "1", "2", "--out", str(tmp_path / "run")]) == 0
    table = pd.read_parquet(tmp_path / "run" / "blocks")
    assert len(table) == 2 * 2 * 64
    first = table["grad_sq_W2"].str[0].groupby(table["cell"]).mean()
    for s in Run.open(tmp_path / "run").samples():
        assert first[s.cell.name] == pytest.approx(s["grad_sq_W2"][:, 0].astype(float).mean())
