"""The site: the same Markdown pages that a reader of the repository sees, an API reference, and a gallery.

The source folder is the repository's root, so that the links of the pages work in both places; `make docs` builds it
without a network. Formulas become MathML, which browsers draw themselves: no script is fetched.
"""

import os
import re
import sys
from html import escape
from pathlib import Path
from shutil import copy
from subprocess import PIPE, Popen

from latex2mathml.converter import convert
from sphinx.errors import ExtensionError
from sphinx.util import logging

logger = logging.getLogger(__name__)
# Read by numpy and torch when they are loaded: the other core makes the page of `explore` meanwhile.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import page_layout  # noqa: E402

import gradbounds  # noqa: E402

project = "gradbounds"
author = copyright = "The gradbounds developers"
version = release = gradbounds.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
extensions += ["sphinx_gallery.gen_gallery"]
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True  # of a console, the commands without what they print
root_doc = "README"
include_patterns = [
    "README.md",
    "paper_checks.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/gallery/*.rst",
]
exclude_patterns = [".*", "runs", "tests", "bench", "checks", "theory", "simulate", "figures", "gradbounds", "studies"]
exclude_patterns += ["docs/gallery/sg_execution_times.rst"]
nitpick_ignore_regex = [("py:.*", r".*")]  # types of other libraries have no page here

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_use_rtype = False

# The scripts of examples/ run when the site is built, each into a page with its picture; an error fails the build.
sphinx_gallery_conf = {
    "examples_dirs": ["examples"],
    "gallery_dirs": ["docs/gallery"],
    "filename_pattern": "",  # every script runs
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "capture_repr": (),  # a script prints what it says
    "within_subsection_order": "page_layout.ByDifficulty",
    "min_reported_time": 1e9,
    "default_thumb_file": str(ROOT / "docs" / "static" / "favicon.svg"),  # of a script without a picture
    "image_scrapers": ("page_layout.drawn_as_svg",),
    "matplotlib_animations": False,
}

html_theme = "furo"
html_title = "gradbounds"
html_static_path = ["static"]
templates_path = ["templates"]
html_sidebars = {"**": [f"sidebar/{part}.html" for part in (
    "brand", "search", "scroll-start", "explore", "navigation", "scroll-end",
)]}  # fmt: skip
html_favicon = "static/favicon.svg"
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
pygments_style = "default"
pygments_dark_style = "native"

# The order of the pages in the sidebar; tests/docs/test_docs.py holds every page to it except the technical report.
suppress_warnings = ["toc.not_included"]
CONTENTS = {
    "Start": ["docs/faq", "docs/gallery/index"],
    "Tutorials": ["docs/model_tutorial", "docs/module_tutorial", "docs/claim_tutorial"],
    "How-to": ["docs/configurations", "docs/training_logs", "docs/runs", "docs/extending"],
    "Reference": ["docs/setting", "docs/api", "docs/probe", "docs/verdicts", "paper_checks"],
    "Theory": ["docs/theory", "docs/theorem_1", "docs/attention", "docs/first_step", "docs/finite_width"],
    "Project": ["CHANGELOG", "CONTRIBUTING"],
}


