"""The pages: commands parse, links lead somewhere, tables of fields are complete."""

import re
import shlex
from pathlib import Path

import pytest

from gradbounds.cli import parsed
from gradbounds.commands.sweep import WITH_TABLE, Sweep
from gradbounds.recipe import read_recipe
from studies.__main__ import Study
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
