"""Counts of habits that make sentences hard to read: `python -m tests.helpers.prose_counts` lowers the table.

The table, `tests/data/prose_counts.json`, has the most that each page and each top folder of code may have.
CONTRIBUTING.md has the rules.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "data" / "prose_counts.json"
FOLDERS = ("theory", "simulate", "checks", "figures", "gradbounds", "studies", "tools", "bench")
LONG = 30

KINDS = {
    "begins with Of": r"^Of\b",
    "what a, the, it, its": r"\bwhat (?:an?|the|its?)\b",
    "beside": r"\bbeside\b",
    "behind": r"\bbehind\b",
    "unasked": r"\bunasked\b",
    "stands": r"\bstands?\b",
    "in the place of": r"\bin (?:the )?place of\b",
    "is no": r"\bis no\b",
}
_STRINGS = re.compile(r'"""(.*?)"""|"((?:[^"\\\n]|\\.)*)"', re.S)
_SUMMARY = re.compile(r'(?:\A|:\n) *"""(?:What|Of|Those|As|Likewise)\b')


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of Markdown or of a docstring, without code, formulas, tables and headings."""
    text = re.sub(r"<!--.*?-->|```.*?```|\$\$.*?\$\$", "", text, flags=re.S)
    text = re.sub(r"^[ ]*(?:\||#|!\[|>>>).*$", "", text, flags=re.M)
    text = re.sub(r"\$[^$\n]+\$|`[^`\n]*`|\]\([^)]*\)", "X", text)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |\n\s+(?=[\w*]+: )", text):
        yield from re.split(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z\[\"'(*_])", " ".join(paragraph.split()).strip("-* "))


def counts(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for sentence in sentences(text):
        for kind, pattern in KINDS.items():
            found[kind] += len(re.findall(pattern, sentence, re.I if kind != "begins with Of" else 0))
        found[f"over {LONG} words"] += len(sentence.split()) > LONG
    return found


def of_code(folder: Path) -> Counter[str]:
    """Return the counts of a folder's docstrings and messages, and of the summaries that begin with a bare word."""
    found: Counter[str] = Counter()
    for file in sorted(folder.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        for several, one in _STRINGS.findall(source):
            if (several or one).count(" ") > 2:
                found += counts(several or one)
        found["summary begins with What, Of, ..."] += len(_SUMMARY.findall(source))
    return found


def all_counts() -> dict[str, dict[str, int]]:
    """Return the counts of every page and of every top folder of code, without those that are 0."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {page.relative_to(ROOT).as_posix(): counts(page.read_text(encoding="utf-8")) for page in pages}
    found |= {folder: of_code(ROOT / folder) for folder in FOLDERS}
    return {name: {kind: number for kind, number in sorted(each.items()) if number} for name, each in found.items()}


if __name__ == "__main__":
    now = all_counts()
    most = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else now
    lowered = {
        name: {kind: min(number, most.get(name, {}).get(kind, 0)) for kind, number in each.items()}
        for name, each in now.items()
    }
    TABLE.write_text(json.dumps(lowered, indent=1) + "\n", encoding="utf-8")