def _with_contents(app, docname, source):
    """Append the table of contents to the first page, which a reader of the repository sees without it."""
    if docname != root_doc:
        return
    source[0] = source[0].replace("examples/GALLERY_HEADER.rst", "docs/gallery/index.rst")
    for caption, pages in CONTENTS.items():
        lines = "\n".join(pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n:caption: {caption}\n\n{lines}\n```\n"


def _visit_math(writer, node):
    """Write a formula as MathML.

    Raises:
        SkipNode: always; nothing is left to write.
    """
    from docutils.nodes import SkipNode, math

    display = "inline" if isinstance(node, math) else "block"
    formula = page_layout.mathml(convert(node.astext(), display=display))
    if "\\" in formula:
        logger.warning("a formula has a command that the page would show as it is: %s", formula, location=node)
    writer.body.append(formula if display == "inline" else f'<div class="formula" tabindex="0">{formula}</div>')
    raise SkipNode


def _signature(app, what, name, found, options, signature, returned):
    """Show of a class of fields that it takes them by name; each stands below it with its default."""
    return ("(**fields)", returned) if signature == "(*_, **given)" else None


def _property(app, what, name, found, options, lines):
    """Keep the sentence of a property whole, in which a colon would end its type."""
    if what == "property":
        lines[:] = [line.replace(": ", "; ") for line in lines]


def _with_layout(app, doctree, docname):
    """Change what Sphinx has read of a page, before it is written."""
    page_layout.with_titles(doctree, app.env.titles)
    page_layout.with_captions(doctree)
    page_layout.with_words(doctree)
    page_layout.with_symbols(doctree)
    page_layout.with_broken_commands(doctree)
    if not docname.endswith("/api"):
        page_layout.with_cells(doctree)
    page_layout.with_verdicts(doctree)
    page_layout.with_signs(doctree)
    page_layout.with_flags(doctree)


def _with_page_facts(app, pagename, templatename, context, doctree):
    """Add description, date and list of contents to a page's frame."""
    if doctree is None:
        return
    said = escape(page_layout.description(doctree), quote=True)
    context["metatags"] = context.get("metatags", "") + f'\n<meta name="description" content="{said}">'
    if pagename == root_doc:
        picture = re.compile(r'<img [^>]*gradient_over_layers\.png"[^>]*>')
        below = (
            '<a href="explore.html">Explore it live</a>: 26 published models, and networks around the paper\'s. '
            '<a href="explore.html#tour=1">A tour in five stops</a>: guess, then see.'
        )
        context["body"] = picture.sub(
            rf'<a href="_images/gradient_over_layers.svg">\g<0></a><br>{below}', context["body"]
        )
        without = 'Without a checkout, <a href="explore.html">explore</a> works here, in your browser.'
        command = r"(<p>Install from a checkout.*?--constraint.*?</code>)"
        context["body"] = re.sub(command, rf"\1 {without}", context["body"], count=1, flags=re.S)
        lecture = r'class="[^"]*download[^"]*" download="" href="_downloads/\w+/(exercises_\w+)\.py"'
        context["body"] = re.sub(lecture, r'href="docs/gallery/\1.html"', context["body"])
    stop = "third stop of the tour"
    context["body"] = context["body"].replace(stop, f'<a href="../explore.html#tour=3">{stop}</a>')
    context["body"] = context["body"].replace('<th class="head"><p></p></th>', "<td></td>")  # no head, and none is read
    context["last_updated"] = page_layout.numbers_of(pagename, version)
    context["body"] = context["body"].replace("<pre>", '<pre tabindex="0">')  # long lines scroll by the keyboard too
    grid = r'(?=<table class="[^"]*\bgrid\b)<table'  # wide tables scroll on a phone
    context["body"] = page_layout.named_heads(re.sub(grid, '<table tabindex="0"', context["body"]))
    context["body"] = page_layout.contents_list(page_layout.with_links(context["body"]), context.get("toc", ""))


def _start_page(app):
    """Make the page of `explore` as a file in a process beside this one."""
    if app.builder.format == "html":
        Path(app.outdir).mkdir(parents=True, exist_ok=True)
        app.explore = Popen(
            [sys.executable, "-m", "tools.site_page", str(Path(app.outdir) / "explore.html")], stderr=PIPE
        )


def _with_page(app, error):
    """Wait for that page, which the front page's picture of it leads to.

    Raises:
        ExtensionError: it could not be made.
    """
    if error is None and app.builder.format == "html":
        _, said = app.explore.communicate()
        if app.explore.returncode:
            raise ExtensionError(f"the page of explore was not made: {said.decode()}")


def _with_drawings(app, error):
    """Put the SVG of a picture next to it, for the link that `page_layout.with_links` makes."""
    if error is None and app.builder.format == "html":
        for file in (ROOT / "docs/figures").glob("*.svg"):
            copy(file, Path(app.outdir) / "_images")


def _with_index(app, error):
    """Send a reader of the folder to its first page."""
    (Path(app.srcdir) / "sg_execution_times.rst").unlink(missing_ok=True)  # the gallery's, beside the README
    if error is None and app.builder.format == "html":
        to = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html"><title>gradbounds</title>'
        (Path(app.outdir) / "index.html").write_text(to + f'<a href="{root_doc}.html">gradbounds</a>\n')


def _show(*_, **__):
    """Take the place of `pyplot.show` in a script: refuse a picture in which nothing is drawn.

    Raises:
        ValueError: an axis has no data, as where a name selects no rows.
    """
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        for axes in pyplot.figure(number).axes:
            if not (axes.dataLim.width >= 0 and axes.dataLim.height >= 0):
                raise ValueError(f"the picture has an empty panel: {axes.get_title()!r}")


def setup(app):
    """Connect what this file adds to Sphinx."""
    from matplotlib import pyplot

    pyplot.show = _show
    app.add_html_math_renderer("mathml", (_visit_math, None), (_visit_math, None))
    app.connect("source-read", _with_contents)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _property, priority=400)  # before napoleon reads it
    app.connect("doctree-resolved", _with_layout)
    app.connect("html-page-context", _with_page_facts)
    app.connect("builder-inited", _start_page)
    app.connect("build-finished", _with_index)
    app.connect("build-finished", _with_page)
    app.connect("build-finished", _with_drawings)
    return {"parallel_read_safe": True}
