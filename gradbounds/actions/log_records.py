"""The records of a training log in JSON, CSV, TensorBoard events or lines of text, as dictionaries of numbers."""

import csv
import importlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradbounds.actions.log_names import PARAMETER, VALIDATION, is_clipped, is_squared, losses, norms, plain, step_of

_MOST = 2**20  # characters that are read of a log, of which the first step is wanted
_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|(?:nan|inf(?:inity)?)(?![a-z]))"
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
# A name followed by its number, which is no percentage, as of a progress bar `Steps: 1%`. It starts at the beginning
# of a word, which avoids a quadratic search.
_PAIR = re.compile(
    r"(?<![\w./])(?:_|\d+/)?([a-z][\w./]*(?:[ -][a-z][\w./]*)?)['\"]?"
    rf"(\s*[:=|]\s*(?:['\"]|\[\s*|(?:array|tensor)\()?|[ \t]+(?:tensor\()?)"
    rf"({_NUMBER})(?![\d.]*\s?%)(?:,(\d{{1,2}}|\d{{4,}})(?!\d|[,.]\d))?",
    re.IGNORECASE,
)  # fmt: skip
# Norms of groups of parameters, as `grad_norm={'0_default': 2.5, '1_fp32': 0.0}`.
_GROUPS = re.compile(r"(?<!\w)(\w*norm)['\"]?\s*[:=]\s*\{([^{}]*:\s*[\dni][^{}]*)\}", re.IGNORECASE)
# In a table, a number with a decimal comma or with points between thousands; and a number with a decimal point.
_START, _END = r"(?<![^;\t\"'\s])[-+]?", r"(?:e[-+]?\d+)?(?![^;\t\"'\s])"
_DECIMAL = re.compile(rf"{_START}(?:[1-9]\d{{0,2}}(?:\.\d{{3}})+(?:,\d+)?|\d*,\d+){_END}", re.IGNORECASE)
_POINT = re.compile(rf"{_START}(?:0?\.\d+|[\d,]*\d\.(?:\d{{1,2}}|\d{{4,}})|\d+,[\d,]+\.\d+){_END}", re.IGNORECASE)
_VALUE = re.compile(rf":\s*({_NUMBER})", re.IGNORECASE)
# Names of a table's or record's field that states the part of the data.
_SPLITS = {"split", "mode", "phase", "stage", "set", "subset", "type"}
# Last words of names whose meaning depends on the words before, as in `weight norm`.
_SEVERAL = {"loss", "norm", "scale", "step", "steps", "iteration", "iter", "it", "s"}
# The finished and the total steps: `[batch=1/4800]`, `1/2000 [00:01<` in a bar, `200/ 2983 batches`, `1it/9it`.
_PROGRESS = re.compile(
    # A count of steps is neither a count of epochs nor, as in `Train Epoch: 0 [8/10000 (0%)]`, of samples.
    r"(?<!poch )(?<!poch: )(?!(?<=poch: \d )\[[^]]*%)\[(?:\w+=)?\s*(\d+)\s*/\s*(\d+)(?![\d/])"
    r"|(?<!\d)(?<!poch )(\d+)/ *(\d+) (?:\[(?:\d+:|[=>.])|━|- \d+m?s\b|batches)|(?<!\d)(\d+) / (\d+) loss"
    r"|(?<![\d.])(\d+)(?:\.0*)?it(?:/\d| \[)"
)
# The text before the first record of a JSON list of records, or of the list in Trainer's state.
_HISTORY = re.compile(r"\s*(?=\[\s*\{\s*\"|\{\s*\")(?:\{.*?\"log_history\"\s*:\s*)?\[", re.DOTALL)
_BETWEEN = re.compile(r"[\s,]*")
# A training script at the beginning of its own log.
_CODE = re.compile(r"\A\s*(?:import \w|from [\w.]+ import ).*?^={20,}$", re.DOTALL | re.MULTILINE)
_TAGS = ("tag", "metric", "key")


