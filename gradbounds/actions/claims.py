"""`gradbounds claims` and `gradbounds explain`: the statements, their derivations, and what was measured."""

import textwrap
from collections.abc import Iterable

import sympy as sp

from checks.results import committed_results
from checks.verdict import Verdict, number_or_dash
from theory import CLAIMS
from theory.stack.registry import load_entry_points

_WIDTH = 100


def list_claims() -> int:
    """Print every claim with the verdicts that are committed."""
    verdicts = _committed()
    load_entry_points()
    for claim in CLAIMS.values():
        words = list(dict.fromkeys(v.verdict for v in verdicts if v.claim == claim.id))
        print(f"{claim.id:4} {claim.kind:12} {claim.source}: {', '.join(words) or 'not tested here'}")
        print(textwrap.indent(textwrap.fill(claim.statement, _WIDTH - 5), " " * 5))
    print("\nMore about one: gradbounds explain T1")
    return 0


def explain(name: str) -> int:
    """Print one claim: statement, assumptions, derivation, where it is tight, and what was measured.

    Raises:
        ValueError: there is no such claim.
    """
    load_entry_points()
    claim = {key.lower(): claim for key, claim in CLAIMS.items()}.get(name.lower()) or CLAIMS[name]
    from theory.paper.derivations import DERIVATIONS

    print(f"{claim.id}  {claim.source} ({claim.kind})\n")
    _say("Statement", [claim.statement])
    _say("Formula", [claim.latex])
    _say("Setting", [claim.setting])
    _say("Assumes", claim.assumptions or ["nothing more"])
    underived = "nothing here" if claim.id in CLAIMS.versions else "nothing: it is an observation"
    derived = [(step.words, _shown(step.run())) for step in DERIVATIONS.get(claim.id, ())]
    _say("Derived", [f"{words}:\n    {result}" for words, result in derived] or [underived])
    _say("Tight?", [claim.tight])
    measured = [
        f"{v.part}: {v.words}\n    claimed {v.claimed}, theory {number_or_dash(v.predicted)}, samples "
        f"{v.measured:.4g} "
        f"[{v.interval[0]:.4g}, {v.interval[1]:.4g}]\n    {v.setting}"
        for v in _committed()
        if v.claim == claim.id
    ]
    _say("Measured", measured or ["not tested here"])
    return 0


def _committed() -> list[Verdict]:
    return [v for results in committed_results() for v in results.verdicts]


def _shown(result: object) -> str:
    """A result of a derivation on a line: tuples and lists by comma."""
    if isinstance(result, list | tuple):
        return ",  ".join(map(_shown, result))
    return f"{result:.4g}" if isinstance(result, float) else sp.sstr(result)


def _say(title: str, paragraphs: Iterable[str]) -> None:
    print(title)
    for paragraph in paragraphs:
        for line in paragraph.splitlines():
            print(textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False))
    print()
