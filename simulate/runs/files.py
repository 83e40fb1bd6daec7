"""Write files completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file under a temporary name; rename the file at the end, or remove it after an error.

    Raises:
        ValueError: the path cannot be written, is a device, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # which a rename would put a file in the place of
            raise ValueError(f"out must be a file, but {str(path)!r} is a device or a pipe.")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"out must be writable, but {str(path)!r} is not: {error.strerror}. Files written before are kept; run the "
            "same command again when there is space or permission."
        ) from error


def check_place(folder: Path) -> None:
    """Check that a folder can be written, without leaving any file in it.

    Raises:
        ValueError: the folder cannot be written.
    """
    missing: list[Path] = []
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"out must be writable, but {str(folder)!r} is not: {reason}.") from error
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, and create its folder if necessary.

    Raises:
        ValueError: the path cannot be written, or the disk is full.
    """
    with whole_file(path) as file:
        file.write(content)


def remove_temporaries(folder: Path) -> None:
    """Remove the unfinished files of a killed process from a folder.

    Only the folder's one writer may do this.
    """
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
