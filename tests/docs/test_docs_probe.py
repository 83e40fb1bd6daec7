"""The page about probing: its examples print what it shows."""

import re
from pathlib import Path

import pytest

from gradbounds.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["healthy", "broken"])
def test_the_examples_say_what_the_page_says(tmp_path, monkeypatch, capsys, name):
    """Verdicts and alarms; numbers to rounding on another CPU are not compared."""
    code = re.search(r"```python\n# mine.py\n(.*?)```", PAGE, re.S)
    module = f"mine_{name}"
    (tmp_path / f"{module}.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    assert main(["probe", f"{module}:{name}", "--width", "128", "--depth", "8", "16", "32", "--seeds", "8"]) == 0
    said = capsys.readouterr().out
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.S)[1 + (name == "broken")]

    def verdicts(text):
        return [
            re.sub(r"[\d.]+|-(?=\d)", "#", line) for line in text.splitlines() if line.startswith(("ALARM", "mine"))
        ]

    assert verdicts(shown) == verdicts(said.replace(module, "mine"))
    assert verdicts(shown)


def test_the_example_of_one_model_says_what_the_page_says(tmp_path, monkeypatch, capsys):
    code = re.search(r"```python\n# one.py\n(.*?)```", PAGE, re.S)
    (tmp_path / "one_on_the_page.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "10000")
    assert main(["probe", "one_on_the_page.py:make"]) == 0
    said = capsys.readouterr().out.replace("one_on_the_page", "one")
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.S)[0]
    words = [
        [re.sub(r"[\d.]+ *", "# ", line).split() for line in text.splitlines() if not line.startswith("First step")]
        for text in (shown, said)
    ]
    assert words[0] == words[1]


def test_the_example_of_steps_says_what_the_page_says(tmp_path, monkeypatch, capsys):
    """At smaller widths, with fewer seeds and steps: the same weight, and the same power of the width."""
    code = re.search(r"```python\n# steps.py\n(.*?)```", PAGE, re.S)
    (tmp_path / "steps_on_the_page.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "10000")
    names = ["steps_on_the_page.py:make", "--optimizer", "steps_on_the_page.py:optimizer"]
    assert main(["probe", *names, "--width", "32", "64", "128", "--steps", "1", "--seeds", "3"]) == 0
    (alarm,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("ALARM"))
    shown = re.search(r"^ALARM learning rate.*$", PAGE, re.M)[0]
    assert alarm == shown.replace("512 it is 8.0", "128 it is 4.0").replace("width 64", "width 32")
