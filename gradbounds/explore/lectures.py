"""The exercises of the documentation's two lectures, and their answers, as Jupyter notebooks."""

import json
import re
from pathlib import Path

from simulate.runs.files import write_whole

_INSTALLED, _CHECKOUT = Path(__file__).parent / "lectures", Path(__file__).parents[2] / "examples"

NAMES = (
    "exercises_with_the_recursion",
    "answers_to_the_recursion",
    "exercises_with_the_bound",
    "answers_to_the_bound",
)
"""The scripts of the gallery; a wheel contains them in a folder of its own."""


def notebook(script: str) -> str:
    """Convert a Python script of the documentation into the JSON text of a Jupyter notebook.

    Args:
        script: its text: a docstring, then cells that begin with `# %%`, comments first.
    """
    head, *rest = script.split("# %%\n")
    texts = [("markdown", re.sub(r"\n=+\n", "\n", "# " + head.strip().strip('"').strip()))]
    for cell in rest:
        lines = cell.splitlines()
        ends = next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))
        words = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:ends])
        words = re.sub(r"(?m)^(.+)\n-+$", r"## \1", re.sub(r":math:`([^`]*)`", r"$\1$", words)).replace("``", "`")
        texts += [("markdown", words.strip()), ("code", "\n".join(lines[ends:]).strip())]
    code: dict[str, object] = {"outputs": [], "execution_count": None}
    cells = [
        {"cell_type": kind, "id": f"cell-{at}", "metadata": {}, "source": text} | (code if kind == "code" else {})
        for at, (kind, text) in enumerate(texts)
        if text
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def write_lectures(folder: Path) -> int:
    """Write the lectures' notebooks into a folder, and print the names of the files."""
    source = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        file = folder / f"{name}.ipynb"
        write_whole(file, notebook((source / f"{name}.py").read_text(encoding="utf-8")).encode())
        print(file)
    return 0
