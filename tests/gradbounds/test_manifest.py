"""What a manifest says of the code that ran, and how progress is put into words."""

import subprocess

import pytest

from gradbounds.progress import words
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


def test_the_time_left_is_what_the_share_leaves():
    """A quarter in 20 s leaves a minute."""
    said = words(Progress(blocks=(5, 16), cells=(1, 4), draws=100, share=0.25, seconds=20.0))
    assert said == "1 of 4 cells, 5 of 16 blocks, 5 draws/s, 1.0 min left"


def test_no_time_is_given_before_it_means_something_or_when_nothing_is_left():
    early = words(Progress(blocks=(1, 400), cells=(0, 4), draws=8, share=0.001, seconds=20.0))
    late = words(Progress(blocks=(16, 16), cells=(4, 4), draws=800, share=1.0 - 1e-14, seconds=20.0))
    assert "left" not in early + late
