"""Words of prose on every page, without tables, code, formulas and rendered parts: `python -m tools.page_words`.

A bare count of a file is led by its tables of results; what a reader reads is what stands between them.
"""

import re
from pathlib import Path

from tools.paper_page import PAGES

ROOT = Path(__file__).parents[1]
MOST = 33_000
"""What all pages together should have at most: three hours of reading at 180 words a minute."""


def prose_words(text: str) -> int:
    """Words of a page that are neither code, formula, table, picture nor rendered."""
    text = re.sub(r"<!-- begin: .*?<!-- end: .*?-->", "", text, flags=re.S)
    text = re.sub(r"```.*?```|:::\{.*?:::|\$\$.*?\$\$|\$[^$]+\$", "", text, flags=re.S)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "!["))]
    return len(re.findall(r"[A-Za-z][\w'-]*", re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))))


def written_pages() -> list[Path]:
    """README and the pages of docs that are written by hand."""
    return [
        ROOT / "README.md",
        *sorted(page for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in PAGES),
    ]


if __name__ == "__main__":
    counts = {page.name: prose_words(page.read_text(encoding="utf-8")) for page in written_pages()}
    for name, count in sorted(counts.items(), key=lambda page: -page[1]):
        print(f"{count:6,}  {name}")
    print(f"{sum(counts.values()):6,}  in all, of at most {MOST:,}")
