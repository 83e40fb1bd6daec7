"""The kinds of fields of a network description, which check and convert their values.

The base class of field groups is here too.
"""

import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

import numpy as np

from theory.stack.documents import parsed
from theory.stack.registry import Table, nearest


@dataclass(frozen=True, kw_only=True, repr=False)
class Group:
    """A group of fields that describe a network; every value is checked when the group is created."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Reject unknown field names, and suggest the nearest known one.

        Raises:
            TypeError: a name is not a field of the group.
        """
        if unknown := given.keys() - cls.__dataclass_fields__.keys():
            raise TypeError(
                f"{cls.__name__} has no field {', '.join(sorted(unknown))}.{nearest(unknown, cls.__dataclass_fields__)}"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, f.metadata["check"](f.name, getattr(self, f.name)))
        self._check()

    def _check(self) -> None:
        """Raise an error if the values of several fields do not fit together."""

    def __repr__(self) -> str:
        """Return the class name with the fields that differ from their defaults."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.non_default().items())})"

    def non_default(self) -> dict[str, str | int | float | None]:
        """Return a dictionary of the fields that differ from their defaults, by name in the order of the fields.

        Equal groups give equal dictionaries.
        """
        return {
            f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default or f.default is MISSING
        }


def choice(default: str, allowed: Sequence[str], about: str) -> Any:
    """Make a network field whose value must be one of a fixed list of texts.

    Args:
        default: default value.
        allowed: all allowed values.
        about: help text of the field.
    """

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(
                f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.{nearest(str(value), allowed)}"
            )
        return value

    return field(default=default, metadata={"help": about, "check": check, "choices": tuple(allowed)})


def named(default: str, table: Table[Any], about: str) -> Any:
    """Make a network field whose value must be a name in a table, to which users may add names.

    Args:
        default: default value.
        table: table of the allowed names.
        about: help text of the field.
    """

    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{name} must be one of {', '.join(map(repr, table))}, got {value!r}.")
        table[value]  # whose error names those there are
        return value

    return field(default=default, metadata={"help": about, "check": check, "choices": (*table, "NAME")})


LARGEST = 1e100
"""The largest number that a field accepts, because formulas take powers of it."""

# The largest integer up to which floats are exact: formulas are evaluated in them.
LARGEST_INTEGER = 2**53


def integer(default: int, least: int, about: str, *, most: int = LARGEST_INTEGER) -> Any:
    """Make a network field for an integer between a smallest and a largest value.

    Args:
        default: default value.
        least: smallest allowed value.
        about: help text of the field.
        most: largest allowed value.
    """

    def check(name: str, value: object) -> int:
        try:
            number = least - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = least - 1
        if number < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")
        if number > most:
            raise ValueError(f"{name} must be at most {most}, got {value!r}.")
        return number

    return field(default=default, metadata={"help": about, "check": check})


def real(default: float, about: str, *, allowed: str, low: float = -LARGEST, high: float = LARGEST) -> Any:
    """Make a network field for a finite number between a lowest and a highest value.

    Args:
        default: default value.
        about: help text of the field.
        allowed: the allowed values in words, for the error message.
        low: smallest allowed value.
        high: largest allowed value.

    >>> real(1.0, "a scale", allowed="a number above 0", low=5e-324).metadata["check"]("scale", 2)
    2.0
    """

    def check(name: str, value: object) -> float:
        try:
            number = math.nan if isinstance(value, bool | str | bytes) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and low <= number <= high):
            raise ValueError(f"{name} must be {allowed}, got {value!r}.")
        return number

    return field(default=default, metadata={"help": about, "check": check})


def own_unless_given(about: str, *, allowed: str, low: float, high: float = LARGEST) -> Any:
    """Make a network field for a number, or None to keep the value of the placement or the initialization.

    Args:
        about: help text of the field.
        allowed: the allowed numbers in words, for the error message.
        low: smallest allowed number.
        high: largest allowed number.

    >>> own_unless_given("tau", allowed="at least 0", low=0).metadata["check"]("branch_scale", None) is None
    True
    """
    number = real(math.nan, about, allowed=f"{allowed}, or None (own in flags and files)", low=low, high=high).metadata[
        "check"
    ]

    def check(name: str, value: object) -> float | None:
        return None if value is None else number(name, value) + 0.0  # -0 and 0 are one number, and one key

    return field(default=None, metadata={"help": about, "check": check})


def matrix(about: str) -> Any:
    """Make a network field for a covariance matrix, stored as the JSON text of its rows; "" for none.

    Text is kept so that tables and files can hold the value. The matrix must be symmetric and positive semidefinite
    with a positive diagonal.

    Args:
        about: help text of the field.
    """
    example = '"[[1, 0.5], [0.5, 1]]"'
    form = f"a symmetric positive semidefinite matrix with a positive diagonal, as a list of rows such as {example}"
    return _rows(about, form, _is_covariance)


def zeros_and_ones(about: str) -> Any:
    """Make a network field for a square matrix of 0 and 1 with a 1 in every row, such as an attention mask.

    The matrix is stored as JSON text; "" for none.

    Args:
        about: help text of the field.
    """
    form = 'a square matrix of 0 and 1 with a 1 in every row, as a list of rows such as "[[1, 0], [1, 1]]"'
    return _rows(about, form, lambda rows: bool(np.isin(rows, (0, 1)).all() and rows.any(axis=1).all()), int)


def _is_covariance(rows: Any) -> bool:
    """Return whether a matrix is symmetric, with a positive diagonal and no negative eigenvalue beyond rounding."""
    if not np.isfinite(rows).all() or not np.array_equal(rows, rows.T) or (rows.diagonal() <= 0).any():
        return False
    eigenvalues = np.linalg.eigvalsh(rows)
    return bool(eigenvalues[0] >= -1e-12 * eigenvalues[-1])


def _rows(about: str, form: str, is_allowed: Callable[[Any], bool], kind: type = float) -> Any:
    """Make a network field for a square matrix, stored as the JSON text of its rows; "" for none."""

    def check(name: str, value: object) -> str:
        if isinstance(value, str) and not value:
            return value
        try:
            rows = np.array(parsed(value, "JSON") if isinstance(value, str) else value, dtype=float)
        except (TypeError, ValueError, OverflowError):
            rows = np.empty(0)
        if not (rows.ndim == 2 and rows.shape[0] == rows.shape[1] > 0 and is_allowed(rows)):
            raise ValueError(f"{name} must be {form}, got {value!r}.")
        return json.dumps(rows.astype(kind).tolist())

    return field(default="", metadata={"help": about, "check": check})
