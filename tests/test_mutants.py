"""The list of mutants fits the files, and its runner tells a mutant that is caught from one that survives."""

import json
import subprocess
from dataclasses import replace

import pytest

from tests import mutants
from tests.mutants import Mutant, Verdict, fail_without_mutant, judged, read_mutants, rotten, verdicts

MUTANT = Mutant(name="half", file="half.py", old="x / 2", new="x / 3", why="It is a third.", tests=("test_half.py",))


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A module and a test of it, for a pytest without plugins, whose imports would take seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "half.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "test_half.py").write_text("from half import half\n\ndef test_half():\n    assert half(1) == 0.5\n")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_every_mutant_fits_its_file():
    found = read_mutants()
    assert not rotten(found)
    assert len(found) >= 45
    assert all(one.why.endswith(".") and one.tests for one in found)


def test_a_rotten_list_is_seen(tree):
    for changed in ({"old": "x / 4"}, {"old": "x"}, {"new": "x / 2"}, {"file": "gone.py"}, {"tests": ("gone.py::a",)}):
        assert len(rotten([replace(MUTANT, **changed)], tree)) == 1, changed
    assert not rotten([MUTANT], tree)


def test_one_is_caught_and_one_survives(tree):
    """The survivor meets the whole suite too; the tree itself stays as it is."""
    found = verdicts([MUTANT, replace(MUTANT, name="equal", new="x * 0.5")], jobs=1, root=tree)
    assert [(one.name, one.stage, one.caught_by, one.trouble) for one in found] == [
        ("half", "first", "test_half.py::test_half", ""),
        ("equal", "suite", None, ""),
    ]
    assert "x / 2" in (tree / "half.py").read_text()


def test_what_fails_without_a_mutant_catches_none(tree):
    caught = Verdict(name="half", caught_by="test_half.py::test_half")
    assert fail_without_mutant([Verdict(name="hung", caught_by=mutants.TIMEOUT)], tree) is None
    (tree / "half.py").write_text("def half(x):\n    return x / 4\n")
    assert fail_without_mutant([caught], tree) == "test_half.py::test_half"


def test_what_hangs_is_caught_and_what_cannot_run_is_trouble(tree):
    hanging = replace(MUTANT, new="__import__('time').sleep(60)")
    assert judged(hanging, hanging.tests, "first", 0.5, tree).caught_by == mutants.TIMEOUT
    nothing = judged(MUTANT, ["test_gone.py"], "first", 60.0, tree)
    assert nothing.caught_by is None
    assert "test_gone.py" in nothing.trouble


def test_the_file_of_verdicts_and_the_exit_code(tmp_path, monkeypatch, capsys):
    out = tmp_path / "runs" / "mutants.json"
    for caught_by, code in (("tests/test_a.py::test_b", 0), (None, 1)):
        verdict = Verdict(name="label-term-counted-once", caught_by=caught_by)
        monkeypatch.setattr(mutants, "verdicts", lambda *_, verdict=verdict: [verdict])
        monkeypatch.setattr(mutants, "fail_without_mutant", lambda _: None)
        assert mutants.main(["label-term-counted-once", "--out", str(out)]) == code
        assert json.loads(out.read_text())["survived"] == ([] if caught_by else ["label-term-counted-once"])
    with pytest.raises(SystemExit):
        mutants.main(["unknown"])
    assert "name must be that of a mutant in mutants.toml, got unknown" in capsys.readouterr().err
