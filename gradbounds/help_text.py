"""A command's help as it is printed: lines no longer than the terminal, and the network's flags in groups."""

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator

from gradbounds.grid import FIELDS
from theory.stack.groups import group_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FLAG = re.compile(r"│ (?:-\w, )?--([a-z0-9-]+)")

_COMMAND = "command"

# Groups from which on a list of flags needs titles.
_MANY = 4

_WIDTH = 100

# As wide as any line: what a file or a pipe takes is never broken.
_ENDLESS = 2**20


class Captured(io.StringIO):
    """Text for a terminal, if stdout is one: what is printed here keeps its colours."""

    def __init__(self) -> None:
        super().__init__()
        self._stdout = sys.stdout

    def isatty(self) -> bool:
        """Whether stdout is a terminal."""
        return self._stdout.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of stdout, spelled as tyro looks for it."""
        return (getattr(self._stdout, "encoding", None) or "utf-8").lower()


def grouped(text: str) -> str:
    """The help of a command, a titled rule above each group of a network's flags, and its prose folded.

    A command with flags of few groups, such as widths and depths alone, keeps one list.
    """
    flags = [match[1] for line in text.splitlines() if (match := _FLAG.match(_COLOUR.sub("", line)))]
    titled = len({_title(flag) for flag in flags}) >= _MANY
    return "\n".join(_lines(text, titled=titled))


def _lines(text: str, *, titled: bool) -> Iterator[str]:
    group = _COMMAND
    for line in text.splitlines():
        plain = _COLOUR.sub("", line)
        if titled and (match := _FLAG.match(plain)) and _title(match[1]) != group:
            group = _title(match[1])
            yield f"├─ {group} ".ljust(len(plain) - 1, "─") + "┤"
        yield line if plain[:1] in tuple("╭│├╰") else folded(line)


def _title(flag: str) -> str:
    """Of the group that a flag belongs to: "network: feed forward" of `--ffn-ratio`."""
    field = flag.replace("-", "_")
    if field not in FIELDS:
        return _COMMAND
    return "network:" + re.sub(r"(?=[A-Z])", " ", group_of(field).__name__).lower()


def prose_width() -> int:
    """Letters of a line of prose: as many as the terminal has, and at most 100."""
    return min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)


def folded(text: str, *, indent: str = "", width: int | None = None) -> str:
    """Prose with its longer lines folded where stdout is a terminal, or COLUMNS says how wide it is.

    Args:
        text: lines, of which those that fit are left as they are.
        indent: of what follows a fold, beside the line's own.
        width: letters of a line, of the terminal if it is None.
    """
    width = width or shutil.get_terminal_size((_ENDLESS, 0)).columns
    lines = []
    for line in text.splitlines():
        margin = line[: len(line) - len(line.lstrip())]
        fits = len(_COLOUR.sub("", line)) <= width
        lines.append(
            line
            if fits
            else textwrap.fill(
                line, width, subsequent_indent=margin + indent, break_long_words=False, break_on_hyphens=False
            )
        )
    return "\n".join(lines)
