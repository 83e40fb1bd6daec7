"""A run folder's manifest, read without any library: a folder that is no run is said at once."""

import tomllib
from pathlib import Path
from typing import Any

FORMAT = 1
MANIFEST = "manifest.toml"


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a run's manifest.toml holds.

    Raises:
        ValueError: the folder holds no run, or one of another format.
    """
    try:
        manifest = tomllib.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"run must be a folder that `gradbounds sweep` wrote, but {str(folder)!r} has no readable {MANIFEST}."
        ) from error
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"run must have format {FORMAT}, but {str(folder)!r} has {manifest.get('format')!r}; sweep again into "
            "another folder."
        )
    return manifest
