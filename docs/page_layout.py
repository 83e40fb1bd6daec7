"""What the site adds to pages: captions, cells that keep together, cards on a phone, a list of contents, dates.

A page in the repository is the same without them; nothing here says anything that its page does not.
"""

import re
import subprocess
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).parent.parent
CODE_COLUMNS = 84
"""Characters of code that fit beside the sidebar of a small laptop."""
_NAME, _CARD, _DENSE = 18, 48, 60
"""The longest first cell that is kept on one line; the characters of a row from which a phone shows it as a
card; those from which letters are smaller."""
_PRINTED_COLUMNS = 97
"""Characters of a printed line that fit there; what is longer goes on below its value."""
_GAPS = 4
"""Of two spaces and more in a printed line, from which it is a table's: it scrolls, as broken none could read it."""
_LABEL = re.compile(r" +\S+(?: \S+){0,3}  +(?=\S)|\S+(?: \S+)?  +(?=\S)|( *)")
"""The label of a printed line with the room up to its value."""
_TIGHT = 103
"""The characters that no cell of a row can break, with two for the room between columns, from which letters are
smaller still."""
_DATE = re.compile(r"\d{4}-\d\d")
_TOGETHER = re.compile(r"\[[^\[\]]{1,24}\]|[\d.%]+ ± [\d.%]+|[-−]?[\d.]+ to [-−]?[\d.]+|\b[dnlLVkhs] = [\d.]+\w?")
"""An interval, a number with its error, a range, a size: what a line of a cell does not break."""
_POWER = re.compile(r"(?<=\de)-(?=\d)")
"""The sign in a number's power of ten, behind which browsers break."""
_VERDICT = re.compile(r"(holds|undecided|premise fails|fails)(,? with a correction|, loose)?( at .*| by .*)?")
_SYMBOL = re.compile(
    r"((?<!\w)(?:[WX]\^[A-Z12]|√d_k|d_k|sigma_e|σ_e|W_emb)(?![A-Za-z0-9])|W\^\{2,[lL]\}|\(2/3\)\^\{\(L-l\)/2\})"
)
_LATEX = {"√d_k": r"\sqrt{d_k}", "sigma_e": r"\sigma_e", "σ_e": r"\sigma_e", "W_emb": r"W_{\mathrm{emb}}"}
"""What a text names in letters, and how it is set where that is not as it is typed."""
_OPERATORS = "ln log exp max min sup sign Var tr diag det cos sin tanh erf arccos softmax"


SCRIPTS = """
post_and_pre_at_depth_48 is_theorem_1_tight gpt2_at_initialization published_models find_the_bug_in_an_initialization
what_cross_attention_does probe_my_own_module curvature_of_my_own_module my_own_sweep_and_its_exponents
my_own_figure_in_my_own_style exercises_with_the_recursion exercises_with_the_bound
answers_to_the_recursion answers_to_the_bound
""".split()
"""The scripts of the gallery from the first look to one's own work."""


class ByDifficulty:
    """The order of the gallery's scripts."""

    def __init__(self, folder: str) -> None:
        """Take the folder of the scripts, which sphinx-gallery gives."""

    def __call__(self, name: str) -> int:
        """Return the place of a script by its file's name."""
        return SCRIPTS.index(name.removesuffix(".py"))


def mathml(formula: str) -> str:
    """Mend what the converter leaves: bars as high as the line, room around names of functions, words in one piece."""
    for command, sign in {r"\lVert": "‖", r"\rVert": "‖", r"\lvert": "|", r"\rvert": "|"}.items():
        formula = formula.replace(f">{command}<", f">{sign}<")  # the converter leaves them behind \Big
    formula = re.sub(r"<mo>(&#x02016;|‖|\||&#x0007C;|&#x02223;)</mo>", r'<mo stretchy="false">\1</mo>', formula)
    # A bar is a norm's; the one that a condition stands behind is another sign, and has its room.
    formula = re.sub(
        r'<mo stretchy="false">(\||&#x0007C;)</mo>', r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', formula
    )
    formula = re.sub(r"<mo>(/|∂|∞|&#x0002F;|&#x02202;|&#x0221E;)</mo>", r'<mo lspace="0" rspace="0">\1</mo>', formula)
    formula = formula.replace("<mi>&#x0007E;</mi>", '<mo lspace="0.28em" rspace="0.28em">∼</mo>')
    # Browsers do not stretch a bar or a bracket that has scripts: these get an empty base as high as it.
    formula = re.sub(
        r'<(msubsup|msub|msup)>(<mo minsize="([\d.]+)em"[^>]*>[‖)\]]</mo>)',
        lambda found: f'{found[2]}<{found[1]}><mspace width="0" {_around_axis(float(found[3]))} />',
        formula,
    )
    # A limit stands below its name.
    formula = re.sub(
        r"<msub><mo>lim</mo>(<mrow>(?:(?!<mrow>).)*?</mrow>)</msub>", r"<munder><mo>lim</mo>\1</munder>", formula
    )
    letters = r'<mi mathvariant="normal">(\w)</mi>'
    formula = re.sub(
        rf"(?:{letters}){{2,}}", lambda found: f"<mi>{''.join(re.findall(letters, found[0]))}</mi>", formula
    )
    names = "|".join(_OPERATORS.split())
    formula = re.sub(rf"<mi>({names})</mi>", r'<mo form="prefix" lspace="0.17em" rspace="0.17em">\1</mo>', formula)
    return re.sub(r'(<mrow>)+<mo form="prefix" lspace="0.17em"', lambda found: found[0].replace("0.17", "0"), formula)


