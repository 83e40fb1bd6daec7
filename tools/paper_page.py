"""`paper_checks.md` and the two pages of its rows: verdicts as data for the templates in `tools/pages`.

`paper_checks.md` has every claim in one line, and of the rows that say the same the largest; `docs/claim_rows.md` has
every row, and `docs/relaxed_claims.md` those without one of the paper's assumptions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from checks.experiment import PAPER_WIDTH
from checks.results import Results
from checks.verdict import DECIDING, Verdict, Word, at_size, deciding, significant
from theory import CLAIMS, Claim
from theory.stack import PAPER, TITLES
from tools.paper_sections import (
    bound_by_width,
    bound_stack,
    capital,
    every_row,
    interval_text,
    largest_first,
    largest_rows,
    looseness,
    row,
    section,
    shown_command,
    with_links,
)

# Significant digits of numbers, here and on the page of every row.
_DIGITS, _ALL_DIGITS = 3, 4

# So many parts of a claim that fail or are corrected are named in the summary; others are counted.
_NAMED = 2


def page(name: str, committed: Sequence[Results]) -> str:
    """A page by its path in a checkout, from all results that are committed."""
    rows = [(v, results.made_by) for results in committed for v in results.verdicts]
    settings, commands = dict[str, int](), dict[str, int]()
    # The default experiment's command is the first one, whichever claim comes first.
    for results in committed:
        if any(not v.relaxed for v in results.verdicts):
            commands.setdefault(shown_command(results.made_by), len(commands) + 1)
    claims = [_of_claim(claim, rows, settings, commands) for key, claim in CLAIMS.items() if key not in CLAIMS.versions]
    of_paper_size = {each["claim"].id: [v for v in each["of_paper"] if not v.size] for each in claims}
    sizes = dict.fromkeys(v.size for each in claims for v in each["verdicts"] if v.size)
    at_sizes = {
        size: {each["claim"].id: [v for v in each["of_paper"] if v.size == size] for each in claims} for size in sizes
    }
    return (
        _PAGES.get_template(f"{Path(name).name}.jinja")
        .render(
            claims=claims, committed=committed, settings=settings, commands=commands,
            in_short={word: _with_word(word, of_paper_size, most=_NAMED) for word in DECIDING},
            at_sizes={
                size: {word: _with_word(word, there, most=0) for word in DECIDING} for size, there in at_sizes.items()
            },
        )
        .replace("||", "‖")
    )  # fmt: skip


def _of_claim(
    claim: Claim, rows: Sequence[tuple[Verdict, str]], settings: dict[str, int], commands: dict[str, int]
) -> dict[str, Any]:
    """A claim with its verdicts and sections; settings and commands are numbered as the page of every row needs them.

    Both pages then have one number for a setting.
    """
    pairs = largest_first([(v, command) for v, command in rows if v.claim == claim.id])
    on_paper = [(v, command) for v, command in pairs if not v.relaxed]
    listed = {"settings": settings, "commands": commands}
    return {
        "claim": claim,
        "verdicts": [v for v, _ in pairs],
        "of_paper": [v for v, _ in on_paper],
        "relaxed": [v for v, _ in pairs if v.relaxed],
        "all_rows": section(every_row(on_paper), digits=_ALL_DIGITS, **listed),
        "largest_rows": section(largest_rows(on_paper), digits=_DIGITS, **listed),
        "untested": f" {claim.untested}" * bool(claim.untested) if pairs else f", {claim.source}: {claim.statement}",
    }


def _with_word(word: Word, by_claim: Mapping[str, Sequence[Verdict]], *, most: int) -> list[str]:
    """The claims that have a word in a row; of those that have others too with the parts, where these are `most`."""
    names = []
    for name, verdicts in by_claim.items():
        these = [v for v in verdicts if v.verdict == word]
        if not these or (word == "holds" and most and len(these) < len(verdicts)):
            continue  # what holds in some rows stands with its other word
        named = word in ("fails", "holds with a correction") and len(these) <= most
        which = (
            "; ".join(dict.fromkeys(v.short_part for v in these)) if named else f"{len(these)} of {len(verdicts)} rows"
        )
        if word == "holds, loose":
            names.append(f"{name} by {_factors(these)}" + _at_paper_width(name))
        else:
            names.append(name if len(these) == len(verdicts) else f"{name} ({which})")
    return names


def _at_paper_width(name: str) -> str:
    """By how much Theorem 1's bound is loose in the paper's width by theory, for T1 alone."""
    if name != "T1":
        return ""
    each = [
        f"x{significant(looseness(bound_stack(placement, PAPER_WIDTH)))} in {TITLES[placement]}" for placement in PAPER
    ]
    return f" (at d = V = {PAPER_WIDTH}, L = 6, n = 8, by theory: {' and '.join(each)})"


def _sizes_of(loose: Verdict) -> str:
    """The width and the vocabulary at which a bound is so loose: of the cell that its note names, or the widest."""
    if named := re.search(r"cell \(d = (\d+), L = \d+, V = (\d+)", str(loose.note)):
        return f" (d = {named[1]}, V = {named[2]})"
    vocab = dict(loose.subject.held).get("V", "d")
    return f" (d = {loose.setting.largest('d')}, V = {vocab})"


def _factors(loose: Sequence[Verdict]) -> str:
    """The range of what bounds are loose by, or nothing."""
    factors = [v.loose for v in loose if v.loose is not None]
    ends = dict.fromkeys(f"x{significant(end)}" for end in (min(factors), max(factors))) if factors else {}
    return " to ".join(ends)


def _counted(verdicts: Sequence[Verdict]) -> str:
    """The words of several verdicts with how many there are of each; of bounds the range of what they are loose by."""
    sizes = list(dict.fromkeys(at_size(v) for v in verdicts))
    if len(sizes) > 1:
        return "; ".join(_counted([v for v in verdicts if at_size(v) == size]) for size in sizes)
    parts = []
    for word in DECIDING:
        if these := [v for v in verdicts if v.verdict == word]:
            words = f"**{word}**" + (f" by {factors}" if (factors := _factors(these)) else "")
            parts.append(words if len(these) == len(verdicts) else f"{words} in {len(these)}")
    return ", ".join(parts) + (f" of {len(verdicts)} rows" if len(parts) > 1 else "") + sizes[0]


_PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
    autoescape=False,  # noqa: S701
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
_PAGES.filters |= {
    "capital": capital, "counted": _counted, "deciding": deciding, "links": with_links, "row": row,
    "command": shown_command, "number": significant, "sizes": _sizes_of,
    "at_size": at_size, "interval": partial(interval_text, digits=_DIGITS),
}  # fmt: skip
_PAGES.globals["bound_by_width"] = bound_by_width

PAGES: dict[str, Callable[[Sequence[Results]], str]] = {
    name: partial(page, name) for name in ("paper_checks.md", "docs/claim_rows.md", "docs/relaxed_claims.md")
}
"""What renders each generated page of results, by its path in a checkout."""
