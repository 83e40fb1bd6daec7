"""Print text of unknown origin safely on a terminal: control characters become visible, and long messages are cut."""

import contextlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import IO, Any

# C0 and C1, which move the cursor or worse, what turns the direction of text around, and halves of characters.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHOWN = "\n\t"

_MOST = 2000
_END = 400


def plain(text: str) -> str:
    r"""Replace the control characters in a text by visible ones, except newlines and tabs.

    >>> plain("a\x1b[2Jb\n")
    'a\\u001b[2Jb\n'
    """
    return _CONTROLS.sub(lambda control: control[0] if control[0] in _SHOWN else f"\\u{ord(control[0]):04x}", text)


def one_line(message: str) -> str:
    r"""Return a message as one line of at most 2000 characters; a longer message is cut in the middle.

    >>> one_line("no such\n\x07file"), len(one_line("a" * 10**6))
    ('no such \\u0007file', 2000)
    """
    line = plain(re.sub(r"\s*[\r\n\t]\s*", " ", message.strip()))
    if len(line) <= _MOST:
        return line
    gap = f" ... ({len(line)} letters) ... "
    return line[: _MOST - _END - len(gap)] + gap + line[-_END:]


class _Stream:
    """An output stream that also works if the standard output or the standard error is closed."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream or io.StringIO()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class PlainText(_Stream):
    """An output stream that makes control characters visible."""

    def write(self, text: str) -> int:
        """Write a text with its control characters made visible."""
        self._stream.write(plain(text))
        return len(text)

    def isatty(self) -> bool:
        """Return False, so that libraries write no colours and do not move the cursor."""
        return False


class Unfailing(_Stream):
    """An output stream for unimportant messages: a message that cannot be written is dropped without an error."""

    def write(self, text: str) -> int:
        """Write a text, and drop it without an error if the stream cannot take it."""
        with contextlib.suppress(OSError, ValueError):  # of a stream that was closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write out the buffered text of the stream, and drop it without an error if the disk is full."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            write_no_more(self._stream)


def write_no_more(stream: IO[str]) -> None:
    """Discard the text that a stream has buffered, so that the interpreter does not try to write it when it exits."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format a table as text lines: a first column of text is aligned left, and all other columns are aligned right.

    >>> print(*table_lines(["layer", "norm"], [["1", "0.25"], ["12", "3"]]), sep=chr(10))
      layer  norm
          1  0.25
         12     3
    """
    table = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  " + "  ".join(
            cell.ljust(width) if not column and not cell.isdigit() else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in table
    ]  # fmt: skip
