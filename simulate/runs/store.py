"""A run folder: Parquet files of sampled networks, the text windows that they used, and one TOML manifest.

    RUN/manifest.toml            what was asked, with which versions, where
    RUN/blocks/*.parquet         one row per draw: the fields of its Stack, block and draw, one column per quantity
    RUN/windows/*.parquet        word ids of the texts, so that a run can be predicted where the text is not

Every file is written whole or not at all. One process at a time may write into a folder.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simulate.runs.files import remove_temporaries, write_whole
from simulate.runs.manifests import FORMAT, MANIFEST, read_manifest, sealed
from simulate.runs.parquet import open_parquet, write_parquet
from simulate.runs.tables import (
    Block,
    block_rows,
    cell_of,
    marked,
    quantity_arrays,
    with_nulls,
)
from simulate.text import TextWindows
from theory.stack import Stack
from theory.stack.quantities import QUANTITIES

if TYPE_CHECKING:
    from simulate.runs.cell import Cell
    from simulate.runs.sample import Samples

_LOCK = ".lock"

Landed = tuple[str, int, int]
"""A saved block: cell name, root seed, block index."""


class Run:
    """A run folder on disk with sampled networks.

    `Run.open` opens one; `Run.create` makes or continues one.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self.request.get('command', 'no command')}, {len(self.landed())} blocks>"

    @property
    def request(self) -> dict[str, Any]:
        """The settings that another sweep must repeat to continue this run; empty if they were not saved."""
        return self.manifest.get("request", {})

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Open the run that is stored in a folder.

        Raises:
            ValueError: the folder is not a run, or has another format.
        """
        path = Path(folder)
        return cls(path, read_manifest(path))

    @classmethod
    def create(cls, folder: str | Path, manifest: Mapping[str, Any], *, replace: bool = False) -> "Run":
        """Create a run folder, or continue the run in the folder if it has the same settings (its `request`).

        Args:
            folder: the path of the run folder.
            manifest: the manifest; its `request` holds the command and everything that determines the numbers.
            replace: whether to delete the draws of an existing run of the same command, instead of continuing it.

        Raises:
            ValueError: the manifest has no request, or the folder contains something else, is in use, or cannot be
                written.
        """
        if not manifest.get("request"):
            raise ValueError(
                "manifest must have a `request`, which is needed to continue the run; "
                "gradbounds.sweep(cells, draws=..., seed=..., out=FOLDER) makes folder and manifest."
            )
        path = Path(folder)
        complete = {"format": FORMAT} | dict(manifest)
        is_run = (path / MANIFEST).exists()
        if not is_run and path.exists() and (not path.is_dir() or {p.name for p in path.iterdir()} - {_LOCK}):
            raise ValueError(
                f"out must be a new or empty folder, but {str(path)!r} is neither, nor a run with a {MANIFEST}."
            )
        if is_run:
            before = cls.open(path).manifest
            there, asked = cls(path, before).request, complete["request"]
            same = there == asked
            if not same and not (replace and there.get("command") == asked.get("command")):
                others = " and ".join(name for name in asked if there.get(name) != asked[name])
                raise ValueError(
                    f"out must be a new folder or one of the same command, but {str(path)!r} holds another run "
                    f"(other {others}); choose another folder."
                )
            if same:
                complete["sessions"] = [*before.get("sessions", []), *complete.get("sessions", [])]
        run = cls(path, complete)
        with run.hold():
            for sub in ("blocks", "windows") if replace else ():
                shutil.rmtree(path / sub, ignore_errors=True)
            write_whole(path / MANIFEST, sealed(complete))
        return run

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the run folder, so that only this process writes into it.

        The lock lasts within a `with` block or until the process ends.

        Raises:
            ValueError: another process holds the lock, or the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / _LOCK, timeout=0)
            lock.acquire()
        except filelock.Timeout:
            raise ValueError(
                f"out must not be in use, but another process writes to {str(self.folder)!r}; wait for it, or choose "
                "another folder."
            ) from None
        except OSError as error:
            raise ValueError(f"out must be writable, but {str(self.folder)!r} is not: {error.strerror}.") from error
        try:
            for sub in ("", "blocks", "windows"):
                remove_temporaries(self.folder / sub)
            yield
        finally:
            lock.release()

    def append(self, blocks: Sequence[Block]) -> None:
        """Save sampled blocks in one new file of the run folder.

        The name has the file's number and a digest of its bytes.

        Raises:
            ValueError: the folder is gone, or the file cannot be written.
        """
        if blocks:
            self.check_there()
            folder = self.folder / "blocks"
            write_parquet(folder, f"{next_number(folder):06}", marked(block_rows(blocks)))

    def check_there(self) -> None:
        """Raise an error if the run folder was deleted or moved while a sweep writes to it.

        Raises:
            ValueError: the folder's manifest is gone.
        """
        if not (self.folder / MANIFEST).exists():
            raise ValueError(
                f"out must not be moved while a sweep writes to it, but {str(self.folder)!r} was deleted or moved "
                f"(it has no {MANIFEST}), and unsaved draws are lost; run the command again."
            )

    def landed(self, cells: "Sequence[Cell]" = ()) -> set[Landed]:
        """Return the blocks that are already saved, as a set of (cell name, root seed, block index).

        Args:
            cells: networks whose blocks must have all their draws.

        Raises:
            ValueError: a file is damaged or not from a sweep, a draw is stored twice, or a block lacks draws.
        """
        sizes = {cell.name: cell.draws_per_block for cell in cells}
        return {block for file, rows in self._held([*KEY, "block"]) for block in check_whole_blocks(file, rows, sizes)}

    def samples(self) -> "list[Samples]":
        """Load all sampled networks of the run, as one `Samples` object for each configuration.

        They are sorted by the fields of their Stack.

        Draws of the same cell with several seeds are independent, and are merged.

        Raises:
            ValueError: the run has no draws or is a training run, a file is damaged or not from a sweep, a draw is
                stored twice, a block lacks draws, or a cell is from a later version.
        """
        from simulate.runs.sample import Samples  # late: it loads torch

        tables = self._held(None)
        if not tables:
            raise ValueError(f"run must hold draws, but {str(self.folder)!r} has none; sweep into it first.")
        table = self._sampled(pa.concat_tables([rows for _, rows in tables], promote_options="permissive"))
        table = table.sort_by([(name, "ascending") for name in ("cell", "seed", "draw")])
        names = table["cell"].to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist(), len(names)]
        constants = [name for name in table.column_names if name not in QUANTITIES]
        described = [cell_of(row, self._windows) for row in table.select(constants).take(starts[:-1]).to_pylist()]
        sizes = {cell.name: cell.draws_per_block for cell in described}
        for file, part in tables:
            check_whole_blocks(file, part, sizes)
        values = quantity_arrays(table, starts, [cell.stack for cell in described])
        seeds = np.split(table["seed"].to_numpy(), starts[1:-1])
        cells = [Samples(*parts) for parts in zip(described, seeds, values, strict=True)]
        # None, which some fields may be, comes before all values.
        return sorted(cells, key=lambda s: (s.cell.text is not None, [(v is not None, v) for v in astuple(s.stack)]))

    def _sampled(self, rows: pa.Table) -> pa.Table:
        """Return rows unchanged after checking that they are of networks at initialization.

        Raises:
            ValueError: the rows contain several training steps.
        """
        if "loss" in rows.column_names and pa.types.is_list(rows.schema.field("loss").type):
            raise ValueError(
                f"run must be of networks at initialization, but {str(self.folder)!r} is one of the study "
                "training, which reads it: python -m studies training in a checkout."
            )
        return rows

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of each file of sampled networks as an Arrow table, in the order in which files were saved.

        Raises:
            ValueError: a file is damaged or not from a sweep, or a draw is stored twice. All files are checked before
                the first table is yielded.
        """
        files = self.files()
        check_distinct(files, tables_of(files, KEY))
        yield from (readable(lambda f=file: rows_of(f, columns), file) for file in files)

    def _held(self, columns: list[str] | None) -> list[tuple[Path, pa.Table]]:
        """Read all files of draws once, and return each with its table; `columns` includes `KEY`, or is None for all.

        Raises:
            ValueError: a file is damaged or not from a sweep, or a draw is stored twice.
        """
        files = self.files()
        tables = tables_of(files, columns)
        check_distinct(files, tables)
        return list(zip(files, tables, strict=True))

    def files(self) -> list[Path]:
        """Return the paths of the run's files of sampled networks, in the order in which they were saved.

        Raises:
            ValueError: a file's name is not one that a sweep gives; it may be a copy.
        """
        return block_files(self.folder / "blocks")

    def _parquet(self, sub: str) -> list[Path]:
        return sorted((self.folder / sub).glob("*.parquet"))

    def _windows_file(self, digest: str, stack: Stack) -> Path | None:
        """Return the path of a text's saved windows, or None; earlier versions had no digest of bytes in the name."""
        stem = _windows_stem(digest, stack)
        return next((file for file in self._parquet("windows") if f"{file.stem}-".startswith(f"{stem}-")), None)

    def keep_windows(self, cells: "Iterable[Cell]") -> None:
        """Save the windows of text that configurations use, unless they are already saved.

        They are saved once for each text, number of tokens and vocabulary.
        """
        for cell in cells:
            if cell.text is None or self._windows_file(cell.text.digest, cell.stack):
                continue
            about = {"digest": cell.text.digest, "source": cell.text.source}
            table = pa.table({"ids": pa.array(list(cell.text.ids))}, metadata=about)
            write_parquet(self.folder / "windows", _windows_stem(cell.text.digest, cell.stack), table)

    def _windows(self, digest: str, stack: Stack) -> TextWindows:
        file = self._windows_file(digest, stack)
        if file is None:
            gone = self.folder / "windows" / f"{_windows_stem(digest, stack)}-*.parquet"
            raise ValueError(
                f"run must hold the windows of its texts, but {str(gone)!r} is missing; the same sweep writes it again."
            )
        return readable(lambda: _windows_of(file, digest, stack.tokens), file)


def _windows_stem(digest: str, stack: Stack) -> str:
    return f"{digest[:16]}-n{stack.tokens}-V{stack.vocab}"


def _windows_of(file: Path, digest: str, tokens: int) -> TextWindows:
    table = open_parquet(file).read()
    ids = table["ids"].combine_chunks().flatten().to_numpy().reshape(-1, tokens + 1)
    return TextWindows(ids=ids, digest=digest, source=table.schema.metadata[b"source"].decode())


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
