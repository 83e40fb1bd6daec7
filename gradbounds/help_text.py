"""A command's help as it is printed: lines no longer than the terminal."""

import io
import re
import shutil
import sys
import textwrap

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

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
        """The encoding of stdout, spelled as tyro expects it."""
        return (getattr(self._stdout, "encoding", None) or "utf-8").lower()


def folded_help(text: str) -> str:
    """The help of a command, its prose folded and its boxes as they are."""
    drawn = tuple("╭│╰")
    return "\n".join(
        line if _COLOUR.sub("", line)[:1] in drawn and line else folded(line) for line in text.splitlines()
    )


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
