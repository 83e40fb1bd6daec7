"""Grids of networks: lists and ranges of values of fields, their product, and fields that vary together."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING, Any

from theory import Stack
from theory.stack import PAPER
from theory.stack.registry import nearest
from theory.stack.stack import OWN

if TYPE_CHECKING:
    import pandas as pd

FIELDS = {f.name: f for f in fields(Stack)}
TIED: dict[str, Mapping[str, Any]] = {
    "vocab": {"width": lambda width: width},
    "output_scale": {"sqrt-width": lambda width: width**0.5},
}
"""Words for values that follow the width, by field."""

OWN_WORD = "own"
"""The word, equal to None, for the placement's or initialization's own value of a field such as `branch_scale`."""

MOST_CELLS = 1_000_000
_RANGE = re.compile(r"([^:]+):([^:]+):([x+])([^:]+)")


def stacks(grid: Mapping[str, Any]) -> Iterator[Stack]:
    """Yield every network of a grid: all combinations of the fields' values, but fields under `zip` vary together.

    A field that is not given has its default, the paper's value, and `placement` has both.

    Args:
        grid: values by field, each one value or a list; a value may be a range such as "64:4096:x2" or "2:10:+2", or a
            word that ties a field to the width, or leaves it to its own. `zip` is a list of lists of fields.

    Raises:
        ValueError: an unknown field, a value that is none, lists of different lengths in a zip, or too many cells.
    """
    unknown = set(grid) - set(FIELDS) - {"zip"}
    if unknown:
        named = ", ".join(sorted(unknown))
        raise ValueError(f"grid must have fields {', '.join(FIELDS)} and zip, got {named}.{nearest(unknown, FIELDS)}")
    given: dict[str, Any] = {"placement": PAPER} | {name: grid[name] for name in FIELDS if name in grid}
    values = {name: field_values(name, raw) for name, raw in given.items()}
    groups = _groups(grid.get("zip", []), values)
    size = math.prod(len(values[group[0]]) for group in groups)
    if size > MOST_CELLS:
        raise ValueError(f"grid must have at most {MOST_CELLS} cells, got {size}; split it into several sweeps.")
    for choice in product(*(range(len(values[group[0]])) for group in groups)):
        chosen = {name: values[name][at] for group, at in zip(groups, choice, strict=True) for name in group}
        stack = {name: value for name, value in chosen.items() if value not in TIED.get(name, ())}
        width = stack.get("width", FIELDS["width"].default)
        yield Stack(**stack, **{name: TIED[name][value](width) for name, value in chosen.items() if name not in stack})


def field_name(given: str) -> str:
    """Return a field's name from its spelling on the command line, with hyphens or underscores."""
    name = given.strip().replace("-", "_")
    return name if name in FIELDS else given


def field_value(name: str, word: str) -> Any:
    """Parse one value of a field from the text of a flag; an integer may be written as 1e6.

    Raises:
        ValueError: the field has numbers, and it is none.
    """
    if isinstance(FIELDS[name].default, str):
        return word
    if name in OWN and word == OWN_WORD:
        return None
    try:
        number = float(word)
    except ValueError as error:
        kind = "an integer, such as 512 or 1e6" if FIELDS[name].type is int else "a number"
        words = f" or {OWN_WORD!r}" if name in OWN else ""
        raise ValueError(f"{name} must be {kind}{words}, got {word!r}.") from error
    return int(number) if FIELDS[name].type is int and number.is_integer() else number


def said(name: str, value: Any) -> Any:
    """Return the value of a field in the form that flags and files use.

    "own" means the value that the LayerNorm placement itself sets.
    """
    return OWN_WORD if name in OWN and (value is None or value != value) else value


