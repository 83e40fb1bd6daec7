"""Counts that pages print are the code's, and paths and dotted names in backticks are there."""

import importlib
import json
import math
import re
from pathlib import Path

import pytest

from checks.experiment import verify_cells
from tests.helpers.printed_numbers import says
from tests.test_architecture import MAY_IMPORT
from theory import Stack
from theory.stack.placements import COMPOSITIONS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "GALLERY_HEADER.rst"]
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()

FIELDS = len(Stack.__dataclass_fields__)
SAMPLED = sum(composition.branch(1) > 0 for composition in COMPOSITIONS.values())
SCRIPTS = len(list((ROOT / "examples").glob("*.py")))
PACKAGES = len(MAY_IMPORT.keys() - {"tests", "bench", "tools", "studies"})
COUNTS = [
    ("README.md", r"samples (\w+) kinds of networks", len(verify_cells())),
    ("docs/faq.md", r"puts (\w+) placements side by side", SAMPLED),
    ("docs/architecture.md", r"There are (\w+) packages", PACKAGES),
    ("docs/setting.md", r"a table of (\w+) fields", FIELDS),
    ("docs/setting.md", r"or one of (\w+) more: \[placements", len(COMPOSITIONS) - 2),
    ("docs/placements.md", r"(\w+) placements follow from one rule", len(COMPOSITIONS)),
    ("docs/placements.md", r"and (\w+) are compared here", SAMPLED),
    ("docs/placements.md", r"all layers', for (\w+) placements", SAMPLED),
    ("examples/GALLERY_HEADER.rst", r"(\w+) scripts of a page each", SCRIPTS),
]

# What a reader has and the checkout does not: run folders, what is built, and files of one's own; capitals in a path
# stand for any name.
OWN = ("runs/", "docs/gallery/", "mine", "../")
SUFFIXES = (".py", ".md", ".toml", ".json", ".txt", ".png", ".bib", ".cff", ".rst")
PACKAGED = ("theory", "simulate", "checks", "figures", "gradbounds", "bench", "tests", "tools", "studies")


@pytest.mark.parametrize(("page", "pattern", "count"), COUNTS)
def test_a_printed_count_is_the_codes(page, pattern, count):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    (printed,) = re.findall(pattern, text)
    assert printed.lower() in (str(count), WORDS[count] if count < len(WORDS) else "")


def test_what_the_atlas_says_in_words():
    """Ratios of the first layer's gradients to the last's, and how they depend on tokens and on who draws."""
    found = json.loads((ROOT / "tests" / "evidence" / "atlas.json").read_text(encoding="utf-8"))
    ratios = {name: one["first over last"] for name, one in found["models"].items() if "bert" not in name}
    every = [one[role] for one in ratios.values() for role in ("WQ", "WV", "W1", "W2")]
    assert says("configurations.md", "16 tokens", f"{min(every):.1f} to {max(every):.0f}")
    own, trained = found["models"]["pythia-1.4b"], found["choices"]["pythia-1.4b"]["as its training code draws"]
    smaller = [before / after for before, after in zip(own["energy"], trained["energy"], strict=True)]
    assert smaller == pytest.approx([270, 270], rel=0.015)
    changes = [abs(after / own["first over last"][role] - 1) for role, after in trained["first over last"].items()]
    assert says("configurations.md", f"within {math.ceil(100 * max(changes))}%", "270 times smaller")
    by_codes = json.loads((ROOT / "tests" / "evidence" / "training-codes.json").read_text(encoding="utf-8"))
    by_rule = {name: one["first over last"] for name, one in by_codes["models"].items()}
    # The atlas has GPT-NeoX's rule as well, written out for itself; 16 patterns leave 2% of W^Q and W^K.
    for role, ratio in trained["first over last"].items():
        rel = 0.02 if role in ("WQ", "WK") else 1e-3
        assert by_rule["pythia-1.4b"][role] == pytest.approx(ratio, rel=rel), role
    assert by_codes["models"]["pythia-1.4b"]["energy"] == pytest.approx(trained["energy"], rel=1e-3)
    steep = [f"{one['llama-3-8b'][role]:.0f}" for role in ("WQ", "WG") for one in (by_rule, ratios)]
    assert says("configurations.md", "270 times smaller", *steep)
    cut = [abs(one / ratios["olmo-2-7b"][role] - 1) for role, one in by_rule["olmo-2-7b"].items()]
    assert says("configurations.md", *steep, f"{math.ceil(1000 * max(cut)) / 10}%")
    assert all(one["largest error"] <= 0.015 for one in by_codes["modules"].values())
    assert all(abs(one["largest deviation"]["ratio"] - 1) < 0.05 for one in by_codes["modules"].values())


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
