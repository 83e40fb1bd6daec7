"""How a flag is declared."""

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

Flag = tyro.conf.arg
Positional = tyro.conf.Positional
# The command line that runs: parsed, a flag with its default's value looks like one that was not given.
LINE: ContextVar[tuple[str, ...]] = ContextVar("LINE", default=())
Folder = Annotated[Path, Positional, Flag(name="run", help="run folder")]


def optional(about: str, metavar: str | None, default: str = "") -> Any:
    """A flag that may be left out; what happens then is said in words, not as None."""
    return Flag(help=about, metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "")


def given(names: Iterable[str]) -> list[str]:
    """Those of some flags, by the names of their fields, that stand on the command line, whatever their values."""
    words = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in LINE.get() if word[:2] == "--"}
    return [name for name in names if name in words]


@dataclass(frozen=True, kw_only=True)
class WithJson:
    """The flag of commands that print tables."""

    json: Annotated[bool, Flag(help="print one JSON object instead of text; docs/runs.md")] = False