def _around_axis(size: float) -> str:
    """Height and depth in em of a sign of this size, which is centred a quarter above the line."""
    return f'height="{size / 2 + 0.25:.3g}em" depth="{size / 2 - 0.25:.3g}em"'


def with_signs(doctree: nodes.document) -> None:
    """Keep a bracket with the formula that it opens before, and a comma or a bracket with the one that it follows."""
    for formula in list(doctree.findall(nodes.math)):
        parent, at = formula.parent, formula.parent.index(formula)
        before, after = parent[at - 1] if at else None, parent[at + 1] if at + 1 < len(parent) else None
        opens = before[-1] if isinstance(before, nodes.Text) and before.endswith(("(", "[", "“")) else ""
        closes = after[0] if isinstance(after, nodes.Text) and after.startswith((*",.;:)]”?",)) else ""
        if opens or closes:
            parent[at] = nodes.inline(
                "", "", nodes.Text(opens), formula.deepcopy(), nodes.Text(closes), classes=["joined"]
            )
            if opens:
                parent[at - 1] = nodes.Text(before[:-1])
            if closes:
                parent[at + 1] = nodes.Text(after[1:])


def with_symbols(doctree: nodes.document) -> None:
    """Set a matrix or a width that a page names in letters, such as W^Q and d_k, as the formulas beside it."""
    as_typed = (nodes.math, nodes.math_block, nodes.FixedTextElement, nodes.literal, nodes.title, nodes.Invisible)
    for part in list(doctree.findall(nodes.Text)):
        pieces = _SYMBOL.split(part)
        if len(pieces) > 1 and not isinstance(part.parent, as_typed) and not _in_code(part):
            shown = [
                nodes.math("", _LATEX.get(piece, piece)) if place % 2 else nodes.Text(piece)
                for place, piece in enumerate(pieces)
                if piece
            ]
            at = part.parent.index(part)
            part.parent[at : at + 1] = shown


def _in_code(part: nodes.Text) -> bool:
    """Return whether the text is a piece of code, which the gallery cuts into its colours and links."""
    parent = part.parent
    while parent is not None and parent.tagname not in ("literal_block", "code_links_block"):
        parent = parent.parent
    return parent is not None


def with_flags(doctree: nodes.document) -> None:
    """Keep a command's flag in one piece, which a browser may break behind its two dashes."""
    for literal in doctree.findall(nodes.literal):
        pieces = re.split(r"(?<!\S)(--[\w-]+)", literal.astext())
        if len(pieces) > 1 and len(literal) == 1:
            literal.children = []
            for place, piece in enumerate(pieces):
                literal += nodes.inline("", piece, classes=["joined"]) if place % 2 else nodes.Text(piece)


def with_words(doctree: nodes.document) -> None:
    """Say behind a section's name, such as L1, what the row of that name in a table has in words."""
    rows = [[cell.astext() for cell in row.findall(nodes.entry)] for row in doctree.findall(nodes.row)]
    heads = next((row for row in rows if "in words" in row), [])
    words = {row[0]: row[heads.index("in words")] for row in rows if len(row) == len(heads)} if heads else {}
    for title in doctree.findall(nodes.title):
        if said := words.get(title.astext()):
            title += [nodes.Text(": "), nodes.inline("", said, classes=["words"])]