def with_words(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table for printing, in which "own" marks values that the LayerNorm placement itself sets."""
    return table.assign(**{name: [said(name, value) for value in table[name]] for name in OWN if name in table})


def _groups(zips: Any, values: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    """Return the fields that have values, in groups that move together.

    Raises:
        ValueError: a zip names a field twice or without values, or its lists differ in length.
    """
    if not isinstance(zips, list | tuple) or not all(isinstance(group, list | tuple) for group in zips):
        raise ValueError(f'zip must be a list of lists of fields, such as [["width", "vocab"]], got {zips!r}.')
    named = [name for group in zips for name in group]
    for name in named:
        if not isinstance(name, str) or name not in values:
            raise ValueError(f"zip must name fields with values in the grid, got {name!r}.")
        if named.count(name) > 1:
            raise ValueError(f"zip must name a field once, got {name!r} twice.")
    for group in zips:
        counts = {name: len(values[name]) for name in group}
        if len(set(counts.values())) > 1:
            raise ValueError(f"zip must join fields with equally many values, got {counts}.")
    # The order of the fields, so that a zip changes which cells there are and nothing else.
    leaders = {group[0]: list(group) for group in zips if group}
    return [leaders.get(name, [name]) for name in values if name in leaders or name not in named]


def field_values(name: str, given: Any) -> list[Any]:
    """Return all values that a flag or a file gives for one field, with ranges written out as lists.

    Raises:
        ValueError: no value, or one that cannot be read.
    """
    entries = given if isinstance(given, list | tuple) else [given]
    if not entries:
        raise ValueError(f"{name} must have at least one value, got none.")
    return list(dict.fromkeys(value for entry in entries for value in _spelled_out(name, entry)))


def _spelled_out(name: str, given: Any) -> Iterator[Any]:
    if isinstance(FIELDS[name].default, str):
        if not isinstance(given, str):
            raise ValueError(f"{name} must be given as text, got {given!r}.")
        yield given
    elif isinstance(given, str) and given in TIED.get(name, ()):
        yield given
    elif name in OWN and (given is None or given == OWN_WORD):
        yield None
    elif isinstance(given, str) and (match := _RANGE.fullmatch(given.strip())):
        first, last, sign, step = match.groups()
        yield from _range(name, given, _number(name, first), _number(name, last), sign, _step(name, given, step))
    else:
        yield _number(name, given)


def _range(name: str, given: str, first: float, last: float, sign: str, step: float) -> Iterator[float]:
    grows = step > 1 if sign == "x" else step > 0
    if not (grows and first <= last and (first > 0 or sign == "+")):
        raise ValueError(f"{name} must have a range with increasing values, got {given!r}.")
    count = math.log(last / first) / math.log(step) if sign == "x" else (last - first) / step
    if count >= MOST_CELLS:
        raise ValueError(f"{name} must have a range of at most {MOST_CELLS} values, got {given!r}.")
    # Steps by 1.1 or 0.1 are not exact in binary: the last value counts as reached within rounding.
    for k in range(math.floor(count + 1e-9) + 1):
        value = first * step**k if sign == "x" else first + step * k
        yield round(value) if FIELDS[name].type is int else value


def _step(name: str, given: str, step: str) -> float:
    try:
        number = float(step)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must have a range with a finite step, such as 64:4096:x2 or 2:10:+2, got {given!r}.")
    return number


def _number(name: str, given: Any) -> Any:
    kind: Any = float if name in OWN else FIELDS[name].type
    try:
        # bool is an int, and 2.5 is no width: what Python would quietly convert is refused.
        if not isinstance(given, str | int | float) or isinstance(given, bool):
            raise ValueError
        if kind is int and isinstance(given, float):
            raise ValueError
        if kind is int and isinstance(given, str) and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d\d?", given):
            number = float(given)
            return int(number) if number.is_integer() else int(given)
        return kind(given)
    except ValueError:
        words = "".join(f", {word!r}" for word in (*TIED.get(name, ()), *((OWN_WORD,) if name in OWN else ())))
        noun = "integers" if kind is int else "numbers"
        raise ValueError(f"{name} must be {noun}, ranges like 64:4096:x2 or 2:10:+2{words}, got {given!r}.") from None
