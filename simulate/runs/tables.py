"""Convert sampled networks between blocks, Arrow rows, `Samples` objects and data frames."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simulate.text import TextWindows
from theory.stack import Stack
from theory.stack.quantities import QUANTITIES
from theory.stack.registry import failures
from theory.stack.stack import NAMED, OWN

if TYPE_CHECKING:
    import pandas as pd

    from simulate.runs.cell import Cell

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The sampled quantities of one block of networks with one configuration, as arrays by name."""

    cell: "Cell"
    seed: int
    index: int
    values: Mapping[str, Floats]

    @property
    def draws(self) -> int:
        """The number of random networks in the block."""
        return len(self.values["loss"])


def block_rows(blocks: Sequence[Block]) -> pa.Table:
    """Convert blocks of sampled networks to an Arrow table, with one row for each network.

    Its columns are cell fields, seed, block, draw and quantities.
    """
    # Blocks with the same names and types of values become one table.
    layouts = groupby(blocks, lambda block: [(name, value.dtype) for name, value in block.values.items()])
    groups = [list(group) for _, group in layouts]
    quantities = pa.concat_tables([_quantity_columns(group) for group in groups], promote_options="permissive")
    draws = np.array([block.draws for block in blocks])
    cells = {block.cell.name: block.cell for block in blocks}
    constants = [cell_columns(cell) for cell in cells.values()]
    place = dict(zip(cells, range(len(cells)), strict=True))
    of_cell = _array(np.repeat([place[block.cell.name] for block in blocks], draws))
    columns = {name: _constants(name, [c[name] for c in constants]).take(of_cell) for name in constants[0]}
    columns |= {"seed": _array(np.repeat([block.seed for block in blocks], draws))}
    columns |= {"block": _array(np.repeat([block.index for block in blocks], draws))}
    # Draws count on from block to block.
    first = np.array([block.index * block.cell.draws_per_block for block in blocks])
    within = np.arange(draws.sum()) - np.repeat(np.cumsum(draws) - draws, draws)
    columns["draw"] = _array(np.repeat(first, draws) + within)
    return pa.table(columns | dict(zip(quantities.column_names, quantities.columns, strict=True)))


def _array(numbers: NDArray, known: NDArray[np.bool_] | None = None) -> pa.Array:
    """Convert numbers to an Arrow array, with null for unknown ones, without importing pandas.

    Importing pandas takes as long as sampling a short sweep.
    """
    bits = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [bits, pa.py_buffer(numbers)])


def _constants(name: str, values: Sequence[Any]) -> pa.Array:
    """Return the Arrow column of a field, or of another part of a cell's name, with one value per cell."""
    if name in OWN:
        numbers = np.array(values, dtype=float)  # None is NaN
        return _array(numbers, ~np.isnan(numbers))
    if not isinstance(values[0], str):
        return _array(np.array(values))
    words = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, words)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(words)))


_OWN_IS_NULL = {"own": "null"}


def marked(rows: pa.Table) -> pa.Table:
    """Mark rows, before they are written, as rows in which null means the LayerNorm placement's default.

    Such a field is `branch_scale`. The rows themselves are not changed.
    """
    return rows.replace_schema_metadata((rows.schema.metadata or {}) | _OWN_IS_NULL)


def with_nulls(rows: pa.Table) -> pa.Table:
    """Return a file's rows, with null for every field that is left at the LayerNorm placement's default.

    Older files have 0 in such fields, which becomes null.
    """
    if b"own" in (rows.schema.metadata or {}):
        return rows
    for name in set(OWN) & set(rows.column_names):
        given = pc.if_else(pc.equal(rows[name], 0.0), pa.scalar(None, rows[name].type), rows[name])
        rows = rows.set_column(rows.column_names.index(name), name, given)
    return rows


def cell_columns(cell: "Cell") -> dict[str, Any]:
    """Return the columns that identify the configuration of a sampled network in a table's row.

    They are its name, the fields of its Stack, and sampling options.
    """
    sampling = {"engine": cell.engine, "device": cell.device_kind, "dtype": cell.dtype}
    return {"cell": cell.name} | asdict(cell.stack) | sampling | {"text": cell.text.digest if cell.text else ""}


_UNSAID = {"cell": "", "engine": "auto", "device": "cpu", "dtype": "float32", "text": ""}


def cell_table(cell: "Cell") -> dict[str, Any]:
    """Describe a configuration as a table of a manifest, with the values that differ from the defaults.

    The defaults are those of `Stack` and `Cell`.
    """
    from simulate.runs.cell import cheaper_engine  # late: it loads torch

    columns = cell_columns(cell)
    if cell.engine == cheaper_engine(cell.stack):
        columns["engine"] = "auto"
    sampling = {name: columns[name] for name in _UNSAID if columns[name] != _UNSAID[name]}
    return {"placement": cell.stack.placement} | cell.stack.non_default() | sampling


