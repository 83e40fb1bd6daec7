"""A run folder's manifest, read without torch: a folder that is no run is said at once."""

from pathlib import Path
from typing import Any

from theory.stack.documents import read_document

FORMAT = 1
MANIFEST = "manifest.toml"

# What is read of it, where it is there.
_KINDS: dict[str, type] = {
    "request": dict,
    "recipe": dict,
    "target": dict,
    "sessions": list,
    "networks": list,
    "cells": int,
    "draws": int,
}
# Of a session.
_WORDS = ("started", "command")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a run's manifest.toml holds.

    Raises:
        ValueError: the folder holds no run, or one of another format.
    """
    try:
        manifest: dict[str, Any] = read_document(folder / MANIFEST, MANIFEST, "TOML")
    except ValueError as error:
        raise ValueError(
            f"run must be a folder that `gradbounds sweep` wrote, but {str(folder)!r} has no readable {MANIFEST}."
        ) from error
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"run must have format {FORMAT}, but {str(folder)!r} has {manifest.get('format')!r}; sweep again into "
            "another folder."
        )
    wrong = [name for name, kind in _KINDS.items() if type(manifest.get(name, kind())) is not kind]
    tables = {name: manifest.get(name, []) for name, kind in _KINDS.items() if kind is list}
    wrong = wrong or [name for name, entries in tables.items() if not all(isinstance(entry, dict) for entry in entries)]
    wrong = wrong or [name for name, kind in _KINDS.items() if kind is int and manifest.get(name, 0) < 0]
    if not wrong and not all(
        isinstance(at.get(name, ""), str) for at in manifest.get("sessions", []) for name in _WORDS
    ):
        wrong = ["sessions"]
    if wrong:
        raise ValueError(
            f"run must have its {MANIFEST} as it was written, but {str(folder / MANIFEST)!r} has {wrong[0]} of another "
            "kind."
        )
    return manifest
