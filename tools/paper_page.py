"""`paper_checks.md`: one line for each claim, from the committed verdicts and the template in `tools/pages`.

`gradbounds claims ID --all` prints the rows of a claim.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from checks.experiment import PAPER_WIDTH
from checks.results import Results
from checks.verdict import DECIDING, Subject, Verdict, at_size, deciding, significant
from theory import CLAIMS, Stack, predict
from theory.paper.theorem1 import bound_value
from theory.stack import PAPER, TITLES

PAGE = "paper_checks.md"

_DIGITS = 3


def page(committed: Sequence[Results]) -> str:
    """Return the text of `paper_checks.md` for all committed results."""
    rows = [v for results in committed for v in results.verdicts]
    claims: list[dict[str, Any]] = []
    for claim in (claim for key, claim in CLAIMS.items() if key not in CLAIMS.versions):
        of_claim = _largest_first([v for v in rows if v.claim == claim.id])
        of_paper = [v for v in of_claim if not v.relaxed]
        untested = f" {claim.untested}" * bool(claim.untested) if of_claim else f", {claim.source}: {claim.statement}"
        claims.append({"claim": claim, "verdicts": of_claim, "of_paper": of_paper, "untested": untested})
    sizes = dict.fromkeys(v.size for each in claims for v in each["of_paper"])
    by_size = {size: {c["claim"].id: [v for v in c["of_paper"] if v.size == size] for c in claims} for size in sizes}
    return (
        _PAGES.get_template(f"{PAGE}.jinja")
        .render(
            claims=claims,
            commands=list(dict.fromkeys(shown_command(results.made_by) for results in committed)),
            in_short={size: _by_word(size, by_claim) for size, by_claim in sorted(by_size.items(), key=itemgetter(0))},
            factors=_factors([v for v in rows if v.claim == "T1" and not v.relaxed]),
            at_paper_width={TITLES[name]: significant(looseness(bound_stack(name, PAPER_WIDTH))) for name in PAPER},
        )
        .replace("||", "‖")
    )


def bound_stack(placement: str, width: int) -> Stack:
    """Return the paper's network of six layers, eight tokens and as many classes as coordinates."""
    return Stack(placement=placement, width=width, depth=6, tokens=8, vocab=width)


def looseness(stack: Stack) -> float:
    """Return Theorem 1's bound, with its tail bound of ‖W_emb‖₂, divided by the norm of large-width theory."""
    return float(bound_value(stack).value) / float(np.sqrt(predict(stack)["grad_sq_W2"][-1]))


def shown_command(command: str) -> str:
    """Return a command without the folders of texts, which belong to another machine."""
    return f"`{re.sub(r'(?<= )(?:[.]{0,2}/)[^ ]*/(?=[^ /]+)', '', command)}`"


def _largest_first(rows: Sequence[Verdict]) -> list[Verdict]:
    """Return rows of one kind together, in the order of the kinds, with the widest and deepest of each first."""
    kinds = list(dict.fromkeys(map(_kind, rows)))
    return sorted(rows, key=lambda v: (kinds.index(_kind(v)), -v.setting.largest("d"), -v.setting.largest("L")))


def _kind(v: Verdict) -> tuple[Subject, str]:
    """Return the subject of a row without its width and depth."""
    subject = v.subject.without(v.setting.held())
    return replace(subject, held=tuple(pair for pair in subject.held if pair[0] not in "dL")), v.relaxed


def _by_word(size: str, by_claim: Mapping[str, Sequence[Verdict]]) -> dict[str, list[str]]:
    """Return the claims of each verdict; a claim with several is listed at the one that decides.

    At another size than the paper's, a claim that fails in some rows and holds in others is "mixed".
    """
    claims: dict[str, list[str]] = {word: [] for word in ("fails", "mixed", *DECIDING)}
    for name, verdicts in by_claim.items():
        if verdicts:
            mixed = size and {"fails", "holds"} <= {v.verdict for v in verdicts}
            claims["mixed" if mixed else deciding(verdicts).verdict].append(name)
    return {word: names for word, names in claims.items() if names}


def _factors(loose: Sequence[Verdict]) -> str:
    """Return the range of the factors by which bounds are loose, or nothing."""
    factors = [v.loose for v in loose if v.loose is not None]
    ends = dict.fromkeys(f"x{significant(end)}" for end in (min(factors), max(factors))) if factors else {}
    return " to ".join(ends)


def _counted(verdicts: Sequence[Verdict]) -> str:
    """Return the words of several verdicts with their counts, and the range of factors for bounds that are loose."""
    sizes = list(dict.fromkeys(at_size(v) for v in verdicts))
    if len(sizes) > 1:
        return "; ".join(_counted([v for v in verdicts if at_size(v) == size]) for size in sizes)
    parts = []
    for word in DECIDING:
        if these := [v for v in verdicts if v.verdict == word]:
            words = f"**{word}**" + (f" by {factors}" if (factors := _factors(these)) else "")
            parts.append(words if len(these) == len(verdicts) else f"{words} in {len(these)}")
    return ", ".join(parts) + (f" of {len(verdicts)} rows" if len(parts) > 1 else "") + sizes[0]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _interval(ends: tuple[float, float]) -> str:
    return f"[{significant(ends[0], _DIGITS)}, {significant(ends[1], _DIGITS)}]"


_PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
    autoescape=False,  # noqa: S701
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
_PAGES.filters |= {
    "counted": _counted, "deciding": deciding, "row": _row, "number": significant, "at_size": at_size,
    "interval": _interval,
    # A link for each page that a text names by its path.
    "links": lambda text: re.sub(r"docs/\w+\.md", r"[\g<0>](\g<0>)", text),
}  # fmt: skip