def with_verdicts(doctree: nodes.document) -> None:
    """Colour a verdict that stands in bold, beside its word."""
    for word in doctree.findall(nodes.strong):
        if found := _VERDICT.fullmatch(word.astext()):
            word["classes"] += ["verdict", "corrected" if found[2] else found[1].rpartition(" ")[2]]


def with_titles(doctree: nodes.document, titles: dict[str, nodes.title]) -> None:
    """Call a page by its title where a link calls it by its file."""
    pages = {page.rpartition("/")[2]: title.astext() for page, title in titles.items()}
    for link in doctree.findall(nodes.reference):
        if (title := pages.get(link.astext().rpartition("/")[2].removesuffix(".md"))) and link.astext().endswith(".md"):
            link.children = [nodes.Text(title)]


def with_captions(doctree: nodes.document) -> None:
    """Put a picture and the line in italics below it into one figure."""
    for parent in list(doctree.findall(nodes.Element)):
        at = 0
        while at + 1 < len(parent):
            picture, words = parent[at : at + 2]
            both = isinstance(picture, nodes.paragraph) and isinstance(words, nodes.paragraph)
            if (
                both
                and len(picture) == 1
                and isinstance(picture[0], nodes.image)
                and isinstance(words[0], nodes.emphasis)
            ):
                caption = nodes.caption("", "", *(child.deepcopy() for child in words))
                figure = nodes.figure("", picture[0].deepcopy(), caption, ids=[Path(picture[0]["uri"]).stem])
                parent[at : at + 2] = [figure]
            at += 1


def with_broken_commands(doctree: nodes.document) -> None:
    """Break a command that is longer than the column of text where a shell takes it: behind a backslash."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") != "console":
            continue
        lines: list[str] = []
        for line in block.astext().splitlines():
            label = _LABEL.match(lines[-1]) if lines and len(lines[-1]) > _PRINTED_COLUMNS else None
            if label and label[0].strip() and re.match(" *", line)[0] == " " * len(label[0]):
                lines[-1] += f" {line.lstrip()}"  # the value goes on here; it is broken anew below
                continue
            command = line.startswith("$ ") or (lines and lines[-1].endswith("\\"))
            while command and len(line) > CODE_COLUMNS and " --" in line[6:CODE_COLUMNS]:
                at = line.rindex(" --", 6, CODE_COLUMNS)
                lines.append(f"{line[:at]} \\")
                line = f"    {line[at + 1 :]}"
            lines.append(line)
        if any(len(line) > CODE_COLUMNS and len(re.findall(r"\S  +", line)) > _GAPS for line in lines):
            block["classes"].append("printed-table")
        else:
            lines = [part for line in lines for part in ([line] if line.startswith("$") else _hung(line))]
        if (text := "\n".join(lines)) != block.astext():
            block.replace_self(nodes.literal_block(text, text, **block.attributes))


def _hung(line: str) -> list[str]:
    """Break a printed line that is longer than the column, and set its rest below the value that it prints."""
    label = _LABEL.match(line)[0]
    indent = " " * (len(label) + (0 if label.strip() else 2))
    return textwrap.wrap(line, _PRINTED_COLUMNS, subsequent_indent=indent, break_on_hyphens=False) or [""]


def with_cells(doctree: nodes.document) -> None:
    """Keep intervals and short names on one line; where rows are wider than a phone, name each cell's column in it."""
    for table in doctree.findall(nodes.table):
        head, body = next(table.findall(nodes.thead), None), next(table.findall(nodes.tbody))
        rows = [[cell for cell in row if isinstance(cell, nodes.entry)] for row in body]
        if not rows or not head or len({len(row) for row in rows}) > 1:
            continue
        for part in list(table.findall(nodes.Text)):
            kept = _TOGETHER.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), part)
            kept = _POWER.sub("-\N{WORD JOINER}", kept)
            if kept != part and not isinstance(part.parent, nodes.math):
                part.parent.replace(part, nodes.Text(kept))
        texts = [[cell.astext() for cell in row] for row in rows]
        longest = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for row, words in zip(rows, texts, strict=True):
            for place, (cell, text) in enumerate(zip(row, words, strict=True)):
                if (place == 0 and max(len(text), longest[0] - 8) <= _NAME) or _DATE.fullmatch(text):
                    cell["classes"].append("whole")
        if sum(longest) > _DENSE:
            table["classes"].append("dense")
            if _least_width([head[0], *rows]) > _TIGHT:
                table["classes"].append("tight")
        if sum(longest) <= _CARD or len(longest) > 8:
            table["classes"].append("grid")
            continue
        table["classes"].append("cards")
        names = list(head[0].findall(nodes.entry))
        _name_cards([row[0] for row in rows], names[0].astext())
        for row in rows:
            for cell, name in zip(row[1:], names[1:], strict=True):
                if name.astext() and cell.astext():
                    parts = name[0].children if len(name) else []
                    label = nodes.inline("", "", *(part.deepcopy() for part in parts), classes=["column"])
                    cell.insert(0, label)
                elif not cell.astext():
                    cell["classes"].append("empty")