def _quantity_columns(blocks: Sequence[Block]) -> pa.Table:
    columns: dict[str, Any] = {}
    for name in blocks[0].values:
        values = [block.values[name] for block in blocks]
        flat = _array(np.concatenate([value.ravel() for value in values]))
        if values[0].ndim == 2:
            lengths = np.repeat([value.shape[1] for value in values], [len(value) for value in values])
            flat = pa.ListArray.from_arrays(_array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)), flat)
        columns[name] = flat
    return pa.table(columns)


def cell_of(row: Mapping[str, Any], windows: Callable[[str, Stack], TextWindows]) -> "Cell":
    """Return the configuration of a table's row; a field that the file lacks has its default value.

    Raises:
        ValueError: this process cannot describe the cell: it has a field from a later version, or a name that is not
            registered in this process, or not in that version.
    """
    for name, table in NAMED.items():
        if row.get(name) is not None and not table.knows(row[name]):
            raise ValueError(
                f"run must hold cells with known names, but cell {row['cell']} has {name} {row[name]!r}, which is not "
                f"registered here: import or install the module that registers it.{failures()}"
            )
    stack = Stack(**{f.name: row[f.name] for f in fields(Stack) if row.get(f.name) is not None})
    text = windows(row["text"], stack) if row["text"] else None
    from simulate.runs.cell import Cell  # late: it loads torch

    cell = Cell(stack, row["engine"], row["device"], row["dtype"], text)
    if cell.name != row["cell"] and stack.versions:
        here = " and ".join(f"{name} {getattr(stack, name)!r} ({version})" for name, version in stack.versions.items())
        raise ValueError(
            f"run must hold cells of the registered version, but cell {row['cell']} has another version than "
            f"{here}, or is from a later gradbounds."
        )
    if cell.name != row["cell"]:
        raise ValueError(
            f"run must hold cells that this version of gradbounds can describe, but cell {row['cell']} ({stack}) has "
            "other settings; read it with the version that its manifest.toml names."
        )
    return cell


def quantity_arrays(rows: pa.Table, starts: Sequence[int], stacks: Sequence[Stack]) -> list[dict[str, Floats]]:
    """Return the quantities of several configurations from one table, as arrays.

    Their shapes are (draws,) or (draws, layers).

    Args:
        rows: all rows, with the rows of a cell next to each other.
        starts: the index of each cell's first row, followed by the number of rows.
        stacks: the network of each cell.
    """
    arrays: list[dict[str, Floats]] = [{} for _ in stacks]
    ends = list(zip(starts[:-1], starts[1:], strict=True))
    for name in (name for name in QUANTITIES if name in rows.column_names):
        column = rows[name].combine_chunks()
        flat = column.flatten() if QUANTITIES[name].per_layer else column.drop_null()
        numbers = flat.to_numpy(zero_copy_only=False)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        lengths = column.value_lengths().fill_null(0).to_numpy() if QUANTITIES[name].per_layer else valid
        known, places = (np.concatenate([[0], np.cumsum(count)]) for count in (valid, lengths))
        for values, (first, end), stack in zip(arrays, ends, stacks, strict=True):
            if known[end] - known[first] == end - first:
                entries = numbers[places[first] : places[end]]
                depth = (stack.encoder_depth if QUANTITIES[name].of_encoder else 0) or stack.depth
                values[name] = entries.reshape(-1, depth) if QUANTITIES[name].per_layer else entries
    return arrays


def layer_frame(draws: "pd.DataFrame", values: Mapping[str, tuple[Floats, NDArray[np.bool_]]]) -> "pd.DataFrame":
    """Return a data frame with one row for each random network and layer, and one column for each quantity.

    Layer 0 is for the whole network.

    Args:
        draws: one row per draw, whose columns are repeated; `depth` is the number of layers, and `encoder_depth` the
            encoder's number of layers if it differs.
        values: for each quantity its numbers, draw by draw and layer by layer, and a mask of the draws that have them.
    """
    import pandas as pd  # late: workers do without it, and it takes a third of a second to load

    depth = draws["depth"].to_numpy()
    other = draws["encoder_depth"].fillna(0).to_numpy(int) if "encoder_depth" in draws else 0  # not in older files
    of_encoder = np.where(other, other, depth)
    rows = np.maximum(depth, other) + 1
    index = np.repeat(np.arange(len(draws)), rows)
    layer = np.arange(len(index)) - np.repeat(np.cumsum(rows) - rows, rows)
    columns: dict[str, Any] = {name: draws[name].array.take(index) for name in draws.columns} | {"layer": layer}
    for name, (flat, known) in values.items():
        column = np.full(len(index), np.nan, dtype=flat.dtype)
        last = (of_encoder if QUANTITIES[name].of_encoder else depth)[index] if QUANTITIES[name].per_layer else 0
        column[(layer >= QUANTITIES[name].per_layer) & (layer <= last) & known[index]] = flat
        columns[name] = column
    return pd.DataFrame(columns)
