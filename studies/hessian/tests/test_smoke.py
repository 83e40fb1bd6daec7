"""The study runs by its command at the smallest size."""

import pytest

from studies.__main__ import run

# curvlinops' functional calls and forward-mode derivatives warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_smoke(blank_pictures, tmp_path, capsys):
    """Stacks of one size beside theory; what left the study is said."""
    line = "hessian stack --width 8 --depth 1 --tokens 2 --vocab 4 --seeds 2 --steps 2 --probes 1 --check --out".split()
    run([*line, str(tmp_path)])
    assert "Committed verdicts" in capsys.readouterr().out
