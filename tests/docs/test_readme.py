"""What README and the tutorials show is what the commands print, and each script of the gallery runs, in small."""

import ast
import re
import runpy
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import gradbounds as gb
from gradbounds.budget import each_once
from gradbounds.cli import main
from simulate.runs import cell
from tests.helpers.predicted_once import predicted_once  # noqa: F401  (a fixture)

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def shown(page: Path) -> dict[str, list[str]]:
    """Every command of a page that has lines below it, with these lines; "..." stands for others."""
    blocks = re.findall(r"```console\n\$ (.*?)\n```", page.read_text(encoding="utf-8"), re.S)
    return {lines[0]: lines[1:] for lines in map(str.splitlines, blocks)}


def same(line: str, printed: str) -> bool:
    """Whether the words of two lines are the same, and their numbers within 3%, which kernels and rounding may take."""
    if _NUMBER.sub("#", line).split() != _NUMBER.sub("#", printed).split():
        return False
    numbers = [[float(number.replace(",", "")) for number in _NUMBER.findall(each)] for each in (line, printed)]
    return np.allclose(*numbers, rtol=0.03)


def not_printed(lines: list[str], printed: list[str]) -> str | None:
    """The first line that is not printed below what stands before it; lines may be left out where dots say so."""
    at = 0
    for line in lines:
        if line == "...":
            continue
        rest = [k for k, each in enumerate(printed[at:], start=at) if same(line, each)]
        if not rest:
            return line
        at = rest[0] + 1
    return None


ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHEAP = {line: lines for line, lines in shown(ROOT / "README.md").items() if "probe" not in line}
"""Commands of a few seconds with the lines that stand below them; "..." stands for others."""
TUTORIALS = {name: shown(ROOT / "docs" / f"{name}_tutorial.md") for name in ("model", "claim")}
HEAVY = ("--first-step", "--batch 512", "--draws 8", "predict --config config.json\n")
"""Commands of tutorials that take longer, or show a heading alone; `make evidence PART=tutorials` runs these."""


@pytest.mark.heavy
@pytest.mark.parametrize("command", CHEAP)
def test_the_lines_below_a_command_are_its_own(command, capsys):
    """In their order; lines may be left out, where dots say so, and none may be added."""
    assert main(shlex.split(command)[1:]) == 0
    line = not_printed(CHEAP[command], capsys.readouterr().out.splitlines())
    assert line is None, f"{command} does not print {line!r} below what stands before it"


@each_once()
def follow(name, capsys, *, heavy):
    """Run the heavy commands of a tutorial, or all others, here, from the file that it shows; return their number."""
    text = (ROOT / "docs" / f"{name}_tutorial.md").read_text(encoding="utf-8")
    for block in re.findall(r"```json\n(.*?)```", text, re.S):
        Path("config.json").write_text(block, encoding="utf-8")
    for block in re.findall(r"```toml\n(.*?)```", text, re.S):
        Path("mine.toml").write_text(block, encoding="utf-8")
    chosen = {
        command: lines for command, lines in TUTORIALS[name].items()
        if any(part in f"{command}\n" for part in HEAVY) == heavy
    }  # fmt: skip
    for command, lines in chosen.items():
        assert main(shlex.split(command)[1:]) == 0
        line = not_printed(lines, capsys.readouterr().out.splitlines())
        assert line is None, f"{command} does not print {line!r} below what stands before it"
    return len(chosen)


@pytest.mark.heavy
@pytest.mark.usefixtures("predicted_once")
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_goes_as_it_is_written(name, capsys, tmp_path, monkeypatch):
    """In a folder of its own, one command after another."""
    monkeypatch.chdir(tmp_path)
    assert follow(name, capsys, heavy=False) >= 1


def test_another_number_or_word_is_seen():
    line = "- The stream's mean square |x|^2/d is 7.05 after the first layer and 234 after the last."
    assert same(line, line.replace("234", "236"))
    assert not same(line, line.replace("234", "243"))
    assert not same(line, line.replace("stream", "gradient"))


def test_readme_is_short():
    assert len(README.splitlines()) <= 110
    assert len(CHEAP["gradbounds predict --like gpt2"]) <= 18


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
