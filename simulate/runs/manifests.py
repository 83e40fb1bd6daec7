"""Read the manifest of a run folder, without importing torch, and report clear errors for other folders."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

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

_DIGEST = re.compile(rb'digest = "([0-9a-f]{64})"\n')


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as TOML text, with the SHA-256 digest of its content in the first line."""
    content = tomli_w.dumps(manifest).encode()
    return f'digest = "{hashlib.sha256(content).hexdigest()}"\n'.encode() + content


def check_seal(path: Path) -> None:
    """Check that a run's manifest has not been changed since it was written.

    Manifests of earlier versions have no digest.

    Raises:
        ValueError: the digest in the first line does not match the content.
    """
    content = path.read_bytes() if path.is_file() else b""
    digest = _DIGEST.match(content)
    if digest and hashlib.sha256(content[digest.end() :]).hexdigest().encode() != digest[1]:
        raise ValueError(
            f"run must have its {MANIFEST} as it was written, but {str(path)!r} was changed or is damaged; if it "
            "was changed on purpose, remove its first line."
        )


# Commands that left the package.
_STUDIED = {"train": "training", "hessian": "hessian", "reproduce": "fig3, warmup or bert"}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest (manifest.toml) of a run folder.

    Raises:
        ValueError: the folder is not a run, has another format, or has a changed manifest.
    """
    try:
        manifest: dict[str, Any] = read_document(folder / MANIFEST, MANIFEST, "TOML")
    except ValueError as error:
        raise ValueError(
            f"run must be a folder that `gradbounds sweep` wrote, but {str(folder)!r} has no readable {MANIFEST}."
        ) from error
    check_seal(folder / MANIFEST)
    manifest.pop("digest", None)
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


def check_sampled(folder: Path) -> None:
    """Check that a folder is a run of sampled networks, not a folder that a study wrote.

    Raises:
        ValueError: the folder is not a run, or was written by a study.
    """
    check_no_study(folder)
    read_manifest(folder)


def check_no_study(folder: Path) -> None:
    """Raise an error if a study wrote the folder.

    Raises:
        ValueError: a study wrote the folder.
    """
    if study := _study(folder):
        raise ValueError(
            f"run must be of sampled networks, but {str(folder)!r} is read by python -m studies {study} in a checkout "
            "of gradbounds."
        )


def _study(folder: Path) -> str:
    try:
        if (folder / MANIFEST).exists():
            return _STUDIED.get(str(read_manifest(folder).get("request", {}).get("command")), "")
        command = read_document(folder / "verdicts.json", "verdicts", "JSON", finite=False)["command"].split()
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    if command[:3] == ["python", "-m", "studies"]:
        return " ".join(command[3:4])
    return _STUDIED.get(" ".join(command[1:2]), "") if command[:1] == ["gradbounds"] else ""
