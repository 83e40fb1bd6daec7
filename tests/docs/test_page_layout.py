"""What the site adds to pages: signs of formulas, and what stays on one line."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "docs"))
page_layout = pytest.importorskip("page_layout", reason="needs docutils: pip install '.[docs]'")
converter = pytest.importorskip("latex2mathml.converter", reason="needs latex2mathml: pip install '.[docs]'")

from docutils import nodes  # noqa: E402
from docutils.utils import new_document  # noqa: E402


def shown(formula):
    return page_layout.mathml(converter.convert(formula))


def test_signs_have_the_room_of_print():
    assert shown(r"a/b").count('<mo lspace="0" rspace="0">&#x0002F;</mo>') == 1
    assert shown(r"\partial W").count('<mo lspace="0" rspace="0">&#x02202;</mo>') == 1
    assert '<mo lspace="0.28em" rspace="0.28em">∼</mo>' in shown(r"W\sim N")
    assert "∼" not in shown(r"\tilde M")
    assert "<munder><mo>lim</mo>" in shown(r"\lim_{d\to\infty} x_d")


def test_a_high_bar_keeps_its_scripts():
    found = shown(r"\Big\lVert x\Big\rVert_F^2")
    assert found.count("minsize") == found.count("‖") == 2
    assert '‖</mo><msubsup><mspace width="0" height="1.06em" depth="0.561em" /><mi>F</mi>' in found


def test_brackets_stay_with_formulas_and_flags_in_one_piece():
    line = nodes.paragraph()
    line += [nodes.Text("wide ("), nodes.math("", "d"), nodes.Text("), deep "), nodes.math("", "L")]
    line += [nodes.Text(" more, as "), nodes.literal("", "gradbounds predict --like gpt2")]
    page = new_document("a page")
    page += line
    before = line.astext()
    page_layout.with_signs(page)
    page_layout.with_flags(page)
    assert line.astext() == before
    assert [each.astext() for each in page.findall(nodes.inline)] == ["(d)", "--like"]
    assert all(each["classes"] == ["joined"] for each in page.findall(nodes.inline))


def test_a_verdict_has_a_colour_and_a_claim_its_words():
    page = new_document("a page")
    table, body = nodes.table(), nodes.tbody()
    for texts in (
        ["claim", "in words", "verdict"],
        ["L1", "half is kept", "holds, loose"],
        ["F1", "it decays", "premise fails"],
    ):
        row = nodes.row()
        for text in texts:
            paragraph = nodes.paragraph()
            paragraph += nodes.strong("", text) if text == texts[2] else nodes.Text(text)
            entry = nodes.entry()
            entry += paragraph
            row += entry
        body += row
    table += body
    section = nodes.section()
    section += nodes.title("", "L1")
    page += [table, section]
    page_layout.with_verdicts(page)
    page_layout.with_words(page)
    words = [word["classes"] for word in page.findall(nodes.strong)]
    assert words == [[], ["verdict", "corrected"], ["verdict", "fails"]]
    assert section.astext() == "L1: half is kept"
