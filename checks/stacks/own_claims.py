"""The registration of a user's own claims, each with a function that judges it."""

import math
from collections.abc import Callable, Sequence

from checks.verdict import Sentence, Setting, Subject, Verdict, sentence
from simulate import Samples
from theory import CLAIMS, Claim
from theory.stack.registry import Table, load_entry_points

Judge = Callable[[Sequence[Samples]], list[Verdict]]

_JUDGES: Table[Judge] = Table("claim", {})


def register_claim(claim: Claim, judge: Judge, *, version: str = "1") -> None:
    """Register a user's own claim and the function that judges it, for use by all commands about claims.

    Args:
        claim: the claim; only its type is checked.
        judge: function that gets all sampled networks with enough draws and returns verdicts on the claim, or [] if the
            samples cannot test it.
        version: version of the claim and its judge together.

    Raises:
        ValueError: the claim or judge has the wrong type, the id or version is invalid, or the id is taken.
    """
    if not isinstance(claim, Claim) or not callable(judge):
        raise ValueError(f"claim must be a Claim with a function that judges it, got {claim!r} and {judge!r}.")
    CLAIMS.register(claim.id, claim, version)
    _JUDGES.register(claim.id, judge, version)


def own_verdicts(cells: Sequence[Samples]) -> list[Verdict]:
    """Return the verdicts on the user's own claims from samples, in the order in which the claims were registered.

    A judge that raises an error, or returns something other than verdicts on its claim, gives one undecided verdict
    with the reason. The other verdicts are kept.
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
    """Return the verdicts without those on the user's own claims; the rest is stored in the repository."""
    return [verdict for verdict in verdicts if verdict.claim not in CLAIMS.versions]
