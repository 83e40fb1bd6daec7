"""Read JSON and TOML files from users, and report every fault in a file as a one-line `ValueError`."""

import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal["JSON", "TOML"]

_MOST_BYTES = 2**29


def parsed(content: bytes | str, kind: Kind, *, finite: bool = True) -> Any:
    """Parse a text as JSON or TOML, and reject repeated keys and, on request, numbers that are not finite.

    Args:
        content: the text.
        kind: "JSON" or "TOML".
        finite: whether every number must be finite.

    Raises:
        ValueError: it is not of its kind, not UTF-8, nested too deeply, has a number that is not finite and must be, or
            one key twice with different values.

    >>> parsed('{"n_embd": 64}', "JSON"), parsed("width = 8", "TOML")
    ({'n_embd': 64}, {'width': 8})
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        number = _finite if finite else float
        if kind == "TOML":
            return tomllib.loads(text, parse_float=number)
        return json.loads(text, parse_float=number, parse_constant=number, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary, and reject a key that occurs twice with different values.

    Python's JSON parser would silently keep the last value of a repeated key; the TOML parser rejects it already.

    Args:
        pairs: keys and values of the object in their order in the file.

    Raises:
        ValueError: a key occurs twice with different values.
    """
    content = dict(pairs)
    for key, value in pairs if len(content) < len(pairs) else ():
        if value != content[key]:
            raise ValueError(f"it has {key[:40]!r} twice, with different values")
    return content


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"it has a number that is not finite, {word[:40]}")
    return number


def read_document(path: str | Path, name: str, kind: Kind, *, finite: bool = True) -> Any:
    """Read a JSON or TOML file and return its content.

    Args:
        path: path of the file.
        name: the user's name for the file, such as the flag that names it; error messages begin with it.
        kind: "JSON" or "TOML".
        finite: whether every number must be finite.

    Raises:
        ValueError: the file cannot be read, or as `parsed`.
    """
    content = content_of(path, name, f"a readable {kind} file", most=_MOST_BYTES)
    try:
        return parsed(content, kind, finite=finite)
    except ValueError as error:
        raise ValueError(f"{name} must be {kind}, but {str(path)!r} is not: {error}.") from error


def content_of(path: str | Path, name: str, what: str = "a readable file", *, most: int | None = None) -> bytes:
    """Read a whole file and return its bytes.

    Args:
        path: path of the file; a device that never ends, such as /dev/zero, is refused.
        name: the user's name for the file, such as the flag that names it; error messages begin with it.
        what: the kind of file that is required, for the error message.
        most: the largest allowed size in bytes; None for no limit.

    Raises:
        ValueError: the file cannot be read, or is too large.
    """
    content = next(pieces_of(path, name, -1 if most is None else most + 1, what), b"")
    if most is not None and len(content) > most:
        raise ValueError(f"{name} must be {what} of at most {most // 2**20} MiB, got {str(path)!r}.")
    return content


def pieces_of(path: str | Path, name: str, size: int, what: str = "a readable file") -> Iterator[bytes]:
    """Read a file and yield its bytes in pieces of a given size.

    Args:
        path: path of the file; a device that never ends, such as /dev/zero, is refused.
        name: the user's name for the file; error messages begin with it.
        size: number of bytes in a piece; -1 for the whole file in one piece.
        what: the kind of file that is required, for the error message.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode) and str(path) != os.devnull:
                raise ValueError("it is a device")
            while piece := file.read(size):
                yield piece
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        raise ValueError(f"{name} must be {what}, got {str(path)!r}: {getattr(error, 'strerror', error)}.") from error
