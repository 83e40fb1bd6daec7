"""Which tests `make quick` runs: all of theory's own, and one of every other file."""

import re
from itertools import groupby
from pathlib import Path

import pytest

THEORY = Path(__file__).parent.parent / "theory"
STUDIES = THEORY.parent / "studies"
OTHERS = re.compile(r"^\s*(?:from|import) (?:torch|simulate|checks|figures|gradbounds)\b", re.MULTILINE)


def mark_quick(items: list[pytest.Item]) -> None:
    """Mark what is quick: tests of files that import nothing above theory, and the first test of each other file.

    A file whose first test is slow marks another one itself.
    """
    for path, group in groupby(items, lambda item: item.path):
        if STUDIES in path.parents:
            continue
        own = [item for item in group if not item.get_closest_marker("evidence")]
        if THEORY in path.parents or not OTHERS.search(path.read_text(encoding="utf-8")):
            chosen = own
        elif any(item.get_closest_marker("quick") for item in own):
            chosen = []
        else:
            chosen = own[:1]
        for item in chosen:
            item.add_marker("quick")
