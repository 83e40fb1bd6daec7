"""What the site is made of: rendered parts, complete lists of pages and names, references."""

import re
from pathlib import Path

import pytest

import gradbounds as gb
from tests.helpers.rendered_pages import DOCS, RENDERED, rendered

ROOT = Path(__file__).parents[2]
REPORT = DOCS / "report.md"
MANUAL = [page for page in DOCS.glob("*.md") if page != REPORT]
"""The pages of the sidebar; with README they are the 18 of the manual."""


@pytest.mark.parametrize("page", RENDERED)
def test_rendered_parts_are_current(page):
    assert rendered(page) == (DOCS / page).read_text(encoding="utf-8"), "python -m tests.helpers.rendered_pages"


def test_the_reference_has_every_public_name_once():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. (?:auto|py:)\w+:: gradbounds\.(\w+)$", text, re.M)
    assert sorted(named) == sorted(gb.__all__)


def test_every_page_is_in_the_contents():
    contents = (DOCS / "conf.py").read_text(encoding="utf-8")
    for page in MANUAL:
        assert contents.count(f'"docs/{page.stem}"') == 1, f"{page.name}: it stands once in CONTENTS of docs/conf.py"


def words(page):
    """The words of a page, without the bars of its tables."""
    return len(re.findall(r"[^\s|]+", page.read_text(encoding="utf-8")))


def test_the_manual_is_short():
    counts = {page.name: words(page) for page in [*MANUAL, ROOT / "README.md"]}
    assert len(counts) == 18
    assert max(counts.values()) <= 2_500, counts
    assert sum(counts.values()) <= 28_000, sum(counts.values())
    assert words(REPORT) <= 20_000


def test_every_work_of_the_prior_art_has_its_reference():
    """And no reference is of a work that the page does not name."""
    named = set(re.findall(r"\b\d{4}\.\d{5}\b", (DOCS / "finite_width.md").read_text(encoding="utf-8")))
    listed = set(re.findall(r"eprint=\{([\d.]+)\}", (DOCS / "references.bib").read_text(encoding="utf-8")))
    assert named == listed


def test_version_and_title_are_one():
    citation, changes, lecture = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("CITATION.cff", "CHANGELOG.md", "examples/GALLERY_HEADER.rst")
    )
    assert f"\nversion: {gb.__version__}\n" in citation
    assert f"version = {{{gb.__version__}}}" in lecture
    title = re.search(r'^title: "(.*)"', citation, re.M)[1].replace("Transformers", "{Transformers}")
    assert f"title = {{{title}}}" in " ".join(lecture.split())
    assert re.search(r"^## (\S+)", changes, re.M)[1].rstrip(",") == gb.__version__
