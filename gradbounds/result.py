"""What a command found, delivered: said on the terminal, or put into the object of `--json`."""

from collections.abc import Sequence

from checks.verdict import Verdict
from gradbounds.help_text import folded
from gradbounds.json_output import tell

_INDENT = " " * 5


def say_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print verdicts, some lines each."""
    tell(verdicts=list(verdicts))
    for verdict in verdicts:
        head, *others = verdict.lines()
        print(folded("\n".join([head, *(_INDENT + line for line in others)]), indent=_INDENT))
