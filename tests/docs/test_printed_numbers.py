"""Every decimal, percentage and error that README, docs and gallery print outside rendered parts has a source."""

import tomllib

import pytest

from tests.helpers.printed_numbers import ROOT, holds, in_one_place, numbers, prose
from tools.paper_page import PAGES as RENDERED

# Pages that are made of committed results as a whole are compared with them in tests/checks/test_report.py.
WRITTEN = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.relative_to(ROOT).as_posix() not in RENDERED]
PAGES = [ROOT / "README.md", *WRITTEN, *sorted((ROOT / "examples").glob("*.py"))]
LISTED = {
    page: {source: text.split() for source, text in sources.items()}
    for page, sources in tomllib.loads((ROOT / "tests" / "docs" / "numbers.toml").read_text(encoding="utf-8")).items()
}
WITH_FILE, WITHOUT = {"in", "from", "test", "code"}, {"paper", "derived", "size"}


def differences(printed, listed):
    """Printed numbers that no source has, and listed ones that are not printed any more."""
    given = [number for these in listed.values() for number in these]
    assert len(given) == len(set(given)), "a number of a page is listed twice"
    return sorted(set(printed) - set(given)), sorted(set(given) - set(printed))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_printed_number_has_a_source(page):
    name = page.relative_to(ROOT).as_posix()
    new, gone = differences(numbers(prose(page)), LISTED.get(name, {}))
    assert not new, f"tests/docs/numbers.toml has no source for {new} of {name}"
    assert not gone, f"{name} does not print {gone} any more: take them out of tests/docs/numbers.toml"


def test_the_sources_are_there():
    """Files exist, and those that are said to hold a number do."""
    assert set(LISTED) <= {page.relative_to(ROOT).as_posix() for page in PAGES}
    for page, sources in LISTED.items():
        for source, these in sources.items():
            kind, _, file = source.partition(" ")
            assert source in WITHOUT or kind in WITH_FILE | {"computed"}, f"{page}: {source} is no kind of source"
            assert kind not in WITH_FILE or (ROOT / file).is_file(), f"{page}: there is no {file}"
            absent = [number for number in these if kind == "in" and not holds(ROOT / file, number)]
            assert not absent, f"{page}: {file} holds nothing that rounds to {absent}"


def test_a_new_number_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("It is 1.5 ± 0.2, or 27 %.\n<!-- begin: a -->\n9.9\n<!-- end: a -->\n```console\n--by 0.7\n```\n")
    assert numbers(prose(page)) == ["1.5", "±0.2", "27%"]
    assert differences(numbers(prose(page)), {"size": ["1.5", "±0.2"]}) == (["27%"], [])
    assert differences(["1.5"], {"size": ["1.5", "3%"]}) == ([], ["3%"])


def test_rounding_is_told_from_being_absent(tmp_path):
    file = tmp_path / "found.json"
    file.write_text('{"a": [0.1234, -2.5], "b": "17 of 20", "c": true}')
    for number, there in (
        ("0.12", True),
        ("12.3%", True),
        ("2.5", True),
        ("17%", False),
        ("0.13", False),
        ("1.0", False),
    ):
        assert holds(file, number) == there


@pytest.mark.parametrize(
    ("terms", "there"),
    [
        (("4.63", "Post-LN", "16"), True),
        (("4.631",), False),
        (("63",), False),
        (("16", "4.63"), False),
        (("4.63", "7"), False),
        (("7", "-2"), True),
    ],
)
def test_numbers_are_found_in_order_and_in_one_place(terms, there):
    """A number that is another, a part of a longer one, in another order or in another point is not found."""
    text = "It is 4.63 in\nPost-LN, and 16 elsewhere.\n- Next are 7 and\n  −2.\n"
    assert in_one_place(text, *terms) == there
