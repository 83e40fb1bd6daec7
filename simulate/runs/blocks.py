"""Read the Parquet files with the sampled networks of a run folder, and check that each network is there once.

The files must also be complete.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simulate.runs.parquet import open_parquet
from simulate.runs.tables import with_nulls
from theory.stack.quantities import QUANTITIES

_NAMES = re.compile(r"(\d{6,})-(?:[0-9a-f]{16}){1,2}\.parquet")
KEY = ["cell", "seed", "draw"]
"""The columns that identify a draw."""
_WORDS, _NUMBERS = ("cell", "engine", "device", "dtype", "text"), ("seed", "block", "draw")
# The names of squares and norms, which are at least 0; rounding may put a loss or an entropy slightly below 0.
_SIZES = {name for name in QUANTITIES if any(part in name for part in ("_sq", "energy", "norm"))}


def block_files(folder: Path) -> list[Path]:
    """Return the paths of a run's files of sampled networks, in the order in which they were saved.

    Raises:
        ValueError: a file's name is not one that a sweep gives; it may be a copy.
    """
    files = sorted(folder.glob("*.parquet"))
    if strange := [str(file) for file in files if not _NAMES.fullmatch(file.name)]:
        raise ValueError(
            f"run must hold only Parquet files that a sweep wrote, but {strange[0]!r}"
            f"{f' and {len(strange) - 1} more have' if len(strange) > 1 else ' has'} another name, perhaps a copy; "
            "move it away, because copied draws would count twice."
        )
    return files


def next_number(folder: Path) -> int:
    """Return the number of the next file to save in a folder of sampled networks."""
    numbers = [int(name[1]) for file in folder.glob("*.parquet") if (name := _NAMES.fullmatch(file.name))]
    return max(numbers, default=-1) + 1


def rows_of(file: Path, columns: list[str] | None) -> pa.Table:
    """Read a file of sampled networks, check its rows, and return them: one row for each network.

    Raises:
        TypeError: the rows are not draws: columns are missing, have other types or gaps; or the file has no rows.
        OSError: the file is damaged.
        ValueError: a number is impossible for a draw.
    """
    opened = open_parquet(file)
    about, schema = opened.metadata, opened.schema_arrow
    kinds = {name: schema.field(name).type for name in (*_WORDS, *_NUMBERS)}
    rows = opened.read(columns)
    gaps = [name for name in rows.column_names if name in kinds and rows[name].null_count]
    strange = any(pa.types.is_integer(kind) == (name in _WORDS) for name, kind in kinds.items())
    strange = strange or not all(_of_numbers(field.type) for field in schema if field.name in QUANTITIES)
    if gaps or strange or not about.num_rows or _without_loss(about):
        raise TypeError("these are no draws")
    _check_numbers(rows)
    return with_nulls(rows)


def _check_numbers(rows: pa.Table) -> None:
    """Check rows of draws for impossible numbers; lists are checked only if the depth was read with them.

    Raises:
        ValueError: a square or a norm is below 0, or a list does not have one number for each layer and step.
    """
    lists = [name for name in rows.column_names if pa.types.is_list(rows.schema.field(name).type)]
    for name in _SIZES & set(rows.column_names):
        if pc.any(pc.less(pc.list_flatten(rows[name]) if name in lists else rows[name], 0.0)).as_py():
            raise ValueError(f"{name} is below 0 in a draw, which no square or norm can be")
    if "depth" not in rows.column_names:
        return
    depth = rows["depth"].to_numpy()
    other = pc.fill_null(rows["encoder_depth"], 0).to_numpy() if "encoder_depth" in rows.column_names else 0
    steps = pc.list_value_length(rows["loss"]).to_numpy() if "loss" in lists else 1
    for name in lists:
        quantity = QUANTITIES.get(name)
        layers = np.where(other, other, depth) if quantity and quantity.of_encoder else depth
        # What training alone has besides may be of a layer or of the network.
        allowed = [steps * layers] if quantity and quantity.per_layer else [np.broadcast_to(steps, depth.shape)]
        allowed += [] if quantity else [steps * layers]
        lengths = pc.fill_null(pc.list_value_length(rows[name]), -1).to_numpy()
        if not np.logical_or.reduce([lengths == -1, *(lengths == count for count in allowed)]).all():
            raise ValueError(f"{name} does not have one number for each layer in every draw")


def check_whole_blocks(file: Path, rows: pa.Table, sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Check that a file has all networks of each of its blocks, and return the blocks.

    A block is given by cell name, root seed and index.

    Args:
        file: the file of the rows, for errors.
        rows: the columns cell, seed, block and draw, at least.
        sizes: number of draws in a block of each cell, by cell name; blocks of other cells are not checked.

    Raises:
        ValueError: a block lacks draws, or has additional ones.
    """
    draws = rows.group_by(["cell", "seed", "block"]).aggregate([("draw", each) for each in ("count", "min", "max")])
    names, seeds, blocks, counts, first, last = (draws[name].to_pylist() for name in draws.column_names)
    for name, block, *there in zip(names, blocks, counts, first, last, strict=True):
        size = sizes.get(name)
        if size is not None and there != [size, block * size, block * size + size - 1]:
            raise ValueError(
                f"run must hold whole blocks, but block {block} of cell {name} has {there[0]} draws from {there[1]} to "
                f"{there[2]} in {str(file)!r}, instead of {size} from {block * size} on; move the file away, and the "
                "same sweep samples its blocks again."
            )
    return list(zip(names, seeds, blocks, strict=True))


