"""`paper_checks.md`: every claim in one line, a section for each, and settings and commands at the end.

The rows without one of the paper's assumptions have a page of their own, `docs/relaxed_claims.md`.
"""

import re
from collections.abc import Sequence

import numpy as np

from checks.results import Results
from checks.verdict import DECIDING, Verdict, deciding, significant
from theory import CLAIMS, Claim

_INTRODUCTION = """# Paper checks

What Xiong et al. (2020), *On Layer Normalization in the Transformer Architecture* (arXiv:2002.04745v2), states, what
exact large-width theory predicts for the same number, and what randomly initialized networks did.

First every claim in one line, with the row that decides it. Then a section for each claim: its statement, its rows from
the largest setting to the smallest, and what the numbers are. Settings (S1, S2, ...) and commands (C1, C2, ...) are
listed once, at the end. Samples agree with theory where nothing else is said behind the number; "..." stands for the
beginning of the part above. [docs/verdicts.md](docs/verdicts.md) says what a verdict means. Intervals are 95%; norms
are root mean squares over draws; "-" is no number. This page is generated from the results in `checks/data` and never
edited by hand.
"""

_RELAXATIONS = """# Claims without their assumptions

What becomes of T1, F1 and F2 when an assumption of their setting is switched off, and G1, which is our own: the
measured number with the half-width of its 95% interval, large-width theory's for the same networks in parentheses, and
whether the statement holds there. These are no verdicts on the paper, which says nothing of such networks.

- In d, T1 holds where the last norm grows more slowly than d sqrt(ln d) over the same widths.
- In L, T1 holds where the recursion's exponent at great depth is the paper's, 0 for Post-LN and -1/2 for Pre-LN.
- Over the layers, F1 has Post-LN's norm grow by ln(3/2)/2 = 0.203 a layer; F2 has Pre-LN's not depend on the layer.
- Over the upper half of the layers, G1 has a closed form for each network, below 0 where gradients grow towards the
  input.

More: [relaxations.md](relaxations.md), [queries.md](queries.md), [layer_growth.md](layer_growth.md). The verdicts on
the paper itself are in [paper_checks.md](../paper_checks.md). This page is generated from the results in `checks/data`
and never edited by hand."""

# Of a beginning that is not said again in the next row.
_LONG = 30

# Where the rows of relaxations are, seen from paper_checks.md.
RELAXED_PAGE = "docs/relaxed_claims.md"


class _Listed:
    """Texts that are listed once, by numbers after a letter in the order in which they are asked for."""

    def __init__(self, letter: str) -> None:
        self._letter, self._texts = letter, dict[str, str]()

    def name(self, text: str) -> str:
        """The text's name."""
        return self._texts.setdefault(text, f"{self._letter}{len(self._texts) + 1}")

    def lines(self) -> list[str]:
        """A line for each text."""
        return [f"- **{name}**: {text}" for text, name in self._texts.items()]


def markdown(committed: Sequence[Results]) -> str:
    """The page.

    Args:
        committed: the results, of which those without one of the paper's assumptions are counted here and no more.
    """
    settings, commands = _Listed("S"), _Listed("C")
    rows = [(v, one.command) for one in committed for v in one.verdicts]
    built_in = [name for name in CLAIMS if name not in CLAIMS.versions]
    by_claim = {name: [(v, command) for v, command in rows if v.claim == name] for name in built_in}
    lines = [
        _INTRODUCTION,
        "## The claims",
        "",
        "| claim | source | in words | verdict | the row that decides |",
        "|---|---|---|---|---|",
        *(_summary(CLAIMS[name], [v for v, _ in _largest_first(found)]) for name, found in by_claim.items()),
    ]
    for name, found in by_claim.items():
        judged = [(v, command) for v, command in found if not v.relaxed]
        if judged:
            lines += _section(CLAIMS[name], judged, settings, commands)
    untested = [CLAIMS[name] for name, found in by_claim.items() if not found]
    lines += ["", "## What was not tested", ""]
    lines += [f"- {claim.id}, {claim.source}: {claim.statement}." for claim in untested]
    relaxed = [v for v, _ in rows if v.relaxed]
    if relaxed:
        names = [name for name in built_in if any(v.claim == name for v in relaxed)]
        lines += ["\n## Relaxations\n", f"Without one of the paper's assumptions ([the numbers]({RELAXED_PAGE})):", ""]
        lines += [f"- {name}: {_counted([v for v in relaxed if v.claim == name])}." for name in names]
    lines += ["", "## Settings", "", *settings.lines(), "", "## Commands", "", *commands.lines()]
    return "\n".join(lines).replace("||", "‖") + "\n"


def relaxed_markdown(committed: Sequence[Results]) -> str:
    """The page of the rows without one of the paper's assumptions.

    Args:
        committed: the results, of which those of one command stay together in a table.
    """
    lines = [_RELAXATIONS]
    for one in committed:
        lines += _relaxed_table([v for v in one.verdicts if v.relaxed], f"`{one.command}`")
    return "\n".join(lines).replace("||", "‖") + "\n"


