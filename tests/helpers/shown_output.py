"""Commands that a page shows with what they print, held against what they do print."""

import re
from pathlib import Path

import numpy as np

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
