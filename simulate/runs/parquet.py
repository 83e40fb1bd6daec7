"""Write and read the Parquet files of a run folder with checksums, so that damage is noticed.

Each page has a checksum, which other readers verify too. Page checksums do not cover the column names, so the file's
name also ends with the SHA-256 of all its bytes. Files of earlier versions have neither.
"""

import hashlib
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simulate.runs.files import write_whole

_DIGEST = re.compile(r".+-([0-9a-f]{32})\.parquet")


def write_parquet(folder: Path, stem: str, table: pa.Table) -> None:
    """Write a table into a folder as a Parquet file whose name ends with a digest of its bytes.

    The name is `stem-DIGEST.parquet`, and the file is written completely or not at all.

    Raises:
        ValueError: the file cannot be written.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    write_whole(folder / f"{stem}-{hashlib.sha256(content).hexdigest()[:32]}.parquet", content)


def open_parquet(file: Path) -> pq.ParquetFile:
    """Open a Parquet file after a check that its bytes match the digest in its name.

    Raises:
        OSError: the file cannot be read, or its bytes do not match the digest.
        ArrowException: the file is not a Parquet file.
    """
    content = file.read_bytes()
    digest = _DIGEST.fullmatch(file.name)
    if digest and hashlib.sha256(content).hexdigest()[:32] != digest[1]:
        raise OSError("its bytes are not those that were written")
    return pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
