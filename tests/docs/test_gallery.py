"""The scripts of the gallery: each is a page with a question, and each runs, in small."""

import ast
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import gradbounds as gb
from simulate.runs import cell

SCRIPTS = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))

SMALL = {
    "Stack": {"width": 128, "depth": 3, "vocab": 64},
    "sample": {"draws": 2},
    "sweep": {"draws": 2},
    "probe": {"seeds": 2},
    "predict": {"patterns": 2},
    "stack_from_config": {"tokens": 2},
}
"""Most of what the scripts ask for, where each is run here."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_a_page_with_a_question(path):
    script = path.read_text(encoding="utf-8")
    assert 20 <= len(script.splitlines()) <= 60
    title, line, _, question = ast.get_docstring(ast.parse(script)).split("\n", 3)
    assert len(line) >= len(title) and set(line) == {"="} and "?" in question


def test_every_script_of_the_gallery_has_its_place():
    """Without one the site is not built."""
    layout = (Path(__file__).parents[2] / "docs" / "page_layout.py").read_text(encoding="utf-8")
    order = re.search(r'^SCRIPTS = """(.*?)"""', layout, re.DOTALL | re.MULTILINE)[1].split()
    assert sorted(order) == [path.stem for path in SCRIPTS]


def at_most(function, **most):

    def called(*places, **names):
        return function(*places, **names | {name: min(names[name], most[name]) for name in most if name in names})

    return called


# curvlinops warns of torch's own deprecations.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(path, tmp_path, monkeypatch, own_names):
    """With few and shallow networks; twice where it leaves a run folder, which does not stop the second.

    `make docs` runs scripts as they are.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cell, "MOST_DRAWS", 2)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    for name, most in SMALL.items():
        monkeypatch.setattr(gb, name, at_most(getattr(gb, name), **most))
    for _ in range(1 + ("gb.sweep(" in path.read_text(encoding="utf-8"))):
        runpy.run_path(str(path), run_name="__main__")
