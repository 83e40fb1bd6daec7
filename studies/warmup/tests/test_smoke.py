"""The study runs by its command at the smallest size."""

from studies.__main__ import run
from studies.warmup.tests.test_reproduce import GRID, command


def test_smoke(parallel_files, blank_pictures, tmp_path, capsys):
    """Two models that learn for four updates, with and without warm-up."""
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    run(command(parallel_files, tmp_path / "run", grid, "--check"))
    assert "Committed verdicts" in capsys.readouterr().out
