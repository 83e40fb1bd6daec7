"""Write and read the Parquet files of a run folder, and detect damage to them.

Each page has a checksum, which other readers verify too. The names of columns are stored between the pages, so a file
also has the SHA-256 of all its bytes at the end of its name. Files of earlier versions have neither.
"""

import hashlib
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simulate.runs.files import write_whole

_DIGEST = re.compile(r".+-([0-9a-f]{32})\.parquet")


def write_parquet(folder: Path, stem: str, table: pa.Table) -> None:
    """Write a table as `stem-DIGEST.parquet` into a folder atomically.

    Raises:
        ValueError: the file cannot be written.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    write_whole(folder / f"{stem}-{hashlib.sha256(content).hexdigest()[:32]}.parquet", content)


def open_parquet(file: Path) -> pq.ParquetFile:
    """Open a Parquet file after checking its bytes against the digest in its name.

    Raises:
        OSError: the file cannot be read, or has other bytes.
        ArrowException: it is no Parquet file.
    """
    content = file.read_bytes()
    digest = _DIGEST.fullmatch(file.name)
    if digest and hashlib.sha256(content).hexdigest()[:32] != digest[1]:
        raise OSError("its bytes are not those that were written")
    return pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)


def has_checksum(file: Path) -> bool:
    """Whether a file has checksums, which files of earlier versions lack."""
    return _DIGEST.fullmatch(file.name) is not None
