"""The help text of commands, wrapped to the width of the terminal."""

import io
import re
import shutil
import sys
import textwrap

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_WIDTH = 100

# How a box begins and ends.
_BOX, _END = "╭─ ", "╰"

# As wide as any line: what a file or a pipe takes is never broken.
_ENDLESS = 2**20


class Captured(io.StringIO):
    """A text stream in memory that keeps colours: it claims to be a terminal if the standard output is one."""

    def __init__(self) -> None:
        super().__init__()
        self._stdout = sys.stdout

    def isatty(self) -> bool:
        """Return whether the standard output is a terminal."""
        return self._stdout.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The text encoding of the standard output, in lower case."""
        return (getattr(self._stdout, "encoding", None) or "utf-8").lower()


def folded_help(text: str) -> str:
    """Return the help of a command with its prose wrapped to the terminal's width and its boxes of flags unchanged."""
    drawn = tuple("╭│╰")
    return "\n".join(
        line if _COLOUR.sub("", line)[:1] in drawn and line else folded(line) for line in text.splitlines()
    )


def some_boxes(text: str, fields: bool) -> str:
    """Return the help of a command either without the flags of the network's fields, or with only these flags.

    In the list of commands, only the first paragraph of each command is kept.
    """
    kept, hidden, in_box, is_detail, lists_commands = list[str](), False, False, False, "•" in text
    for line in text.splitlines():
        if (plain := _COLOUR.sub("", line)).startswith(_BOX):
            in_box = plain.removeprefix(_BOX).lstrip("─- ").startswith("network-")
            hidden |= in_box
        begins = lists_commands and plain != "" and not plain.strip("│ ")
        is_detail = begins or (is_detail and not {*"•╰"} & {*plain})
        if in_box == fields and not is_detail:
            kept.append(line)
        in_box &= not plain.startswith(_END)
    if hidden and not fields:
        kept.append("The fields of the network are flags as well: --help-fields lists them.")
    return "\n".join(kept)


def prose_width() -> int:
    """Return the number of characters in a line of prose: the terminal's width, but at most 100."""
    return min(_WIDTH, shutil.get_terminal_size((_WIDTH, 0)).columns)


def folded(text: str, *, indent: str = "", width: int | None = None) -> str:
    """Wrap long lines of prose if the standard output is a terminal or the variable COLUMNS gives its width.

    Args:
        text: the lines; those that fit are unchanged.
        indent: additional indentation after a fold.
        width: number of characters in a line; None means the terminal's width.
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
