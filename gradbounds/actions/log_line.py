"""The first step of a training log: its loss, its gradient norm, and norms of single parameters."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MOST_BYTES = 2**20
"""Read of a log, of which the first step is wanted."""

LOSS = ("loss", "train loss", "training loss", "lm loss", "trl")
NORM = ("grad norm", "norm", "gnorm", "gradient norm", "total norm", "train grad norm")
_STEP = ("step", "iteration", "iter", "it", "global step", "train step", "s")
_NOT_TRAINED = ("val", "valid", "validation", "eval", "test")
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
_PAIR = re.compile(rf"([a-z][\w./]*(?:[ -][a-z][\w./]*)?)['\"]?\s*[:=]\s*({_NUMBER})", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PARAMETER = re.compile(r"(?:^|\.)\d+\.[a-z]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log's first step.

    Attributes:
        loss: of the step.
        norm: of its gradient; None where the log has none.
        step: its number; None where the log has none.
        parameters: norms of the gradients of single parameters, by their names.
    """

    loss: float
    norm: float | None = None
    step: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)


def read_log(path: str | Path) -> LogLine:
    """The first step of a log, of which the beginning is read.

    Args:
        path: JSON lines, CSV with a header, words and numbers as `loss: 11.0`, or lines of step, loss and norm.

    Raises:
        ValueError: the file cannot be read or is no text, has no loss, begins at a later step, or has a number that is
            not finite.
    """
    text = _COLOUR.sub("", _beginning(path))
    parameters: dict[str, float] = {}
    first: dict[str, float] = {}
    for record in _records(text):
        named = {_plain(name): value for name, value in record.items()}
        step = _of(named, _STEP)
        if first and (_of(named, LOSS) is not None or step not in (None, _of(first, _STEP))):
            break
        parameters |= {name: value for name, value in record.items() if _PARAMETER.search(name)}
        if not first and _of(named, LOSS) is not None:
            first = named
    loss, norm, step = (_of(first, names) for names in (LOSS, NORM, _STEP))
    if loss is None:
        raise ValueError(
            "logged must have a loss, as loss: 11.0, a column 'loss', or lines of step, loss and norm, got "
            f"{str(path)!r} without."
        )
    if step is not None and step not in (0, 1):
        raise ValueError(f"logged must begin at step 0 or 1, got step {step:g} first in {str(path)!r}.")
    numbers = {"loss": loss, "norm": norm} | parameters
    for name, value in numbers.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"logged must have positive finite numbers, got {name} {value:g} in {str(path)!r}.")
    return LogLine(loss, norm, None if step is None else int(step), parameters)


def _beginning(path: str | Path) -> str:
    """The whole lines at the beginning of a file.

    Raises:
        ValueError: it cannot be read, is empty or no text.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES)
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        why = getattr(error, "strerror", error)
        raise ValueError(f"logged must be a readable log, got {str(path)!r}: {why}.") from error
    if len(content) == _MOST_BYTES and b"\n" in content:
        content = content[: content.rindex(b"\n")]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.strip():
        what = "is empty" if not content.strip() else "is not UTF-8 text"
        raise ValueError(f"logged must be a log of text, and {str(path)!r} {what}.")
    return text


def _records(text: str) -> Iterator[dict[str, float]]:
    """Numbers by name, of one line after another."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    header: list[str] = []
    bare = False
    for number, line in enumerate(lines):
        cells = [cell.strip().strip("\"'") for cell in re.split(r"[,;\t]", line)]
        words = re.split(r"[,;\s]+", line)
        if line.startswith("{"):
            content = _object(line)
            yield dict(_pairs(line)) if content is None else content
        elif header:
            row = cells if len(cells) > 1 else words
            yield {name: float(cell) for name, cell in zip(header, row, strict=False) if _is_number(cell)}
        elif number == 0 and (named := [row for row in (cells, words) if len(row) > 1 and _has_loss(row)]):
            header = named[0]
        elif (number == 0 or bare) and all(map(_is_number, words)):
            bare = True
            names = ("step", "loss", "norm") if len(words) > 1 else ("loss",)
            yield dict(zip(names, map(float, words), strict=False))
        else:
            yield dict(_pairs(line))


def _has_loss(row: list[str]) -> bool:
    """Whether that is the head of a table with a column of losses."""
    names = [_plain(name) for name in row]
    return bool(set(names) & set(LOSS)) and not any(re.search(r"[:=|]", name) or _is_number(name) for name in row)


def _is_number(word: str) -> bool:
    return re.fullmatch(_NUMBER, word, re.IGNORECASE) is not None


def _object(line: str) -> dict[str, float] | None:
    """The numbers of a JSON object, those of objects in it by their own names; None of what is none."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None

    def numbers(inside: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        for name, value in inside.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield name, float(value)
            elif isinstance(value, dict):
                yield from numbers(value)

    return dict(numbers(content))


def _pairs(line: str) -> Iterator[tuple[str, float]]:
    """Words and the numbers behind them; of two words the second alone, where both are not known."""
    for name, number in _PAIR.findall(line):
        before, _, last = _plain(name).rpartition(" ")
        known = _plain(name) in (*LOSS, *NORM, *_STEP) or _PARAMETER.search(name) or before in _NOT_TRAINED
        yield (name if known else last or name), float(number)


def _plain(name: str) -> str:
    """A name in small letters, with one space between words."""
    return re.sub(r"[^a-z0-9.]+", " ", name.lower()).strip()


def _of(record: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """The number of the first of these names that a record has."""
    return next((record[name] for name in names if name in record), None)
