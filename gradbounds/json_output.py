"""Print the result of a command as one JSON object, which contains its tables and numbers (`--json`).

Every object has `schema`, the version of the format, and `command`; docs/runs.md lists the other keys. Adding a key
does not raise the version; changing a key does. A missing number is null.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

SCHEMA = 2


def json_text(content: Mapping[str, Any], *, indent: int | None = 1) -> str:
    """Return an object as JSON text: a table becomes a list of rows, a dataclass an object, and NaN and infinity null.

    Args:
        content: the object's members.
        indent: indentation of lines; None gives a single line, which is much faster to write.
    """
    return json.dumps(_plain({"schema": SCHEMA, **content}), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert a value to types that JSON has."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "columns"):  # a table of pandas, which takes longer to load than a list of claims
        return [_plain(row) for row in value.to_dict("records")]
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(entry) for entry in value]
    return str(value)
