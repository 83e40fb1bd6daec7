"""Claims of one's own, and the functions that judge them."""

import math
from collections.abc import Callable, Sequence

from checks.verdict import Sentence, Setting, Subject, Verdict, sentence
from simulate import Samples
from theory import CLAIMS, Claim
from theory.stack.registry import Table, load_entry_points

Judge = Callable[[Sequence[Samples]], list[Verdict]]

_JUDGES: Table[Judge] = Table("claim", {})


def register_claim(claim: Claim, judge: Judge, *, version: str = "1") -> None:
    """Make a claim known by its id, to `claims`, `verdicts`, and the commands `check` and `claims`.

    Args:
        claim: the statement; what it says of itself is shown, and its kind alone checked.
        judge: verdicts on it from samples: cells of enough draws, of every kind. It returns [] where they do not reach
            it.
        version: of the statement and its judge together.

    Raises:
        ValueError: the id or version cannot be one, or the id is taken.
    """
    if not isinstance(claim, Claim) or not callable(judge):
        raise ValueError(f"claim must be a Claim with a function that judges it, got {claim!r} and {judge!r}.")
    CLAIMS.register(claim.id, claim, version)
    _JUDGES.register(claim.id, judge, version)


def own_verdicts(cells: Sequence[Samples]) -> list[Verdict]:
    """What the judges of registered claims say of cells, in the order of registration.

    A judge that fails, or returns something else than verdicts on its claim, has one undecided row that says so: what
    else was sampled and judged is not lost.
    """
    load_entry_points()
    verdicts = []
    for name, judge in _JUDGES.items():
        try:
            rows = list(judge(cells))
        except Exception as error:  # somebody else's code: the claim's name says whose
            rows = [_unjudged(name, f"its judge failed with {type(error).__name__}: {error}")]
        if not all(isinstance(row, Verdict) and row.claim == name for row in rows):
            rows = [_unjudged(name, f"its judge must return a list of verdicts on it, and returned {rows!r}")]
        verdicts += rows
    return verdicts


def _unjudged(name: str, why: str) -> Verdict:
    return Verdict(
        claim=name,
        subject=Subject(quantity="could not be judged"),
        verdict="undecided",
        claimed=Sentence("-"),
        predicted=math.nan,
        measured=math.nan,
        interval=(math.nan, math.nan),
        agreement="undecided",
        setting=Setting(more="-"),
        note=sentence("{}", why),
    )


def without_own(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on the claims that are built in, which alone are committed."""
    return [verdict for verdict in verdicts if verdict.claim not in CLAIMS.versions]
