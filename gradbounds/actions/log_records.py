"""What a training log says, record by record: JSON, CSV of loggers, words and numbers, or plain columns."""

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_MOST_BYTES = 2**20
"""Read of a log, of which the first step is wanted."""
_MOST_FILES = 2000
LOSS = (
    "loss", "train loss", "training loss", "lm loss", "trl", "loss step", "train loss step", "loss train",
    "loss train total", "train crossentropyloss",
)  # fmt: skip
NORM = (
    "grad norm", "norm", "gnorm", "gradient norm", "total norm", "train grad norm", "grad norm total",
    "train gradient norm", "grad 2.0 norm total", "l2 norm grad global", "optim total grad norm", "total grad norm",
)  # fmt: skip
STEP = ("step", "iteration", "iter", "it", "global step", "train step", "s")
"""Names as `plain` has them, of our own and of Trainer, Lightning, Composer, OLMo, torchtitan and Megatron-LM."""
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
PARAMETER = re.compile(
    r"(?:^|[./])(?:(?:layers?|blocks?|h)_?)?\d+[./][a-z]|(?:^|[./_])(?:layers?|blocks?|h)_?\d+_[a-z]"
    r"|\.(?:weight|bias)\b", re.IGNORECASE,
)  # fmt: skip
"""In the name of a parameter: the number of its layer, or an end that parameters have."""

_SQUARED = re.compile(
    r"(?:(?<=norm)|(?<=l2))(?:[_ .-]?sq(?:uared?)?(?![a-z0-9])|\^2|\*\*2)"
    r"|(?<![a-z])sq(?:uared?)?[_ -](?=(?:grad(?:ient)?[_ -])?(?:g?norm|l2))", re.IGNORECASE,
)  # fmt: skip
"""In the name of a norm: that it is squared."""
_CLIP = r"((?:pre|before)[_ -]?clip(?:ping|ped)?|unclipped)|(?:(?:post|after)[_ -]?clip(?:ping|ped)?|clipped)"
_CLIPPED = re.compile(rf"(?:^|[_ ./(-])(?:{_CLIP})(?![a-z0-9])\)?", re.IGNORECASE)
"""That it is after clipping, or, in a group, before."""

