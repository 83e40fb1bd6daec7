"""What README shows is what the commands print."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from gradbounds.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = [block.splitlines() for block in re.findall(r"```console\n\$ (.*?)\n```", README, re.S)]
CHEAP = {lines[0]: lines[1:] for lines in SHOWN if "probe" not in lines[0]}
"""Commands of a few seconds with the lines that stand below them; "..." stands for others."""

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def same(line, printed):
    """Whether the words of two lines are the same, and their numbers within 3%, which kernels and rounding may take."""
    if _NUMBER.sub("#", line).split() != _NUMBER.sub("#", printed).split():
        return False
    numbers = [[float(number.replace(",", "")) for number in _NUMBER.findall(each)] for each in (line, printed)]
    return np.allclose(*numbers, rtol=0.03)


@pytest.mark.parametrize("command", CHEAP)
def test_the_lines_below_a_command_are_its_own(command, capsys):
    """In their order; lines may be left out, where dots say so, and none may be added."""
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out.splitlines()
    at = 0
    for line in CHEAP[command]:
        if line == "...":
            continue
        rest = [k for k, each in enumerate(printed[at:], start=at) if same(line, each)]
        assert rest, f"{command} does not print {line!r} below what stands before it"
        at = rest[0] + 1


def test_another_number_or_word_is_seen():
    line = "- The stream's mean square |x|^2/d is 7.05 after the first layer and 234 after the last."
    assert same(line, line.replace("234", "236"))
    assert not same(line, line.replace("234", "243"))
    assert not same(line, line.replace("stream", "gradient"))


def test_readme_is_short():
    assert len(README.splitlines()) <= 110
    assert len(CHEAP) == 2