def _name_cards(firsts: list[nodes.entry], name: str) -> None:
    """Say on a phone of a number what it is, and for "..." at a cell's head what stands above it."""
    above = ""
    for cell in firsts:
        text = cell.astext()
        if text.startswith(("...", "…")):
            cell.insert(0, nodes.inline("", above, classes=["column", "above"]))
        else:
            above = text
            if name and re.fullmatch(r"[\d.]+", text):
                cell.insert(0, nodes.inline("", f"{name} =", classes=["column"]))


def _least_width(rows: list[Any]) -> int:
    """The characters of a table's columns at their narrowest, with two for the room between them."""
    columns = zip(*([cell for cell in row if isinstance(cell, nodes.entry)] for row in rows), strict=True)
    return sum(2 + max(map(_longest_piece, column)) for column in columns)


def _longest_piece(cell: nodes.entry) -> int:
    """The characters that a cell cannot break: a word, a code or what was kept together; of a formula a third."""
    whole = "whole" in cell["classes"]
    lengths = [0]
    for part in cell.findall(nodes.Text):
        if isinstance(part.parent, nodes.math):
            lengths.append(len(part) // 3)
        elif whole or isinstance(part.parent, nodes.literal):
            lengths.append(len(part))
        else:
            lengths += map(len, part.split(" "))
    return max(lengths)


def description(doctree: nodes.document) -> str:
    """The first paragraph of a page in at most 200 characters, for search engines and previews of links."""
    first = next(doctree.findall(nodes.paragraph), None)
    text = " ".join(first.astext().split()) if first else ""
    return text if len(text) <= 200 else text[:200].rpartition(" ")[0] + " ..."


@cache
def dates() -> dict[str, str]:
    """The day on which each file of the repository was last changed, by its path; none without a git checkout."""
    command = ["git", "log", "--format=%cs", "--name-only", "--no-renames"]
    try:
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    found: dict[str, str] = {}
    day = ""
    for line in said.splitlines():
        if re.fullmatch(r"\d{4}-\d\d-\d\d", line):
            day = line
        elif line:
            found.setdefault(line, day)
    return found


def numbers_of(page: str, version: str) -> str:
    """What stands below a page: the day of its numbers, and whose they are."""
    source = page if page.endswith(".md") else f"{page}.md"
    day = dates().get(source) or max(dates().values(), default="")
    return f"{day}, numbers of gradbounds {version}" if day else f"gradbounds {version}"


def named_heads(body: str) -> str:
    """Give a formula that is a column's whole head its letters as a name, which readers of headers need."""
    head = r'(<th class="head"><p>(?:<span[^>]*>)?<math)(.*?</math>)'
    return re.sub(head, lambda found: f'{found[1]} aria-label="{_letters(found[2])}"{found[2]}', body)


def _letters(formula: str) -> str:
    return re.sub(r"<[^>]*>", "", formula.partition(">")[2])


def with_links(body: str) -> str:
    """Let a click on a picture show its file, as large as it is: its SVG, where there is one."""

    def linked(found: re.Match[str]) -> str:
        drawing = re.sub(r"png$", "svg", found[3])
        file = drawing if (ROOT / "docs/figures" / Path(drawing).name).exists() else found[3]
        return f'{found[1]}<a href="{file}">{found[2]}</a>'

    return re.sub(r'(<figure[^>]*>\s*|(?=<img [^>]*sphx-glr-single-img))(<img [^>]*src="([^"]+)"[^>]*>)', linked, body)


def drawn_as_svg(*given: Any, **named: Any) -> Any:
    """Save the pictures of the gallery's scripts as SVG, which stays sharp at every size."""
    from sphinx_gallery.scrapers import matplotlib_scraper

    return matplotlib_scraper(*given, **named, format="svg")


def contents_list(body: str, toc: str) -> str:
    """Put a folded list of the sections below the title of a long page, for windows without room beside the text."""
    if toc.count("<li>") < 5:
        return body
    listed = f'<details class="contents-list"><summary>On this page</summary>{toc}</details>'
    return body.replace("</h1>", f"</h1>\n{listed}", 1)
