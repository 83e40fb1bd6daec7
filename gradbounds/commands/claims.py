"""`gradbounds claims` and `gradbounds explain`: their flags."""

from dataclasses import dataclass
from typing import Annotated

from gradbounds.flags import Flag, Positional, WithJson


@dataclass(frozen=True, kw_only=True)
class Claims(WithJson):
    """List the paper's statements, with the verdicts that were committed."""

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.claims import list_claims

        return list_claims()


@dataclass(frozen=True, kw_only=True)
class Explain(WithJson):
    """Explain one statement: what it assumes, its derivation, where it is tight, and what was measured."""

    claim: Annotated[str, Positional, Flag(name="claim", help="its id, such as T1; `gradbounds claims` lists them")]
    all: bool = False
    """Every step and every row, not a screen of them."""

    def run(self) -> int:
        """Exit code."""
        from gradbounds.actions.claims import explain

        return explain(self.claim, everything=self.all)
