"""Counts and names that pages print are the code's, and the habits of CONTRIBUTING.md become rarer."""

import importlib
import json
import re
from pathlib import Path

import pytest

from checks.experiment import verify_cells
from tests.helpers.prose_counts import KINDS, TABLE, all_counts, counts
from tests.test_architecture import MAY_IMPORT
from theory import Stack
from theory.stack.placements import COMPOSITIONS
from tools.commit_subjects import wrong

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "GALLERY_HEADER.rst"]
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()

FIELDS = len(Stack.__dataclass_fields__)
SAMPLED = sum(composition.branch(1) > 0 for composition in COMPOSITIONS.values())
SCRIPTS = len(list((ROOT / "examples").glob("*.py")))
PACKAGES = len(MAY_IMPORT.keys() - {"tests", "bench", "tools", "studies"})
HELD = [
    0.7 <= of["adam"] <= 1.12 and 0.62 <= of["sgd"] <= 1.12
    for name, of in json.loads((ROOT / "tests/evidence/few-positions.json").read_text(encoding="utf-8")).items()
    if "held " in name and "adam" in of
]
COUNTS = [
    ("docs/report.md", r"They held in (\w+) of 16 later", sum(HELD)),
    ("docs/report.md", r"They held in 12 of (\w+) later", len(HELD)),
    ("README.md", r"samples (\w+) kinds of networks", len(verify_cells())),
    ("docs/faq.md", r"puts (\w+) placements side by side", SAMPLED),
    ("docs/extending.md", r"There are (\w+) packages", PACKAGES),
    ("docs/setting.md", r"a table of (\w+) fields", FIELDS),
    ("docs/theory.md", r"(\w+) placements follow from one rule", len(COMPOSITIONS)),
    ("docs/theory.md", r"and (\w+) are compared here", SAMPLED),
    ("docs/theory.md", r"16 layers of (\w+) placements", SAMPLED),
    ("examples/GALLERY_HEADER.rst", r"(\w+) scripts of a page each", SCRIPTS),
]

# What a reader has and the checkout does not: run folders, what is built, and files of one's own; capitals in a path
# stand for any name.
OWN = ("runs/", "docs/gallery/", "mine", "../")
SUFFIXES = (".py", ".md", ".toml", ".json", ".txt", ".png", ".bib", ".cff", ".rst")
PACKAGED = ("theory", "simulate", "checks", "figures", "gradbounds", "bench", "tests", "tools", "studies")


@pytest.mark.parametrize(("page", "pattern", "count"), COUNTS)
def test_a_printed_count_is_the_codes(page, pattern, count):
    (printed,) = re.findall(pattern, " ".join((ROOT / page).read_text(encoding="utf-8").split()))
    assert printed.lower() in (str(count), WORDS[count] if count < len(WORDS) else "")


def in_backticks(text: str) -> set[str]:
    """Tokens of inline code without blanks, outside blocks of code."""
    return set(re.findall(r"(?<!`)`([^`\s]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.S)))


def absent(token: str) -> bool:
    """Whether a token is a path or a name of ours, and of nothing that is there."""
    token = re.sub(r"::.*|\(.*", "", token)
    token = re.sub(r"^gb\.", "gradbounds.", re.sub(r"/[A-Z]+\.py$", "/*.py", token))
    if re.fullmatch(rf"(?:{'|'.join(PACKAGED)})(?:\.\w+)+", token) and not token.endswith(SUFFIXES):
        return not _imports(token)
    is_path = "/" in token and (token.endswith(SUFFIXES) or token.split("/")[0] in (*PACKAGED, "docs", "examples"))
    return is_path and not token.startswith(OWN) and not any(ROOT.glob(token.rstrip("/")))


def _imports(name: str) -> bool:
    """Whether a dotted name is a module, or what a module has."""
    for count in range(name.count(".") + 1, 0, -1):
        parts = name.split(".")
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_paths_and_names_in_backticks_are_there():
    wrong = {
        page.relative_to(ROOT).as_posix(): sorted(gone)
        for page in PAGES
        if page.name != "CHANGELOG.md" and (gone := set(filter(absent, in_backticks(page.read_text(encoding="utf-8")))))
    }
    assert not wrong


def test_what_is_not_there_is_seen():
    there = "`theory/coverage` `theory.predict` `gb.predict(stack)` `gradbounds/commands/WORD.py` `runs/x.json` `d/dx`"
    gone = "`theory/coverage.py` `theory.mean_field.nothing` `gb.predictions` `gradbounds/words/WORD.py` `a/b.py`"
    assert set(filter(absent, in_backticks(f"{there} {gone}"))) == in_backticks(gone)


def test_no_page_and_no_folder_gets_worse():
    most = json.loads(TABLE.read_text(encoding="utf-8"))
    more = {
        f"{name}: {kind}": f"{number}, at most {most.get(name, {}).get(kind, 0)}"
        for name, each in all_counts().items()
        for kind, number in each.items()
        if number > most.get(name, {}).get(kind, 0)
    }
    assert not more, "CONTRIBUTING.md has the rules; python -m tests.helpers.prose_counts lowers the table"


def test_each_habit_is_seen():
    text = (
        "Of ReLU all are 1. It stands beside what the head returns, behind a norm, unasked, in the place of one.\n"
        f"That is no fault.\n\n- {'word ' * 31}\n"
    )
    assert set(counts(text).values()) == {1}
    assert len(counts(text)) == len(KINDS) + 1
    assert not counts("```\nbeside\n```\n| beside |\n# beside\n$beside$ `beside`").total()


def test_commit_subjects():
    assert not any(
        map(wrong, ["docs: rewrite the manual", "theory/paper, checks: name the step", "probe: `x` is read"])
    )
    assert all(map(wrong, ["Rewrite the manual", "docs: " + "x" * 67, "docs: Rewrite", "docs:rewrite"]))
