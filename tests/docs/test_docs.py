"""The pages and the site: commands parse, links lead somewhere, lists of fields, pages and names are complete."""

import re
import shlex
from pathlib import Path

import pytest

import gradbounds as gb
from gradbounds.cli import parsed
from gradbounds.commands.sweep import WITH_TABLE, Sweep
from gradbounds.recipe import read_recipe
from studies.__main__ import Study
from tests.helpers.rendered_pages import DOCS, RENDERED, rendered
from theory import QUANTITIES

ROOT = Path(__file__).parents[2]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("studies/*/README.md"))]


def commands():
    lines = [line.strip() for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
    shown = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    inline = [code for line in lines for code in re.findall(r"`(gradbounds [a-z][^`]*)`", line)]
    return sorted({*shown, *(line for line in inline if "RUN" not in line and "FILE" not in line)})


@pytest.mark.parametrize("line", commands())
def test_every_command_shown_is_one(line):
    """Flags and values are those that the command line takes; what they do is tested elsewhere."""
    program, *arguments = shlex.split(line)
    if arguments[:2] == ["-m", "studies"]:
        parsed(shlex.split(line, comments=True)[3:], Study, "python -m studies")
        return
    assert program in ("gradbounds", "pytest"), line
    if program == "pytest":
        assert arguments[0] == "--gradbounds-run"
        return
    if arguments in (["sweep"], ["verify"]) or arguments[0].startswith("-"):
        return
    command = parsed(arguments)
    if isinstance(command, Sweep) and command.file is None and command.preset not in WITH_TABLE:
        assert command.recipe().stacks()


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#{1,3} (.*)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    for page in [*PAGES, ROOT / "paper_checks.md", ROOT / "CONTRIBUTING.md"]:
        for target, anchor in re.findall(r"\]\(([^):#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(file), f"{page.name}: {target}#{anchor}"


def test_every_page_that_code_cites_is_there():
    """In docstrings, comments and messages."""
    for folder in ("theory", "simulate", "checks", "figures", "gradbounds", "studies", "tools", "tests", "bench"):
        for file in (ROOT / folder).rglob("*.py"):
            for cited in re.findall(r"(?:docs|studies/\w+)/\w+\.md", file.read_text(encoding="utf-8")):
                assert (ROOT / cited).exists(), f"{file.relative_to(ROOT)} cites {cited}"


def test_the_toml_file_shown_is_a_sweep(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "runs.md").read_text(encoding="utf-8"), re.S)
    (tmp_path / "sweep.toml").write_text(block)
    recipe = read_recipe(tmp_path / "sweep.toml")
    assert recipe.draws == 128
    assert len(recipe.stacks()) == 2 * (4 * 2 + 3) - 2, "d = 512 at V = 512 is in both vocabularies"


def test_every_quantity_has_its_row():
    page = (ROOT / "docs" / "setting.md").read_text(encoding="utf-8")
    for name in QUANTITIES:
        assert f"`{name}`" in page or f"`{name.removeprefix('encoder_')}`" in page


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
