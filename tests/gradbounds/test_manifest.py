"""What a manifest says of the code that ran, and how progress is put into words."""

import subprocess

import pytest

import gradbounds.progress
from gradbounds.progress import progress
from simulate.runs import provenance
from simulate.runs.sweep import Progress


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository that holds the module, of one commit."""
    module = tmp_path / "manifest.py"
    module.write_text("")
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--message", "one"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "__file__", str(module))
    return module


def test_a_revision_says_whether_there_are_changes(checkout):
    clean = provenance.revision()
    assert len(clean) == 40
    checkout.write_text("changed = True\n")
    assert provenance.revision() == clean + "+"


def test_code_that_is_not_tracked_has_no_revision(checkout, monkeypatch):
    installed = checkout.with_name("installed.py")
    installed.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert provenance.revision() == ""


@pytest.mark.parametrize(
    ("share", "left"),
    [
        (0.25, ", 1.0 min left"),  # a quarter in 20 s
        (0.001, ""),  # too early for an estimate
        (1.0 - 1e-14, ""),
    ],
)
def test_the_time_left_of_a_sweep(monkeypatch, capsys, share, left):
    clock = iter([100.0, 120.0])
    monkeypatch.setattr(gradbounds.progress.time, "monotonic", lambda: next(clock))
    with progress() as on_block:
        on_block(Progress(blocks=(8, 16), share=share))
    assert capsys.readouterr().err == f"sampling: 8 of 16{left}\n"
