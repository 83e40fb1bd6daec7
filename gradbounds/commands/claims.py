"""The command-line flags of `gradbounds claims`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradbounds.flags import Flag, Positional, WithJson, optional

if TYPE_CHECKING:
    from gradbounds.result import Result


@dataclass(frozen=True, kw_only=True)
class Claims(WithJson):
    """List statements of papers with the stored verdicts, or explain one statement.

    An explanation lists the assumptions, the derivation, the cases where the statement is tight, and the measurements.
    """

    claim: Annotated[
        str,
        Positional,
        Flag(
            name="claim",
            help="id of the claim to explain, such as T1",
            metavar="[CLAIM]",
            help_behavior_hint="(default: list all)",
        ),
    ] = ""
    figure: Annotated[
        Path | None, optional("file for a picture of the source's published points and the theory", "FILE.png")
    ] = None
    all: Annotated[bool, optional("print every step and every row; requires a claim", None)] = False

    def run(self) -> "Result":
        """List all statements of papers with their verdicts, or explain one statement.

        Raises:
            ValueError: the claim is unknown, none of its source's figures was read, or `all` is set without a claim.
        """
        from gradbounds.actions.claims import draw_published, explain, list_claims

        if self.figure:
            return draw_published(self.claim, self.figure)
        if self.all and not self.claim:
            raise ValueError("all requires a claim, as in gradbounds claims T1 --all.")
        return explain(self.claim, everything=self.all) if self.claim else list_claims()
