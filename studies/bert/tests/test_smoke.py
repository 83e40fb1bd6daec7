"""The study runs by its command at the smallest size."""

from studies.__main__ import run
from studies.bert.tests.test_reproduce import DESIGN, command


def test_smoke(parallel_files, blank_pictures, tmp_path, capsys):
    """Two models that learn for four updates, with and without warm-up."""
    design = tmp_path / "design.toml"
    design.write_text(DESIGN, encoding="utf-8")
    run(command(parallel_files[1], tmp_path / "run", design, "--check"))
    assert "Committed verdicts" in capsys.readouterr().out