_NOT_TRAINED = ("val", "valid", "validation", "eval", "test")
_PAIR = re.compile(
    rf"(?<![\w./])(?:[^\Wa-z]|[./])*([a-z][\w./]*(?:[ -][a-z][\w./]*)?)['\"]?\s*[:=]\s*({NUMBER})", re.IGNORECASE
)
"""A name and its number, from the beginning of a word: a search from all its letters takes its length squared."""
_HISTORY = re.compile(r"\s*(?=\[\s*\{\s*\"|\{\s*\")(?:\{.*?\"log_history\"\s*:\s*)?\[", re.DOTALL)
"""Up to the first record of a JSON list of records, or of the one that Trainer's state has."""
_BETWEEN = re.compile(r"\s*,?\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TAGS = ("tag", "metric", "key")
_RANGE = ("__MIN", "__MAX")
"""Ends of columns that a panel of W&B adds."""


def log_records(path: str | Path) -> Iterator[dict[str, float]]:
    """Numbers by name, of one record after another; of a file the beginning.

    Args:
        path: JSON lines, a JSON list of records or what has one as `log_history`, CSV with a header, words and numbers
            as `loss: 11.0`, lines of step, loss and norm, or a folder of CSV files with a tag in each name.

    Raises:
        ValueError: it cannot be read or is no text, or a table has one name in two columns.
    """
    if Path(path).is_dir():
        return _by_step(_of_folder(Path(path)))
    text = _COLOUR.sub("", _beginning(path))
    return _of_lines(text, path) if (records := _of_json(text, path)) is None else records


def plain(name: str) -> str:
    """A name in small letters, with one space between words."""
    return re.sub(r"[^a-z0-9.]+", " ", name.lower()).strip()


def is_squared(name: str) -> bool:
    """Whether a name says that its number is the square of a norm.

    >>> is_squared("grad_norm^2"), is_squared("layers.3.up.weight/norm_sq"), is_squared("grad_norm")
    (True, True, False)
    """
    return _SQUARED.search(name) is not None


def is_clipped(name: str) -> bool | None:
    """Whether a name says that its number is from after clipping, or from before; None where it says neither.

    >>> is_clipped("grad_norm_clipped"), is_clipped("grad_norm/before_clipping"), is_clipped("grad_norm")
    (True, False, None)
    """
    word = _CLIPPED.search(name)
    return None if word is None else word[1] is None


def bare(name: str) -> str:
    """A name without what it says of squares and clipping.

    >>> bare("clipped_grad_norm"), bare("layers.3.up.weight/norm_sq")
    ('grad_norm', 'layers.3.up.weight/norm')
    """
    return _CLIPPED.sub("", _SQUARED.sub("", name)).lstrip("_ -")


def number_of(record: Mapping[str, float], names: Sequence[str]) -> float | None:
    """The number of the first of these names that a record has."""
    return next((record[name] for name in names if name in record), None)


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
    is_cut = len(content) == _MOST_BYTES
    if is_cut and b"\n" in content:
        content = content[: content.rindex(b"\n")]
    try:
        # Of one line that is cut the last character may be cut as well.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(content, final=not is_cut)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.strip():
        what = "is empty" if not content.strip() else "is not UTF-8 text"
        raise ValueError(f"logged must be a log of text, and {str(path)!r} {what}.")
    return text


def _of_folder(folder: Path) -> Iterator[tuple[float | None, str, float]]:
    """Step, tag and value, of files as TensorBoard's page downloads them: run-NAME-tag-TAG.csv.

    Raises:
        ValueError: there is none, or one has other columns.
    """
    files = sorted(folder.glob("*.csv"))[:_MOST_FILES]
    if not files:
        raise ValueError(f"logged must be a log, or a folder of CSV files with a tag each, got {str(folder)!r}.")
    for file in files:
        tag = file.stem.rpartition("-tag-")[2]
        for record in _of_lines(_beginning(file), file):
            named = {plain(name): value for name, value in record.items()}
            if "value" not in named:
                raise ValueError(f"logged must have files with columns Step and Value in a folder, got {str(file)!r}.")
            yield number_of(named, STEP), tag, named["value"]


def _by_step(rows: Iterable[tuple[float | None, str, float]]) -> Iterator[dict[str, float]]:
    """A record for every step, of rows with one value each."""
    steps: dict[float | None, dict[str, float]] = {}
    for step, tag, value in rows:
        steps.setdefault(step, {} if step is None else {"step": step}).setdefault(tag, value)
    yield from (steps[step] for step in sorted(steps, key=lambda step: -1.0 if step is None else step))


def _of_json(text: str, path: str | Path) -> Iterator[dict[str, float]] | None:
    """The records of a text that is one JSON list of them, has one as Trainer's state does, or is one JSON object.

    Of a list that is cut or still being written they are the ones that are whole. None of a text of another kind, such
    as JSON lines.

    Raises:
        ValueError: it begins as one JSON object and is not whole.
    """
    if (start := _HISTORY.match(text)) is not None:
        return _whole_records(text, start.end())
    first = text.strip().partition("\n")[0]
    if not re.match(r'\{\s*"', text.strip()) or _object(first) is not None:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if _PAIR.search(first):  # a line of names and numbers in braces
            return None
        raise ValueError(
            f"logged must be whole JSON where it begins as JSON, and {str(path)!r} is not: {error}; of a file of over "
            f"{_MOST_BYTES // 2**20} MiB the beginning is read, so write its records as JSON lines."
        ) from None
    return iter([_numbers(content)])


def _whole_records(text: str, start: int) -> Iterator[dict[str, float]]:
    """The JSON objects of a list, up to the first entry that is none or is not whole."""
    decoder = json.JSONDecoder()
    while True:
        start = _BETWEEN.match(text, start).end()  # type: ignore[union-attr]  # which matches nothing as well
        try:
            record, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield _numbers(record) if isinstance(record, dict) else {}


def _of_lines(text: str, path: str | Path) -> Iterator[dict[str, float]]:
    """Records of lines.

    Raises:
        ValueError: a table has one name in two columns.
    """
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    first = lines[0] if lines else ""
    head = next((row for row in (_cells(first), re.split(r"[,;\s]+", first)) if _is_head(row)), None)
    if head is None:
        yield from _of_words(lines)
        return
    several = len(_cells(first)) > 1
    rows = [_cells(line) if several else re.split(r"[,;\s]+", line) for line in lines[1:]]
    words = [plain(name) for name in head]
    tag = next((words.index(name) for name in _TAGS if name in words), None)
    if tag is not None and "value" in words:
        step, value = next((words.index(name) for name in STEP if name in words), None), words.index("value")
        yield from _by_step(
            (float(row[step]) if step is not None and _is_number(row[step]) else None, row[tag], float(row[value]))
            for row in rows
            if len(row) == len(head) and _is_number(row[value])
        )
        return
    # A panel of W&B has "run - tag", with the least and the largest beside it.
    names = ["" if name.endswith(_RANGE) else name.rpartition(" - ")[2] for name in head]
    if twice := sorted(name for name, count in Counter(names).items() if name and count > 1):
        raise ValueError(f"logged must be of one run, got several columns {twice[0]!r} in {str(path)!r}.")
    for row in rows:
        yield {name: float(cell) for name, cell in zip(names, row, strict=False) if name and _is_number(cell)}


def _cells(line: str) -> list[str]:
    """Those of a line of a table, of commas, semicolons or tabs."""
    delimiter = max(",;\t", key=line.count)
    csv.field_size_limit(max(_MOST_BYTES, csv.field_size_limit()))  # a line may hold a sample of text
    return [cell.strip().strip("\"'") for cell in next(csv.reader([line], delimiter=delimiter), [])]


def _is_head(row: Sequence[str]) -> bool:
    """Whether that is the head of a table: with a loss, a parameter, or values of tags or steps."""
    names = [plain(name) for name in row]
    if len(row) < 2 or any(re.search(r"[:=|{]", name) or _is_number(name) for name in row):
        return False
    ends = [name.rpartition(" - ")[2] for name in row]
    known = {plain(name) for name in ends} & {*LOSS, *NORM}
    return bool(known) or any(map(PARAMETER.search, ends)) or "value" in names and bool({*STEP, *_TAGS} & set(names))


def _of_words(lines: Sequence[str]) -> Iterator[dict[str, float]]:
    """Of JSON objects, plain columns, or names and numbers, a line each."""
    bare = False
    for number, line in enumerate(lines):
        words = re.split(r"[,;\s]+", line)
        if line.startswith("{"):
            content = _object(line)
            yield dict(_pairs(line)) if content is None else content
        elif (number == 0 or bare) and all(map(_is_number, words)):
            bare = True
            names = ("step", "loss", "norm") if len(words) > 1 else ("loss",)
            yield dict(zip(names, map(float, words), strict=False))
        else:
            yield dict(_pairs(line))


def _is_number(word: str) -> bool:
    return re.fullmatch(NUMBER, word, re.IGNORECASE) is not None


def _object(line: str) -> dict[str, float] | None:
    """The numbers of a JSON object; None of what is none."""
    try:
        return _numbers(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _numbers(content: Mapping[str, Any]) -> dict[str, float]:
    """Those of an object, and of objects in it by their own names, behind that of the object if it says how to read."""
    numbers: dict[str, float] = {}
    for name, value in content.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[name] = float(value)
        elif isinstance(value, dict) and "_type" not in value:  # a histogram of W&B holds no norm
            marked = is_squared(name) or is_clipped(name) is not None
            numbers |= {f"{name}/{inner}" if marked else inner: number for inner, number in _numbers(value).items()}
    return numbers


def _pairs(line: str) -> Iterator[tuple[str, float]]:
    """Words and the numbers behind them; of two words the second alone, where both are not known."""
    for name, number in _PAIR.findall(line):
        before, _, last = plain(name).rpartition(" ")
        known = (
            plain(name) in (*LOSS, *STEP)
            or plain(bare(name)) in NORM
            or PARAMETER.search(name)
            or before in _NOT_TRAINED
        )
        yield (name if known else last or name), float(number)
