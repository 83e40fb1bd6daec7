"""`paper_checks.md`: every claim in one line, a section for each, and settings at the end.

It has the largest of the rows that say the same; `docs/claim_rows.md` has every row, and `docs/relaxed_claims.md` those
without one of the paper's assumptions.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from checks.experiment import PAPER_WIDTH
from checks.results import Results
from checks.verdict import DECIDING, Verdict, Word, at_size, deciding, significant
from theory import CLAIMS, Claim
from theory.stack import PAPER, TITLES
from tools.paper_sections import (
    Listed,
    bound_by_width,
    bound_stack,
    every_row,
    heading,
    interval_text,
    largest_first,
    largest_rows,
    looseness,
    row,
    section,
    setting_numbers,
    shown_command,
    with_links,
)

_TIGHT = """\
Is Theorem 1 tight? In the depth yes, in the width no. Its bound was kept in every draw, and is
{factors} times the norm,
which grows like sqrt(d) and not like d sqrt(ln d). That it is kept with the stated probability does not follow from
the assumptions ([L5](#l5)), nor for more than one position at once. [The letter](docs/letter.md) has what to state in
its place and every other answer in two pages; [the proof](docs/proof.md) has the two steps that lose the factor.
"""

_INTRODUCTION = """\
What Xiong et al. (2020), *On Layer Normalization in the Transformer Architecture* (arXiv:2002.04745v2), states, what
exact large-width theory predicts for the same number, and what randomly initialized networks did.

First every claim in one line, with the number that decides it and what is claimed of it. Then a section for each
claim: its statement, its rows, and what the numbers are. Where several settings agree, the widest is shown, with the
others listed behind its own; [docs/claim_rows.md](docs/claim_rows.md) has every row to four digits.
Intervals are 95%, and "+-" is a standard error; a second interval is by resampling draws, where it differs by a tenth.
Norms are root mean squares over draws. "(not judged)" behind theory's number: the width is too small for that, and
samples are further off than their error allows; "(undecided)": too few draws to tell. "-" is no number,
"..." what the part above begins with, and "p / q" in a note has p for the row marked a, q for b.
[docs/verdicts.md](docs/verdicts.md) says what decides a verdict, and how often one is wrong.
To check one yourself, `gradbounds claims F1` derives it, and the command of its setting measures it again
(`gradbounds verify` for most). This page is generated from the results in `checks/data` and never edited by hand.

## In short
"""

_RELAXATIONS = """# Claims without their assumptions

What becomes of the paper's claims when one assumption of their setting is switched off? Theory and samples say it of
each network, in a row of its own. The verdicts on the rows of each claim are these:

{counts}

A cell has the measured number with the half-width of its 95% interval, large-width theory's for the same networks in
parentheses, and whether the statement holds there. These are no verdicts on the paper, which says nothing of such
networks. G1 is a claim of this project, on such networks alone.

- In d, T1 holds where the last norm grows more slowly than d sqrt(ln d) over the same widths.
- In L, T1 holds where the recursion's exponent at great depth is the paper's, 0 for Post-LN and -1/2 for Pre-LN.
- Over the layers, F1 has Post-LN's norm grow by ln(3/2)/2 = 0.203 a layer; F2 has Pre-LN's not depend on the layer.
- In the paper's decoder, C3 has Post-LN's norm grow by more than a tenth a layer, also without cross-attention.
- Over the upper half of the layers, G1 has a closed form for each network, below 0 where gradients grow towards the
  input.

More: [relaxations.md](relaxations.md), [queries.md](queries.md), [layer_growth.md](layer_growth.md). The verdicts on
the paper itself are in [paper_checks.md](../paper_checks.md). This page is generated from the results in `checks/data`
and never edited by hand."""

_ROWS = """# Every row

What does each row behind a verdict say, in every setting? These are all rows of [paper_checks.md](../paper_checks.md),
which shows the largest of those that say the same, and explains the columns. This page is generated from the results in
`checks/data` and never edited by hand."""

_TEXTS = (
    "`train.de` and `train.en` are the training pairs of Multi30k (Elliott et al. 2016), the raw files of its task 1.\n"
)

# Where the rows of relaxations and all rows are, seen from paper_checks.md.
RELAXED_PAGE = "docs/relaxed_claims.md"
ROWS_PAGE = "docs/claim_rows.md"

# Significant digits of numbers, here and on the page of every row.
_DIGITS, _ALL_DIGITS = 3, 4

# So many parts of a claim that fail or are corrected are named in the summary; others are counted.
_NAMED = 2


def markdown(committed: Sequence[Results]) -> str:
    """The page.

    Args:
        committed: the results, of which those without one of the paper's assumptions are counted here and no more.
    """
    by_claim = _by_claim(committed)
    settings, commands = _numbered(committed, by_claim)
    lines = [
        "# Paper checks\n",
        *_tight([v for v, _ in by_claim["T1"]]),
        _INTRODUCTION,
        *_in_short({name: [v for v, _ in pairs] for name, pairs in by_claim.items()}),
        "\n## The claims\n",
        "| claim | source | in words | verdict | what decides |",
        "|-|-|-|-|-|",
        *(_summary(CLAIMS[name], [v for v, _ in largest_first(pairs)]) for name, pairs in by_claim.items()),
    ]
    for name, claim_rows in by_claim.items():
        if rows := largest_rows([(v, command) for v, command in claim_rows if not v.relaxed]):
            below = bound_by_width(committed) if name == "T1" else []
            lines += heading(CLAIMS[name]) + section(rows, settings, commands, digits=_DIGITS, below=below)
    lines += ["\n## What was not tested\n", *_untested(by_claim)]
    if counts := _relaxed_counts(committed):
        lines += ["\n## Relaxations\n", f"Without one of the paper's assumptions ([the numbers]({RELAXED_PAGE})):", ""]
        lines += counts
    lines += ["\n## Settings\n", f"Numbers and commands are those of [{ROWS_PAGE}]({ROWS_PAGE}#commands).\n"]
    lines += [_TEXTS, *settings.lines()]
    return _finished(lines)


def rows_markdown(committed: Sequence[Results]) -> str:
    """The page of every row but those without one of the paper's assumptions, as `markdown` has them else."""
    by_claim, lines = _by_claim(committed), [_ROWS]
    settings, commands = _numbered(committed, by_claim)
    for name, claim_rows in by_claim.items():
        if rows := every_row([(v, command) for v, command in claim_rows if not v.relaxed]):
            lines += [
                f"\n## {name}\n",
                f"{CLAIMS[name].in_words}.\n",
                *section(rows, settings, commands, digits=_ALL_DIGITS),
            ]
    lines += ["\n## Settings\n", "Of command 1 where none is named.\n", *settings.lines()]
    return _finished([*lines, "\n## Commands\n", _TEXTS, *commands.lines()])


def _by_claim(committed: Sequence[Results]) -> dict[str, list[tuple[Verdict, str]]]:
    """The verdicts of every built-in claim, with the commands behind them."""
    rows = [(v, results.made_by) for results in committed for v in results.verdicts]
    built_in = [name for name in CLAIMS if name not in CLAIMS.versions]
    return {name: [(v, command) for v, command in rows if v.claim == name] for name in built_in}


def _numbered(
    committed: Sequence[Results], by_claim: Mapping[str, Sequence[tuple[Verdict, str]]]
) -> tuple[Listed, Listed]:
    """Settings and commands of verdicts on the paper, which have one number on both pages of their rows.

    Settings are in the order in which the page of every row names them, and the default experiment's command is first.
    """
    settings, commands = Listed(), Listed()
    for results in committed:
        if any(not v.relaxed for v in results.verdicts):
            commands.number(shown_command(results.made_by))
    for claim_rows in by_claim.values():
        for shown in every_row([(v, command) for v, command in claim_rows if not v.relaxed]):
            setting_numbers(shown, settings, commands)
    return settings, commands


def _finished(lines: Sequence[str]) -> str:
    return "\n".join(lines).replace("||", "‖") + "\n"


def _tight(verdicts: Sequence[Verdict]) -> list[str]:
    """The answer that most readers come for, while Theorem 1 is kept and loose."""
    of_paper = [v for v in verdicts if not v.relaxed]
    loose = [v for v in of_paper if v.verdict == "holds, loose"]
    if not loose or any(v.verdict == "fails" for v in of_paper):
        return []
    ends = [end((v for v in loose if v.loose), key=lambda v: v.loose or 0.0) for end in (min, max)]
    return [_TIGHT.format(factors=" to ".join(f"{significant(v.loose or 0.0)}{_sizes_of(v)}" for v in ends))]


def _sizes_of(loose: Verdict) -> str:
    """The width and the vocabulary at which a bound is so loose: of the cell that its note names, or the widest."""
    if named := re.search(r"cell \(d = (\d+), L = \d+, V = (\d+)", str(loose.note)):
        return f" (d = {named[1]}, V = {named[2]})"
    vocab = dict(loose.subject.held).get("V", "d")
    return f" (d = {loose.setting.largest('d')}, V = {vocab})"


def _in_short(by_claim: Mapping[str, Sequence[Verdict]]) -> list[str]:
    """Which claims have which verdict, a line for each word, with the parts of those that hold elsewhere.

    Rows at another size than that of the claim's experiment stand in a line of their own, which tells all their words.
    """
    of_paper = {name: [v for v in every if not v.relaxed and not v.size] for name, every in by_claim.items()}
    lines = [
        f"- **{word}**: {', '.join(names)}"
        for word in DECIDING if (names := _with_word(word, of_paper, most=_NAMED))
    ]  # fmt: skip
    for size in dict.fromkeys(v.size for every in by_claim.values() for v in every if v.size):
        there = {name: [v for v in every if not v.relaxed and v.size == size] for name, every in by_claim.items()}
        told = [f"{word}: {', '.join(names)}" for word in DECIDING if (names := _with_word(word, there, most=0))]
        lines.append(f"- **tried at {size} alone**, which judges no experiment of the paper's size: {'; '.join(told)}")
    # Said only while theory has the measured numbers in every row.
    explained = [
        f"{CLAIMS[name].explains} ({name})" for name, every in by_claim.items()
        if CLAIMS[name].explains and every and all(v.agreement == "agrees" for v in every if not v.relaxed)
    ]  # fmt: skip
    lines += [f"- **explained**: {', '.join(explained)}"] if explained else []
    untested = [name for name, verdicts in by_claim.items() if not verdicts]
    claims = f"{', '.join(untested)}, and more" if untested else "parts of claims"
    return [*lines, f"- **not tested**: {claims} [below](#what-was-not-tested)"]


def _with_word(word: Word, by_claim: Mapping[str, Sequence[Verdict]], *, most: int) -> list[str]:
    """The claims that have a word in a row; of those that have others too with the parts, where these are `most`."""
    names = []
    for name, verdicts in by_claim.items():
        parts = [v.short_part for v in verdicts if v.verdict == word]
        if word == "holds" and most and len(parts) < len(verdicts):
            continue  # it stands with its other word
        if parts and word == "holds, loose":
            names.append(f"{name} by {_factors([v for v in verdicts if v.verdict == word])}" + _at_paper_width(name))
        elif parts:
            named = word in ("fails", "holds with a correction") and len(parts) <= most
            which = "; ".join(dict.fromkeys(parts)) if named else f"{len(parts)} of {len(verdicts)} rows"
            names.append(name if len(parts) == len(verdicts) else f"{name} ({which})")
    return names


def _at_paper_width(name: str) -> str:
    """By how much Theorem 1's bound is loose in the paper's width by theory, for T1 alone."""
    if name != "T1":
        return ""
    each = [
        f"x{significant(looseness(bound_stack(placement, PAPER_WIDTH)))} in {TITLES[placement]}" for placement in PAPER
    ]
    return f" (at d = V = {PAPER_WIDTH}, L = 6, n = 8, by theory: {' and '.join(each)})"


def _factors(loose: Sequence[Verdict]) -> str:
    """The range of what bounds are loose by, or nothing."""
    factors = [v.loose for v in loose if v.loose is not None]
    ends = dict.fromkeys(f"x{significant(end)}" for end in (min(factors), max(factors))) if factors else {}
    return " to ".join(ends)


def _untested(by_claim: Mapping[str, Sequence[object]]) -> list[str]:
    """What no row is about: whole claims, and what the claims' own words name."""
    lines: dict[str, list[str]] = {}
    for name, verdicts in by_claim.items():
        claim = CLAIMS[name]
        if not verdicts:
            lines[f", {claim.source}: {claim.statement}"] = [name]
        elif claim.untested:
            lines.setdefault(f" {claim.untested}", []).append(name)
    return [f"- {', '.join(names)}{text}." for text, names in lines.items()]


def relaxed_markdown(committed: Sequence[Results]) -> str:
    """The page of the rows without one of the paper's assumptions.

    Args:
        committed: the results, of which those of one command stay together in a table.
    """
    lines = [_RELAXATIONS.format(counts="\n".join(_relaxed_counts(committed)))]
    for results in committed:
        lines += _relaxed_table([v for v in results.verdicts if v.relaxed], shown_command(results.made_by).strip("`"))
    return _finished(lines)


def _relaxed_counts(committed: Sequence[Results]) -> list[str]:
    """Of every claim how many of its rows without one of the paper's assumptions have which word."""
    relaxed = [v for r in committed for v in r.verdicts if v.relaxed]
    by_claim = {name: [v for v in relaxed if v.claim == name] for name in CLAIMS if name not in CLAIMS.versions}
    return [f"- {name}: {_counted(verdicts)}." for name, verdicts in by_claim.items() if verdicts]


def _summary(claim: Claim, verdicts: Sequence[Verdict]) -> str:
    words = claim.in_words or claim.statement
    source = with_links(claim.source)
    if not verdicts:
        return row([claim.id, source, words, "**not tested here**", "-"])
    of_paper = [v for v in verdicts if not v.relaxed]
    link = f"#{claim.id.lower()}" if of_paper else RELAXED_PAGE
    cells = [f"[{claim.id}]({link})", source, words, _counted(of_paper or verdicts)]
    if not of_paper:
        return row([*cells, f"one row for each network, in [{RELAXED_PAGE}]({RELAXED_PAGE})"])
    decides = deciding(of_paper)
    return row([*cells, _what_decides(claim, decides)])


def _what_decides(claim: Claim, v: Verdict) -> str:
    """What the number behind a claim's word is, the number with its interval, and what is claimed of it."""
    noun = claim.measured_in(v.part)
    named = f"{noun} ({v.short_part})" if noun else v.short_part
    return f"{named}{at_size(v)}: {significant(v.measured)} {interval_text(v.interval, _DIGITS)}; claimed {v.claimed}"


def _counted(verdicts: Sequence[Verdict]) -> str:
    """The words of several verdicts with how many there are of each; of bounds the range of what they are loose by."""
    sizes = list(dict.fromkeys(at_size(v) for v in verdicts))
    if len(sizes) > 1:
        return "; ".join(_counted([v for v in verdicts if at_size(v) == size]) for size in sizes)
    parts = []
    for word in DECIDING:
        these = [v for v in verdicts if v.verdict == word]
        if not these:
            continue
        factors = _factors(these)
        words = f"**{word}**" + (f" by {factors}" if factors else "")
        parts.append(words if len(these) == len(verdicts) else f"{words} in {len(these)}")
    return ", ".join(parts) + (f" of {len(verdicts)} rows" if len(parts) > 1 else "") + sizes[0]


def _relaxed_table(verdicts: Sequence[Verdict], command: str) -> list[str]:
    """A line for each relaxation, with a column for each part of the claims."""
    if not verdicts:
        return []
    parts = list(dict.fromkeys(str(v.subject) for v in verdicts))
    by_place = {(v.relaxed, str(v.subject)): v for v in verdicts}
    lines = [f"\n```console\n$ {command}\n```\n", row(["relaxed", *parts]), "|---" * (len(parts) + 1) + "|"]
    for name in dict.fromkeys(v.relaxed for v in verdicts):
        lines.append(row([name, *(_number(by_place.get((name, part))) for part in parts)]))
    return lines


def _number(v: Verdict | None) -> str:
    if v is None:
        return ""
    return f"{v.measured:.3f} ± {(v.interval[1] - v.interval[0]) / 2:.3f} ({v.predicted:.3f}) {v.verdict}"


PAGES: dict[str, Callable[[Sequence[Results]], str]] = {
    "paper_checks.md": markdown,
    ROWS_PAGE: rows_markdown,
    RELAXED_PAGE: relaxed_markdown,
}
"""What renders each generated page of results, by its path in a checkout."""
