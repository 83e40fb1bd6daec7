"""A run folder: Parquet files of draws, the windows of text they used, and one TOML manifest.

    RUN/manifest.toml            what was asked, with which versions, where
    RUN/blocks/*.parquet         one row per draw: the fields of its Stack, block and draw, one column per quantity
    RUN/windows/*.parquet        word ids of the texts, so that a run can be predicted where the text is not

Every file is written whole or not at all: temporary name, fsync, rename.
"""

import hashlib
import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from numpy.typing import NDArray

from simulate.cell import Cell
from simulate.sample import Samples
from simulate.text import TextWindows
from theory.quantities import QUANTITIES
from theory.stack import Stack

FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The draws of one block of a cell, by quantity name."""

    cell: Cell
    seed: int
    index: int
    values: Mapping[str, NDArray[np.floating]]


class Run:
    """A run folder on disk. Open one with `Run.open`, make or continue one with `Run.create`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """The run in a folder.

        Raises:
            ValueError: the folder holds no run, or one of another format.
        """
        path = Path(folder)
        try:
            manifest = tomllib.loads((path / "manifest.toml").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(
                f"run must be a folder that `gradbounds sweep` wrote, but {str(path)!r} has no readable manifest.toml."
            ) from error
        if manifest.get("format") != FORMAT:
            raise ValueError(
                f"run must have format {FORMAT}, but {str(path)!r} has {manifest.get('format')!r}; sweep again into "
                "another folder."
            )
        return cls(path, manifest)

    @classmethod
    def create(cls, folder: str | Path, manifest: Mapping[str, Any], *, replace: bool = False) -> "Run":
        """A new run, or the one already there if it was asked for the same `request`.

        Args:
            folder: where.
            manifest: `request`, the command and what fixes its numbers, and anything else worth keeping.
            replace: start anew where a run of the same command is there, instead of continuing it.

        Raises:
            ValueError: the folder holds something else, or cannot be written.
        """
        path = Path(folder)
        complete = {"format": FORMAT} | dict(manifest)
        if (path / "manifest.toml").exists():
            there = cls.open(path).manifest.get("request", {})
            asked = complete["request"]
            if there != asked and not (replace and there.get("command") == asked.get("command")):
                raise ValueError(
                    f"out must be a new folder or one of the same command, but {str(path)!r} holds another run."
                )
            for sub in ("blocks", "windows") if replace else ():
                shutil.rmtree(path / sub, ignore_errors=True)
            write_whole(path / "manifest.toml", tomli_w.dumps(complete).encode())
            return cls(path, complete)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(f"out must be a new or empty folder, but {str(path)!r} is neither, nor a run.")
        write_whole(path / "manifest.toml", tomli_w.dumps(complete).encode())
        return cls(path, complete)

    def append(self, blocks: Sequence[Block]) -> None:
        """Land blocks in one new file; its name is a digest of what it holds."""
        if not blocks:
            return
        for cell in {block.cell.name: block.cell for block in blocks}.values():
            self._keep_windows(cell)
        label = ";".join(f"{b.cell.name}:{b.seed}:{b.index}" for b in blocks)
        table = pa.concat_tables([_table(block) for block in blocks], promote_options="default")
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        name = hashlib.sha256(label.encode()).hexdigest()[:16]
        write_whole(self.folder / "blocks" / f"{name}.parquet", sink.getvalue().to_pybytes())

    def landed(self) -> set[tuple[str, int]]:
        """The blocks on disk, as (cell name, block index)."""
        table = self._rows(["cell", "block"])
        if table is None:
            return set()
        pairs = table.group_by(["cell", "block"]).aggregate([])
        return set(zip(pairs["cell"].to_pylist(), pairs["block"].to_pylist(), strict=True))

    def samples(self) -> list[Samples]:
        """Every cell of the run with all its draws, in the order of their Stack's fields.

        Raises:
            ValueError: the run holds no draws yet, or a file is damaged.
        """
        table = self._rows(None)
        if table is None:
            raise ValueError(f"run must hold draws, but {str(self.folder)!r} has none; sweep into it first.")
        table = table.sort_by([("cell", "ascending"), ("draw", "ascending")])
        names = table["cell"].to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1), len(names)]
        cells = [self._samples(table.slice(a, b - a)) for a, b in zip(starts[:-1], starts[1:], strict=True)]
        return sorted(cells, key=lambda s: (s.cell.text is not None, astuple(s.stack)))

    def _rows(self, columns: list[str] | None) -> pa.Table | None:
        files = sorted((self.folder / "blocks").glob("*.parquet"))
        if not files:
            return None
        try:
            return pa.concat_tables([pq.read_table(file, columns=columns) for file in files], promote_options="default")
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"run {str(self.folder)!r} has a damaged file: {error}") from error

    def _samples(self, rows: pa.Table) -> Samples:
        first = rows.slice(0, 1).to_pylist()[0]
        stack = Stack(**{f.name: first[f.name] for f in fields(Stack)})
        text = self._windows(first["text"], stack) if first["text"] else None
        values: dict[str, NDArray[np.floating]] = {}
        for name, quantity in QUANTITIES.items():
            if name not in rows.column_names or first[name] is None:
                continue
            column = rows[name].combine_chunks()
            if quantity.per_layer:
                values[name] = column.flatten().to_numpy().reshape(len(column), stack.depth)
            else:
                values[name] = column.to_numpy()
        cell = Cell(stack, first["engine"], first["device"], first["dtype"], text)
        return Samples(cell, first["seed"], values)

    def _windows_file(self, digest: str, stack: Stack) -> Path:
        return self.folder / "windows" / f"{digest[:16]}-n{stack.tokens}-V{stack.vocab}.parquet"

    def _keep_windows(self, cell: Cell) -> None:
        if cell.text is None:
            return
        file = self._windows_file(cell.text.digest, cell.stack)
        if file.exists():
            return
        table = pa.table(
            {"ids": pa.array(list(cell.text.ids))}, metadata={"digest": cell.text.digest, "source": cell.text.source}
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        write_whole(file, sink.getvalue().to_pybytes())

    def _windows(self, digest: str, stack: Stack) -> TextWindows:
        file = self._windows_file(digest, stack)
        try:
            table = pq.read_table(file)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"run {str(self.folder)!r} lacks its windows of text {file.name}.") from error
        ids = table["ids"].combine_chunks().flatten().to_numpy().reshape(-1, stack.tokens + 1)
        return TextWindows(ids=ids, digest=digest, source=table.schema.metadata[b"source"].decode())


def _table(block: Block) -> pa.Table:
    draws = len(block.values["loss"])
    constants: dict[str, Any] = {"cell": block.cell.name} | asdict(block.cell.stack)
    constants |= {"engine": block.cell.engine, "device": block.cell.device_kind, "dtype": block.cell.dtype}
    constants |= {"text": block.cell.text.digest if block.cell.text else "", "seed": block.seed, "block": block.index}
    columns: dict[str, Any] = {name: pa.array([value] * draws) for name, value in constants.items()}
    columns["draw"] = pa.array(block.index * block.cell.draws_per_block + np.arange(draws))
    for name, value in block.values.items():
        flat = pa.array(np.ascontiguousarray(value).ravel())
        columns[name] = (
            flat if value.ndim == 1 else pa.ListArray.from_arrays(np.arange(draws + 1) * value.shape[1], flat)
        )
    return pa.table(columns)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, making its folder if needed.

    Raises:
        ValueError: the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"out must be a place that can be written, but {str(path)!r} cannot: {error.strerror}."
        ) from error
