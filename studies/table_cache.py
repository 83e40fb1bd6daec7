"""A cache of tables in a folder, so that an interrupted command can continue."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from simulate.runs.files import write_whole


def cached(out: Path, key: dict[str, Any], version: int, make: Callable[[], pd.DataFrame]) -> tuple[pd.DataFrame, bool]:
    """Return a table from a folder of stored tables, or compute and store it; also return whether it was computed.

    Args:
        out: the folder.
        key: identification of the table. For a network, only the fields that differ from their defaults, so that
            adding a field later keeps stored tables valid.
        version: version number, which must increase when the same key means other numbers.
        make: function that computes the table.

    Raises:
        ValueError: the folder's table is damaged.
    """
    file = file_of(out, key, version)
    if file.is_file():
        return read_frame(file), False
    table = make()
    write_frame(file, table)
    return table, True


def write_frame(file: Path, frame: pd.DataFrame) -> None:
    """Write a data frame as a Parquet file with checksums, so that a reader never finds a partly written file.

    Raises:
        ValueError: the file cannot be written.
    """
    sealed = frame.copy(deep=False)
    sealed.attrs = {"digest": _digest(frame)}
    write_whole(file, sealed.to_parquet(index=False, write_page_checksum=True))


def read_frame(file: Path) -> pd.DataFrame:
    """Read a data frame from a Parquet file, and check its checksums if it has any.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        frame = pd.read_parquet(file, page_checksum_verification=True)
        whole = frame.attrs.pop("digest", None) in (None, _digest(frame))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException):
        whole = False
    if not whole:
        raise ValueError(f"out must contain complete tables, but {str(file)!r} is damaged; move it away.")
    return frame


def _digest(frame: pd.DataFrame) -> str:
    """Return a digest of column names and values; the checksums of pages do not cover column names."""
    return hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()


def file_of(out: Path, key: dict[str, Any], version: int) -> Path:
    """Return the path of the file that stores a table in a folder."""
    name = hashlib.sha256(json.dumps(key | {"version": version}, sort_keys=True).encode()).hexdigest()[:16]
    return out / "models" / f"{name}.parquet"
