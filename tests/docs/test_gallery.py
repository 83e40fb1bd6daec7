"""The scripts of the gallery: what they take from us, and that each runs, in small."""

import ast
import importlib
import inspect
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


def calls(script):
    """Every call of a public name in a script: the name, and how many arguments it gives by place and which by name."""
    tree = ast.parse(script)
    ours = {
        alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("figures")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
            continue
        names = [keyword.arg for keyword in node.keywords]
        if ast.unparse(node.func).startswith("gb.") and ast.unparse(node.func).count(".") == 1:
            yield getattr(gb, node.func.attr), len(node.args), names
        elif ast.unparse(node.func) in ours:
            yield ours[node.func.id], len(node.args), names


def check(script):
    """Compile a script and hold what it takes from us against what there is."""
    compile(script, "script", "exec")
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gb":
            assert node.attr in gb.__all__, f"gradbounds has no {node.attr}"
    for function, places, names in calls(script):
        # **given may hold anything: then the names that are written out are held against the parameters alone.
        bind = inspect.signature(function).bind_partial if None in names else inspect.signature(function).bind
        bind(*range(places), **{name: None for name in names if name})


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_takes_only_what_there_is(path):
    script = path.read_text(encoding="utf-8")
    check(script)
    assert 20 <= len(script.splitlines()) <= 60
    title, line, _, question = ast.get_docstring(ast.parse(script)).split("\n", 3)
    assert len(line) >= len(title) and set(line) == {"="} and "?" in question


def test_every_script_of_the_gallery_has_its_place():
    """Without one the site is not built."""
    layout = (Path(__file__).parents[2] / "docs" / "page_layout.py").read_text(encoding="utf-8")
    order = re.search(r'^SCRIPTS = """(.*?)"""', layout, re.DOTALL | re.MULTILINE)[1].split()
    assert sorted(order) == [path.stem for path in SCRIPTS]


@pytest.mark.parametrize(
    "script",
    [
        "gb.predicted(stack)",
        "gb.Stack(widht=64)",
        "gb.sample(stack, draws=4)",
        "from figures.layer_profile import profile",
        "from figures.layer_profile import layer_profile\nlayer_profile(table, axis=[ax])",
        "gb.predict(",
    ],
)
def test_a_wrong_script_is_seen(script):
    with pytest.raises((AssertionError, AttributeError, TypeError, SyntaxError)):
        check(script)


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
