"""`pytest --gradbounds-run RUN`: a good run passes, a planted error fails, what cannot be told is skipped."""

import pytest

from checks.verdict import Verdict
from gradbounds import run_suite
from gradbounds.cli import main
from simulate.network import transformer as network

SWEEP = "sweep --width 192 --depth 1 --tokens 2 --vocab 16 --draws 64 --seed 3".split()
FLAGS = ["-q", "-rA", "-p", "no:cacheprovider", "--gradbounds-run"]


def suite_here(run, capsys):
    """The suite about a run in this process, which has imported everything: exit code, output, errors."""
    code = pytest.main([*FLAGS, str(run), "--rootdir", str(run.parent), "-c", "/dev/null"])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three widths, of which the narrow ones serve the exponent."""
    out = tmp_path_factory.mktemp("suite") / "run"
    arguments = "sweep --width 64:256:x2 --depth 1 --tokens 2 --vocab 64 --draws 2048 --out".split()
    assert main([*arguments, str(out)]) == 0
    return out


def test_a_good_run_passes(run, capsys):
    code, said, _ = suite_here(run, capsys)
    assert code == 0, said
    assert "PASSED" in said
    assert "test_exponent_is_the_predicted_one[T1: Post-LN, exponent in d (V = 64, L = 1, n = 2)]" in said
    assert "test_means_are_the_predicted_ones[pre-d256-L1-" in said
    assert "test_verdict_is_the_committed_one[L1: all layers]" in said
    assert "SKIPPED" in said, "d = 64 is too narrow for its means to be judged, and that is said"
    assert "failed" not in said


def test_a_planted_error_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(network, "gain", lambda stack, role: 2.0)
    assert main([*SWEEP, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    code, said, _ = suite_here(tmp_path / "run", capsys)
    assert code == 1, said
    assert "FAILED" in said
    assert "ffn_hidden_energy" in said


@pytest.mark.quick
def test_a_folder_that_is_no_run(tmp_path, capsys):
    code, _, error = suite_here(tmp_path / "nothing", capsys)
    assert code == 4
    assert "ERROR: --gradbounds-run: run must be a folder that `gradbounds sweep` wrote" in error
    assert "Traceback" not in error


def test_an_exponent_passes_only_where_it_agrees():
    about = {
        "claim": "T1", "subject": "exponent in d", "verdict": "undecided", "claimed": "", "predicted": 0.5,
        "measured": 0.6, "interval": (0.5, 0.7), "setting": "",
    }  # fmt: skip
    found = {}
    for word in ("agrees", "differs", "undecided", "beyond"):
        try:
            found[word] = run_suite.test_exponent_is_the_predicted_one(Verdict(agreement=word, **about))
        except (AssertionError, pytest.skip.Exception) as said:  # a skip would skip this test too
            found[word] = type(said)
    assert found == {
        "agrees": None, "differs": AssertionError, "undecided": pytest.skip.Exception, "beyond": pytest.skip.Exception,
    }  # fmt: skip