def _of_numbers(kind: pa.DataType) -> bool:
    """Return whether a column holds numbers, or a list of numbers for every layer or step."""
    return pa.types.is_floating(kind) or (pa.types.is_list(kind) and _of_numbers(kind.value_type))


def _without_loss(about: pq.FileMetaData) -> int:
    """Return the number of rows without a loss; every network has a loss, NaN if its numbers are too large."""
    groups = [about.row_group(k) for k in range(about.num_row_groups)]
    chunks = [group.column(k) for group in groups for k in range(group.num_columns)]
    losses = [chunk.statistics for chunk in chunks if chunk.path_in_schema == "loss"]
    return sum(known.null_count for known in losses if known is not None and known.has_null_count)


def tables_of(files: Sequence[Path], columns: list[str] | None) -> list[pa.Table]:
    """Read the rows of several files of sampled networks, one table for each file.

    Raises:
        ValueError: a file is damaged.
    """
    return [readable(lambda f=file: rows_of(f, columns), file) for file in files]


def check_distinct(files: Sequence[Path], tables: Sequence[pa.Table]) -> None:
    """Raise an error if a sampled network is stored twice, because copies make standard errors too small.

    Args:
        files: the files of draws.
        tables: the columns of `KEY`, at least, of each file.

    Raises:
        ValueError: two files hold the same draw, or one holds it twice.
    """
    if not tables:
        return
    rows = pa.concat_tables([table.select(KEY) for table in tables], promote_options="permissive")
    cells = rows["cell"].combine_chunks().dictionary_encode().indices
    keys = [column.to_numpy() for column in (cells, rows["seed"], rows["draw"])]
    order = np.lexsort(keys[::-1])  # stable: of equal draws the one that landed first comes first
    twice = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    if count := int(twice.sum()):
        place = np.repeat(np.arange(len(files)), [len(table) for table in tables])[order]
        at = int(twice.argmax())
        first, second = (str(files[number]) for number in place[at : at + 2])
        where = f"in {first!r} and again in {second!r}" if first != second else f"twice in {first!r}"
        raise ValueError(
            f"run must hold every draw once, but {count} are there twice, the first of them {where}; move the copy "
            "away, because its draws are not independent."
        )


def readable(read: Any, file: Path) -> Any:
    """Read a Parquet file with a given function, and turn every failure into one clear error.

    Raises:
        ValueError: the file is damaged, or was written by another program.
    """
    try:
        return read()
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        raise ValueError(
            f"run must hold whole Parquet files, but {str(file)!r} is damaged{reason}; move the file away, and the "
            "same sweep samples its blocks again."
        ) from error