def _summary(claim: Claim, verdicts: Sequence[Verdict]) -> str:
    words = claim.in_words or claim.statement
    cells = [f"[{claim.id}](#{_anchor(claim)})", claim.source, words]
    if not verdicts:
        return _row([claim.id, claim.source, words, "**not tested here**", "-"])
    of_paper = [v for v in verdicts if not v.relaxed]
    if not of_paper:
        cells[0] = f"[{claim.id}]({RELAXED_PAGE})"
        return _row([*cells, _counted(verdicts), f"one row for each network, in [{RELAXED_PAGE}]({RELAXED_PAGE})"])
    decides = deciding(of_paper)
    told = f"{decides.part}: {_measured(decides)}, claimed {decides.claimed}"
    told += f"; the bound is x{significant(decides.loose)} larger than the norm" if decides.loose is not None else ""
    return _row([*cells, _counted(of_paper), told])


def _counted(verdicts: Sequence[Verdict]) -> str:
    """The words of several verdicts with how many there are of each; of bounds the range of what they are loose by."""
    parts = []
    for word in DECIDING:
        these = [v for v in verdicts if v.verdict == word]
        if not these:
            continue
        factors = [v.loose for v in these if v.loose is not None]
        ends = dict.fromkeys(f"x{significant(end)}" for end in (min(factors), max(factors))) if factors else {}
        said = f"**{word}**" + (f" by {' to '.join(ends)}" if ends else "")
        parts.append(said if len(these) == len(verdicts) else f"{said} in {len(these)}")
    return ", ".join(parts) + (f" of {len(verdicts)} rows" if len(parts) > 1 else "")


def _section(claim: Claim, rows: Sequence[tuple[Verdict, str]], settings: _Listed, commands: _Listed) -> list[str]:
    """A claim's statement, its rows, and its notes, each once."""
    notes = _Listed("")
    lines = [
        f"\n## {claim.id}: {claim.source}\n",
        f"{claim.statement}. {claim.tight}\n",
        "| part | setting | paper | theory | samples | verdict | note |",
        "|---|---|---|---|---|---|---|",
    ]
    above = ""
    for v, command in _largest_first(rows):
        resampled = f" Interval by resampling draws: {_interval(v.bootstrap)}." if v.bootstrap else ""
        cells = [
            _after(above, v.part),
            settings.name(f"{_beside(v)} ({commands.name(f'`{command}`')})"),
            v.claimed,
            _theory(v),
            _measured(v),
            f"**{v.words}**",
            notes.name(_sentence(v.note) + resampled),
        ]
        lines.append(_row(cells))
        above = v.part
    return [*lines, "", *(re.sub(r"^- \*\*(\d+)\*\*:", r"\1.", line) for line in notes.lines())]


def _theory(v: Verdict) -> str:
    """What theory has, and how samples stand to it unless they agree."""
    if not np.isfinite(v.predicted):
        return "-"
    return f"{v.predicted:.4g}" if v.agreement == "agrees" else f"{v.predicted:.4g} ({v.agreement})"


def _beside(v: Verdict) -> str:
    """A setting without the beginning that the part's name has already."""
    words, named = v.setting.split(", "), set(v.part.split(", "))
    first = next((k for k, word in enumerate(words) if word not in named), 0)
    return ", ".join(words[first:])


def _after(above: str, part: str) -> str:
    """A part's name below another row's, without the long beginning that both have."""
    words, others = part.split(", "), above.split(", ")
    same = next((k for k, (a, b) in enumerate(zip(words, others, strict=False)) if a != b), 0)
    return f"... {', '.join(words[same:])}" if len(", ".join(words[:same])) >= _LONG else part


def _largest_first(rows: Sequence[tuple[Verdict, str]]) -> list[tuple[Verdict, str]]:
    """Rows of one kind together, in the order in which the kinds come; of each the widest and deepest first."""
    kinds = list(dict.fromkeys(_kind(v) for v, _ in rows))
    return sorted(rows, key=lambda row: (kinds.index(_kind(row[0])), *(-size for size in _sizes(row[0]))))


def _kind(v: Verdict) -> tuple[str, ...]:
    return tuple(re.split(r"[,(]", v.part)[:2])


def _sizes(v: Verdict) -> tuple[int, int]:
    """The largest width and depth that a verdict's setting names."""
    ends = (re.findall(rf"\b{name} = ([\d.]+)", v.setting) for name in "dL")
    width, depth = (max(map(int, re.findall(r"\d+", " ".join(found))), default=0) for found in ends)
    return width, depth


def _relaxed_table(verdicts: Sequence[Verdict], command: str) -> list[str]:
    """A line for each relaxation, with a column for each part of the claims."""
    if not verdicts:
        return []
    parts = list(dict.fromkeys(v.part.partition(":")[0] for v in verdicts))
    found = {(v.relaxed, v.part.partition(":")[0]): v for v in verdicts}
    lines = [f"\nFrom {command}:\n", _row(["relaxed", *parts]), "|---" * (len(parts) + 1) + "|"]
    for name in dict.fromkeys(v.relaxed for v in verdicts):
        lines.append(_row([name, *(_number(found.get((name, part))) for part in parts)]))
    return lines


def _number(v: Verdict | None) -> str:
    if v is None:
        return ""
    return f"{v.measured:.3f} ± {(v.interval[1] - v.interval[0]) / 2:.3f} ({v.predicted:.3f}) {v.verdict}"


def _measured(v: Verdict) -> str:
    return f"{v.measured:.4g} {_interval(v.interval)}"


def _interval(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.4g}, {interval[1]:.4g}]"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _anchor(claim: Claim) -> str:
    """The name by which GitHub links to a section's title."""
    return re.sub(r"[^\w\- ]", "", f"{claim.id}: {claim.source}".lower()).replace(" ", "-")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." if not text.startswith("||") else text + "."