def log_records(path: str | Path) -> Iterator[dict[str, float]]:
    """Yield the records at the beginning of a training log, each as a dictionary of numbers by name.

    Args:
        path: JSON lines, a JSON list of records or what has one as `log_history`, CSV with a header, words and numbers
            as `loss: 11.0`, lines of step, loss and norm, TensorBoard's events, or a CSV file of its page with a tag in
            the name; or a folder of the last two.

    Raises:
        ValueError: the log cannot be read or is not text, or a table has one name in two columns.
    """
    path = Path(path)
    is_folder = os.path.isdir(path)  # of a name that is too long as well
    if "tfevents" in path.name or is_folder and next(path.glob("*tfevents*"), None):
        return _by_step(_of_events(path))
    if is_folder or "-tag-" in path.stem:
        return _by_step(_of_tags(path))
    text = _CODE.sub("", re.sub(r"\x1b\[[0-9;]*m", "", _beginning(path)), count=1)  # without colours
    start, whole = _HISTORY.match(text), _object(text)
    if start is not None:
        return _of_list(text, start.end())
    return _of_lines(text, path) if whole is None else iter(_inside(json.loads(text), whole))


def _beginning(path: Path) -> str:
    """Return the complete lines at the beginning of a file.

    Raises:
        ValueError: the file cannot be read, is empty or is not text.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read(_MOST)
    except UnicodeDecodeError:
        text = "\0"
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        why = getattr(error, "strerror", error)
        raise ValueError(f"logged must be a readable log, got {str(path)!r}: {why}.") from error
    if "\0" in text or not text.strip():
        what = "is not UTF-8 text" if text.strip() else "is empty"
        raise ValueError(f"logged must be a log of text, and {str(path)!r} {what}.")
    return text[: text.rindex("\n")] if len(text) == _MOST and "\n" in text else text


def _of_events(path: Path) -> Iterator[tuple[float | None, str, float]]:
    """Yield step, tag and value from TensorBoard's event files.

    Raises:
        ValueError: nothing is installed that reads them.
    """
    try:
        frame = importlib.import_module("tbparse").SummaryReader(str(path)).scalars
    except ModuleNotFoundError:
        raise ValueError(
            f"logged must be text, and {str(path)!r} holds TensorBoard's events: install gradbounds[tensorboard], or "
            "tick 'Show data download links' on TensorBoard's page and give the folder of the CSV files."
        ) from None
    yield from frame.reindex(columns=["step", "tag", "value"]).itertuples(index=False, name=None)


def _of_tags(path: Path) -> Iterator[tuple[float | None, str, float]]:
    """Yield step, tag and value from CSV files that TensorBoard's page downloads: run-NAME-tag-TAG.csv.

    Raises:
        ValueError: there is no such file, or one has other columns.
    """
    files = sorted(path.glob("*.csv"))[:2000] if path.is_dir() else [path]
    if not files:
        raise ValueError(f"logged must be a log, or a folder of CSV files with a tag each, got {str(path)!r}.")
    for file in files:
        for record in _of_lines(_beginning(file), file):
            named = {plain(name): value for name, value in record.items()}
            if "value" not in named:
                raise ValueError(f"logged must have files with columns Step and Value in a folder, got {str(file)!r}.")
            yield named.get("step"), file.stem.rpartition("-tag-")[2], named["value"]


def _by_step(rows: Iterable[tuple[float | None, str, float]]) -> Iterator[dict[str, float]]:
    # Yield one record for every step from rows with one value each.
    steps: dict[float | None, dict[str, float]] = {}
    for step, tag, value in rows:
        steps.setdefault(step, {} if step is None else {"step": step}).setdefault(tag, value)
    yield from (steps[step] for step in sorted(steps, key=lambda step: -1.0 if step is None else step))


def _of_list(text: str, start: int) -> Iterator[dict[str, float]]:
    # Yield the JSON objects of a list, up to the first incomplete entry.
    decoder = json.JSONDecoder()
    while True:
        start = _BETWEEN.match(text, start).end()  # type: ignore[union-attr]  # which matches nothing as well
        try:
            record, start = decoder.raw_decode(text, start)
            yield _numbers(record) if isinstance(record, dict) else {}
        except (ValueError, RecursionError):
            return


def _object(text: str) -> dict[str, float] | None:
    # Return the numbers of a JSON object; None if the text is not one.
    try:
        return _numbers(json.loads(text)) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None


def _inside(content: Any, whole: dict[str, float]) -> list[dict[str, float]]:
    # Return the records of the outermost list with a loss in a JSON object; without one, all numbers as one record.
    values = [] if losses(whole) and step_of(whole, has_loss=True) is not None else [content]
    for value in values:
        records = [_numbers(each) for each in value if isinstance(each, dict)] if isinstance(value, list) else []
        if any(map(losses, records)):
            return records
        values.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else [])
    return [whole]


def _numbers(content: Mapping[str, Any]) -> dict[str, float]:
    # Return the numbers of a JSON object and of nested objects by their own names.
    #
    # An outer name that marks a norm as squared or clipped, or a validation, becomes a prefix of the inner names.
    numbers: dict[str, float] = {}
    for name, value in content.items():
        if isinstance(value, dict) and "_type" not in value:  # a histogram of W&B holds no norm
            marked = is_squared(name) or is_clipped(name) is not None or plain(name) in VALIDATION
            numbers |= {f"{name}/{inner}" if marked else inner: number for inner, number in _numbers(value).items()}
        else:
            word = str(value).partition("/")[0] if "step" in name else str(value)  # "1/2000"
            numbers |= _floats({name: word})
    return _marked(numbers, content)


def _marked(numbers: dict[str, float], fields: Mapping[str, Any]) -> dict[str, float]:
    # Return a record's numbers, with "val/" before each name if a field such as `split` states a validation.
    is_validation = any(str(fields[name]).lower() in VALIDATION for name in fields if plain(name) in _SPLITS)
    return {f"val/{name}": number for name, number in numbers.items()} if is_validation else numbers


def _of_lines(text: str, path: Path) -> Iterator[dict[str, float]]:
    """Yield records from lines: JSON objects, plain columns, a table from its header on, or names followed by numbers.

    Raises:
        ValueError: a table has one name in two columns.
    """
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    lines, is_plain = _with_points(lines, path), True
    for number, line in enumerate(lines):
        content, cells = _object(line), _cells(line)
        is_plain = is_plain and all(map(_is_number, cells))
        if content is not None:
            yield content
        elif is_plain:
            names = (
                ("step", "loss", "norm") if float(cells[0]) < 1e9 else ("time", path.name, "step")
            )  # MLflow's file begins with a time in seconds or milliseconds
            yield dict(zip(names[len(cells) == 1 :], map(float, cells), strict=False))
        elif _is_head(line, cells, lines[number + 1 : number + 2]):
            yield from _of_table(cells, lines[number + 1 :], path)
            return
        else:
            yield _of_words(line)


def _with_points(lines: list[str], path: Path) -> list[str]:
    """Return the lines of a table that semicolons or tabs separate, with decimal points and nothing between thousands.

    Raises:
        ValueError: semicolons separate the cells, and commas may be either or are mixed with decimal points.
    """
    separator = next((mark for mark in ";\t" if len({line.count(mark) for line in lines[:2]} - {0}) == 1), "")
    text = "\n".join(lines if separator and not re.search("[:={]", lines[0]) else [])
    commas = [number for number in _DECIMAL.findall(text) if "," in number]
    # Such a number may also have a comma between thousands.
    unclear = [number for number in commas if re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", number)]
    is_decimal, has_points = len(unclear) < len(commas), _POINT.search(text) is not None
    if separator == ";" and commas and is_decimal == has_points:
        raise ValueError(
            f"logged must have one decimal sign, got {(unclear or commas)[0]!r} in {str(path)!r}, which may be a "
            "decimal number or thousands: write decimal points."
        )
    if is_decimal and not has_points:
        return [_DECIMAL.sub(lambda cell: cell[0].replace(".", "").replace(",", "."), line) for line in lines]
    return list(map(_joined, lines)) if commas else lines


def _of_table(head: Sequence[str], lines: Sequence[str], path: Path) -> Iterator[dict[str, float]]:
    """Yield the records of a table's rows; if every row has one tag and one value, a record for every step.

    Raises:
        ValueError: there is one name in two columns.
    """
    rows = map(_cells, lines)
    words = [plain(name) for name in head]
    tag = next((words.index(name) for name in _TAGS if name in words), None)
    if tag is not None and "value" in words:
        named = (dict(zip(words, row, strict=False)) for row in rows if len(row) == len(head))
        yield from _by_step(
            (step_of(_floats(row), has_loss=True), row[words[tag]], float(row["value"]))
            for row in named
            if _is_number(row["value"])
        )
        return
    # A panel of W&B has "run - tag", with the least and the largest beside it.
    names = ["" if name.endswith(("__MIN", "__MAX")) else name.rpartition(" - ")[2] for name in head]
    if twice := sorted(name for name, count in Counter(names).items() if name and count > 1):
        raise ValueError(f"logged must contain one run, got several columns {twice[0]!r} in {str(path)!r}.")
    for row in rows:
        yield _marked(_floats(cells := dict(zip(names, row, strict=False))), cells)


def _cells(line: str) -> list[str]:
    # Return the cells of a table's line, separated by commas, semicolons, tabs, or else spaces.
    delimiter = max(",;\t", key=line.count)
    csv.field_size_limit(max(_MOST, csv.field_size_limit()))  # a line may hold a sample of text
    cells = next(csv.reader([line], delimiter=delimiter), []) if delimiter in line else line.split()
    return [cell.strip().strip("\"'") for cell in cells]


def _is_head(line: str, cells: Sequence[str], after: Sequence[str]) -> bool:
    # Return whether a line is a table's header: it names a loss, parameter or tag, and a row follows.
    row = list(map(_is_number, _cells("".join(after))))
    is_row = any(row) if re.search(r"[,;\t]", line) else all(row)
    if not is_row or re.search(r"[:=|{]", line) or any(map(_is_number, cells)):
        return False
    names = [name.rpartition(" - ")[2] for name in cells]
    is_tagged = "value" in map(plain, names) and bool({"step", *_TAGS} & set(map(plain, names)))
    return is_tagged or bool(losses(names)) or any(map(PARAMETER.search, names))


def _of_words(line: str) -> dict[str, float]:
    # Return the numbers that follow names in a line of text, and the step of a progress bar.
    if re.search(r"overflow.{0,100}(?:skipp|ignor)", line, re.IGNORECASE):
        return {"overflow": 1.0}
    record: dict[str, float] = {}
    line = _GROUPS.sub(lambda group: f"{group[1]}={math.hypot(*map(float, _VALUE.findall(group[2])))}", line)
    # Marian's cost is a loss per label where the number of labels follows it, and a sum over a sentence elsewhere.
    for name, between, number, decimals in _PAIR.findall(re.sub(r"\bCost (?=[\d.]+ \* )", "loss ", _joined(line))):
        known = [*losses([name]), *losses([name], of_validation=True), *norms([name])]
        last = re.split("[ -]", name)[-1]
        if not (known or last.lower() in _SEVERAL or "skipped" in name or PARAMETER.search(name)):
            name = last
        mark = between.strip()
        if known or mark != "|" and (mark or step_of({name: 0.0}, has_loss=True) is not None):
            record.setdefault(
                name, float(f"{number}.{decimals}" if known and decimals and number.isdigit() else number)
            )
    done = [float(count) for count in (_PROGRESS.findall(line) or [""])[-1] if count]
    if done and step_of(record, has_loss=True) is None:
        is_step = done[0] < done[-1] or len(done) == 1 or losses(record)  # and not the end of another bar
        record["step"] = done[0] if is_step else math.nan
    return record


def _floats(cells: Mapping[str, str]) -> dict[str, float]:
    return {name: float(_joined(cell)) for name, cell in cells.items() if _is_number(_joined(cell))}


def _joined(text: str) -> str:
    # Return a text with the commas between thousands removed.
    return _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)


def _is_number(word: str) -> bool:
    return re.fullmatch(_NUMBER, word, re.IGNORECASE) is not None
