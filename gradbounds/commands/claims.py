"""The flags of `gradbounds claims`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import Flag, Positional, WithJson

if TYPE_CHECKING:
    from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Claims(WithJson):
    """List statements of papers with the verdicts that were committed, or explain one of them.

    An explanation has what the statement assumes, its derivation, where it is tight, and what was measured.
    """

    claim: Annotated[str, Positional, Flag(name="claim", help="id of the claim to explain, such as T1")] = ""
    all: Annotated[bool, Flag(help="print every step and every row; requires a claim")] = False

    def run(self) -> "Result":
        """List the statements, or explain one.

        Raises:
            ValueError: there is no such claim, or `all` without one.
        """
        from gradbounds.actions.claims import explain, list_claims

        if self.all and not self.claim:
            raise ValueError("all requires a claim, as in gradbounds claims T1 --all.")
        return explain(self.claim, everything=self.all) if self.claim else list_claims()
