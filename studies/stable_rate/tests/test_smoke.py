"""The study runs by its command at the smallest size."""

import pytest

from studies.__main__ import run

# curvlinops' functional calls and forward-mode derivatives warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_smoke(blank_pictures, tmp_path, capsys):
    """Two networks of two depths, and what the committed ones say of statistics."""
    line = "stable_rate --placement post --width 8 --depth 1 2 --networks 2 --steps 3 --out".split()
    assert run([*line, str(tmp_path)]) == 0
    assert run(["stable_rate", "--committed", "--out", str(tmp_path)]) == 0
    assert "2/λ" in capsys.readouterr().out
