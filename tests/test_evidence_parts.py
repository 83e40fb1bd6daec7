"""`make evidence` in parts: each test and each file in one part, and a part that was stopped goes on."""

import ast
from collections import Counter

import pytest

from tests.evidence_parts import forget, main, read_parts
from tests.helpers.evidence_file import FOLDER, kept_case
from tests.resumption import Resumption

PARTS = read_parts()
OTHERS = ("mutants", "compatibility")
UNITS = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("unit", [1, 2, 3])
def test_unit(unit):
    with Path("log").open("a") as log:
        log.write(f"{unit} ")
    assert unit != 2 or Path("mended").exists()
"""


def test_every_evidence_test_has_one_part():
    """By name: a part has a file, a test, or a parameter of it."""
    listed = [test for part in PARTS.values() for test in part.tests]
    assert not [test for test, count in Counter(listed).items() if count > 1]
    files = {test for test in listed if "::" not in test}
    names = [test.partition("[")[0] for test in listed if "::" in test]
    for file in sorted(FOLDER.rglob("test_*.py")):
        name = file.relative_to(FOLDER).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        tests = {f"{name}::{node.name}" for node in tree.body
                 if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}  # fmt: skip
        here = {one for one in names if one.startswith(f"{name}::")}
        assert here == (set() if name in files else tests), f"parts.toml must name what {name} has"


def test_every_evidence_file_has_one_part():
    """What `make mutants` and `make compatibility` write is not evidence of this kind."""
    listed = [file for part in PARTS.values() for file in part.files]
    there = [file.stem for file in FOLDER.glob("*.json") if not file.stem.startswith(OTHERS)]
    assert sorted(listed) == sorted(there)


def test_the_list_has_every_part(capsys):
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in PARTS)


def test_no_such_part(capsys):
    assert main(["relaxation"]) == 2
    assert capsys.readouterr().err.startswith("PART must be one of laws, norms, ")


def run(root):
    """What the units of a made-up file did, by a pytest of their own in this process."""
    log = root / "log"
    log.write_text("")
    # Without the collections of garbage at the end, which take a second here.
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:unraisableexception",
        "--import-mode",
        "importlib",
        "--rootdir",
        str(root),
    ]
    pytest.main([*options, str(root / "test_units.py")], plugins=[Resumption(root)])
    return log.read_text().split()


def test_a_stopped_part_goes_on(tmp_path, monkeypatch):
    """What passed is left out, until a source changes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_units.py").write_text(UNITS)
    (tmp_path / "theory").mkdir()
    assert run(tmp_path) == ["1", "2", "3"]
    (tmp_path / "mended").touch()
    assert run(tmp_path) == ["2"], "it had failed"
    assert run(tmp_path) == []
    (tmp_path / "theory" / "stack.py").write_text("")
    assert run(tmp_path) == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["a case", "a/b, c = [[1.0, 0.5]]"])
def test_a_case_is_kept(tmp_path, name):
    assert kept_case(tmp_path, name, lambda: {"value": 0.1 + 0.2}) == {"value": 0.1 + 0.2}
    assert kept_case(tmp_path, name, lambda: pytest.fail("made again")) == {"value": 0.1 + 0.2}


def test_a_part_is_forgotten(tmp_path):
    kept = tmp_path / "runs" / "evidence"
    for file in ("test_relaxed.py", "test_laws.py"):
        (kept / file / "0").mkdir(parents=True)
    forget(tmp_path, PARTS["queries"])
    assert [folder.name for folder in kept.iterdir()] == ["test_laws.py"]
