"""Designs of runs by name or file: a study's presets are TOML files in its folder `presets`."""

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from theory.stack.documents import content_of

Design = TypeVar("Design")


def named(preset: str, study: str, read: Callable[[str | bytes], Design], what: str) -> Design:
    """The design of a preset or a file.

    Args:
        preset: a name of one of the study's presets, or a path.
        study: the package of the study.
        read: makes the design of TOML; its errors say what is wrong.
        what: what a design is called, for the message.

    Raises:
        ValueError: there is none of that name, or it is no design.
    """
    folder = resources.files(study) / "presets"
    names = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir())
    if preset in names:
        return read((folder / f"{preset}.toml").read_bytes())
    if not Path(preset).is_file():
        raise ValueError(f"preset must be {' or '.join(names)}, or a TOML file, got {preset!r}.")
    try:
        return read(content_of(preset, "preset", "a readable TOML file"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"preset {preset!r} must be a {what} of runs, but is none: {error}") from error


def check_keys(name: str, given: Any, needed: set[str], allowed: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Refuse a table that lacks a key, or has another.

    Raises:
        ValueError: it does.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} must be a table, got {given!r}.")
    if missing := sorted(needed - set(given)):
        raise ValueError(f"{name} must have {', '.join(missing)}.")
    if unknown := sorted(set(given) - needed - allowed):
        raise ValueError(f"{name} has no {', '.join(unknown)}; it has {', '.join(sorted(needed | allowed))}.")
