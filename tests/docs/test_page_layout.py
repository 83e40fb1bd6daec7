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


def test_a_bar_is_a_norm_and_a_condition_keeps_its_room():
    tight = '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>'
    assert shown(r"|g|/|W|").count(tight) == 4
    assert shown(r"p \mid q").count('<mo stretchy="false">&#x02223;</mo>') == 1


def test_matrices_named_in_letters_are_set_and_code_is_not():
    line = nodes.paragraph()
    line += [nodes.Text("what W^Q and √d_k receive, not dW_emb or "), nodes.literal("", "W^Q")]
    page = new_document("a page")
    page += line
    page_layout.with_symbols(page)
    assert [each.astext() for each in page.findall(nodes.math)] == ["W^Q", r"\sqrt{d_k}"]
    assert line.astext() == r"what W^Q and \sqrt{d_k} receive, not dW_emb or W^Q"


def test_a_power_in_braces_is_set_but_not_in_the_gallerys_code():
    class code_links_block(nodes.General, nodes.TextElement):
        pass

    line, code = nodes.paragraph("", "W^1 and dL/dW^{2,l} have (2/3)^{(L-l)/2}"), code_links_block()
    code += nodes.inline("", "partial W^V", classes=["s2"])
    page = new_document("a page")
    page += [line, code]
    page_layout.with_symbols(page)
    assert [each.astext() for each in page.findall(nodes.math)] == ["W^1", "W^{2,l}", "(2/3)^{(L-l)/2}"]
    assert code.astext() == "partial W^V"


def table_of(*texts):
    table, group = nodes.table(), nodes.tgroup()
    head, body = nodes.thead(), nodes.tbody()
    for number, words in enumerate(texts):
        row = nodes.row()
        for text in words:
            entry = nodes.entry()
            entry += nodes.paragraph("", text)
            row += entry
        (body if number else head).append(row)
    group += [head, body]
    table += group
    page = new_document("a page")
    page += table
    return page


def test_a_card_says_what_its_number_is_and_what_dots_stand_for():
    wide = "a cell that is long enough for a phone to make a card of its row"
    page = table_of(["n", "what"], ["64", wide], ["a part, first", wide], ["... second", wide])
    page_layout.with_cells(page)
    titles = [row[0].astext() for row in page.findall(nodes.row)]
    assert [" ".join(title.split()) for title in titles] == ["n", "n = 64", "a part, first", "a part, first ... second"]
    sizes = table_of(["rate", "size"], ["2e-05", "at n = 1024, [1e-05, 2]"])
    page_layout.with_cells(sizes)
    assert "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}1024" in sizes.astext()
    assert sizes.astext().count("e-\N{WORD JOINER}05") == 2


def test_a_high_bar_keeps_its_scripts():
    found = shown(r"\Big\lVert x\Big\rVert_F^2")
    assert found.count("minsize") == found.count("‖") == 2
    assert '‖</mo><msubsup><mspace width="0" height="1.06em" depth="0.561em" /><mi>F</mi>' in found


def test_a_high_bracket_keeps_its_scripts():
    assert ")</mo><msup><mspace" in shown(r"\Big(\frac ab\Big)^2")


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


def test_every_script_of_the_gallery_has_its_place():
    """Without one the site is not built."""
    assert sorted(page_layout.SCRIPTS) == sorted(
        path.stem for path in (Path(__file__).parents[2] / "examples").glob("*.py")
    )
