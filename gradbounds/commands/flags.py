"""How a flag is declared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

Flag = tyro.conf.arg
Positional = tyro.conf.Positional
Folder = Annotated[Path, Positional, Flag(name="run", help="run folder")]


def optional(about: str, metavar: str | None, default: str = "") -> Any:
    """A flag that may be left out; what happens then is said in words, not as None."""
    return Flag(help=about, metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "")


@dataclass(frozen=True, kw_only=True)
class WithJson:
    """The flag of commands that print tables."""

    json: Annotated[bool, Flag(help="print one JSON object instead of text; docs/runs.md")] = False
