"""What the site is made of: rendered parts, complete lists of pages and names, references."""

import inspect
import re
from pathlib import Path

import pytest

import gradbounds as gb
from tests.helpers.rendered_pages import DOCS, RENDERED, rendered
from tools.paper_page import PAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", RENDERED)
def test_rendered_parts_are_current(page):
    assert rendered(page) == (DOCS / page).read_text(encoding="utf-8"), "python -m tests.helpers.rendered_pages"


def test_the_reference_has_every_public_name_once():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. (?:auto|py:)\w+:: gradbounds\.(\w+)$", text, re.M)
    assert sorted(named) == sorted(gb.__all__)


def test_every_page_is_in_the_contents():
    contents = (DOCS / "conf.py").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert contents.count(f'"docs/{page.stem}"') == 1, f"{page.name}: it stands once in CONTENTS of docs/conf.py"


def test_every_work_of_the_prior_art_has_its_reference():
    """And no reference is of a work that the page does not name."""
    named = set(re.findall(r"\b\d{4}\.\d{5}\b", (DOCS / "prior_art.md").read_text(encoding="utf-8")))
    listed = set(re.findall(r"eprint=\{([\d.]+)\}", (DOCS / "references.bib").read_text(encoding="utf-8")))
    assert named == listed


def test_lines_of_pages_fit_into_an_editor():
    """120 columns, but for tables, formulas, pictures, code, and pages that are made of results as a whole."""
    long = set()
    for page in {ROOT / "README.md", *DOCS.glob("*.md")} - {ROOT / page for page in PAGES}:
        text = re.sub(r"```.*?```|\$\$.*?\$\$", "", page.read_text(encoding="utf-8"), flags=re.S)
        if any(len(line) > 120 and not line.startswith(("|", "![")) for line in text.splitlines()):
            long.add(page.name)
    assert not long


def test_no_line_of_a_formula_begins_a_list_or_quotation():
    """A formula that goes on with a minus on the next line is a list to readers of Markdown, with "> 0" a quotation."""
    split = set()
    for page in {ROOT / "README.md", *DOCS.glob("*.md")}:
        text = re.sub(r"```.*?```|\$\$.*?\$\$", "", page.read_text(encoding="utf-8"), flags=re.S)
        for paragraph in re.split(r"\n\s*\n", text):
            if any(re.search(r"\n\s*[-+*#>] ", formula) for formula in re.findall(r"\$[^$]+\$", paragraph)):
                split.add(page.name)
    assert not split


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_opens_with_a_question_and_its_answer(page):
    """Below the title a paragraph that asks, and at least one sentence that answers before anything else is said."""
    title, opening, *_ = re.split(r"\n\s*\n", page.read_text(encoding="utf-8"))
    question, mark, answer = " ".join(opening.split()).partition("? ")
    assert title.startswith("# ")
    assert mark
    assert len(answer.split()) >= 4
    assert 2 <= len(re.findall(r"[.?:](?: |$)", opening.replace("\n", " "))) <= 6, "two to five sentences"


def test_no_docstring_has_bars_that_the_reference_takes_for_a_name():
    """`make docs` fails on |g|, a substitution there, and on a word with a _ behind it; the suite has no docs extra."""
    texts = {name: inspect.getdoc(getattr(gb, name)) or "" for name in gb.__all__}
    plain = {name: re.sub(r"``.*?``|`.*?`", "", text, flags=re.S) for name, text in texts.items()}
    assert not [name for name, text in plain.items() if re.search(r"(?<!\|)\|\w(?:[^|\n]*\w)?\|(?!\|)", text)]
    assert not [name for name, text in plain.items() if re.search(r"\w_(?!\w)", text)]
