"""The study runs by its command at the smallest size."""

import pytest

from studies.__main__ import run

# curvlinops' functional calls and forward-mode derivatives warn of torch's own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_smoke(tmp_path, capsys):
    """One setting, the trace and the derivation: H3 is not contradicted."""
    line = "mean_hessian --settings 1 --draws 256 --traces 64 --check --out".split()
    assert run([*line, str(tmp_path)]) == 0
    assert "H3, " in capsys.readouterr().out
