"""Rows of finished training runs, as a file that is committed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from theory.stack.documents import read_document


def rows_file(rows: Sequence[Mapping[str, Any]], command: str) -> bytes:
    """Rows as JSON, a line each; what is not finite is null."""
    lines = ",\n".join(json.dumps(_no_nan(row)) for row in rows)
    return f'{{"command": {json.dumps(command)},\n"rows": [\n{lines}\n]}}\n'.encode()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file that `rows_file` made.

    Raises:
        ValueError: it is missing, or is no such file.
    """
    try:
        rows = read_document(path, "known", "JSON")["rows"]
        return [{name: _nan(value) for name, value in row.items()} for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"known must be a file of rows that `reproduce` wrote, got {str(path)!r}: {error}") from error


def rows_by_name(path: Path | None) -> dict[str, dict[str, Any]]:
    """Rows by their names, of a file that `rows_file` made or of all in a folder; none without a path."""
    if path is None:
        return {}
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return {str(row.get("name")): row for file in files for row in read_rows(file)}


def _no_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _no_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_no_nan(part) for part in value]
    return None if isinstance(value, float) and value - value != 0 else value


def _nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_nan(part) for part in value]
    return float("nan") if value is None else value
