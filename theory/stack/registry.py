"""Tables of names that users may add to: by a call, or by an entry point of a package that is installed.

Entry points of the group `gradbounds` name a module, or a function without arguments, that makes the calls. They are
loaded when a name is looked up that no table has, once for a process.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from threading import RLock
from types import FunctionType
from typing import TypeVar

GROUP = "gradbounds"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9_.+-]+")

# Letters from which on nothing is a misspelled name: comparing costs their square.
_LONG = 100
# As much of two names must be alike: T9 and T1 are half.
_NEAR = 0.5

# What has a name of its own in other codes, and is several fields here.
_UNITS = {
    title.lower(): f" {title} is ffn gated with activation {activation}."
    for title, activation in (("SwiGLU", "silu"), ("GEGLU", "gelu"), ("ReGLU", "relu"))
}

Entry = TypeVar("Entry")


def nearest(unknown: str | Iterable[str], known: Iterable[str]) -> str:
    """A question after the known name nearest to an unknown one, such as " Did you mean width?"; "" if none is near.

    Of units that other codes have a name for, the fields that make them.

    >>> nearest("Preln", ["post", "pre"]), nearest("sideways", ["post", "pre"])
    (' Did you mean pre?', '')
    >>> nearest("SwiGLU", ["plain", "gated"])
    ' SwiGLU is ffn gated with activation silu.'
    """
    spelled = {name.lower(): name for name in map(str, known)}
    for name in [unknown] if isinstance(unknown, str) else sorted(map(str, unknown)):
        if name.lower() in _UNITS:
            return _UNITS[name.lower()]
        if len(name) <= _LONG and (close := get_close_matches(name.lower(), spelled, n=1, cutoff=_NEAR)):
            return f" Did you mean {spelled[close[0]]}?"
    return ""


class Table(dict[str, Entry]):
    """The entries of a named field: built-in ones, and those that were registered.

    Attributes:
        field: the field of `Stack`, or another noun for the names.
        versions: versions of the registered entries, by name.
        installed: names that an entry point registered; every process of the same environment finds them by itself.
    """

    def __init__(self, field: str, builtin: Mapping[str, Entry]) -> None:
        super().__init__(builtin)
        self.field = field
        self.versions: dict[str, str] = {}
        self.installed: set[str] = set()

    def __missing__(self, name: str) -> Entry:
        """The entry of a name that the table lacks, if an entry point registers it.

        Raises:
            ValueError: none does.
        """
        if not self.knows(name):
            raise ValueError(
                f"{self.field} must be one of {', '.join(map(repr, self))}, got {name!r}."
                f"{nearest(name, self)}{failures()}"
            )
        return self[name]

    def knows(self, name: str) -> bool:
        """Whether there is an entry of that name, or an entry point registers one now."""
        if name not in self:
            load_entry_points()
        return name in self

    def register(self, name: str, entry: Entry, version: str = "1") -> None:
        """Add an entry; what is there already under the same name and version, and is equal, stays.

        Raises:
            ValueError: the name or the version cannot be one, or the name stands for something else.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{self.field} must have a name of letters, digits, '_', '.' and '-' that begins with a letter, "
                f"got {name!r}."
            )
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise ValueError(
                f"version of {self.field} {name!r} must be text of letters, digits, '_', '.', '+' and '-', "
                f"got {version!r}."
            )
        if name not in self:
            self[name] = entry
            self.versions[name] = version
            if _POINTS.loading:
                self.installed.add(name)
        elif name not in self.versions:
            raise ValueError(f"{self.field} must have a new name, got {name!r}, which is built in.")
        elif self.versions[name] != version or not _equal(self[name], entry):
            raise ValueError(
                f"{self.field} must have a new name, got {name!r}, which already names something else (version "
                f"{self.versions[name]!r}); take another name, or start Python anew."
            )


class _EntryPoints:
    """Whether entry points were loaded, and which could not be."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.loaded = self.loading = False
        self.failures: list[str] = []


_POINTS = _EntryPoints()


def load_entry_points() -> None:
    """Let installed packages register what they have, once; one that fails is named by the error of a missing name."""
    with _POINTS.lock:
        if _POINTS.loaded:
            return
        from importlib.metadata import entry_points  # slow to load, and seldom needed

        # Before the loop: a module that registers may look up a name itself.
        _POINTS.loaded = _POINTS.loading = True
        try:
            for point in entry_points(group=GROUP):
                try:
                    loaded = point.load()
                    if callable(loaded):
                        loaded()
                except Exception as error:  # somebody else's code, whose error must not stop other names
                    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                    _POINTS.failures.append(f"Entry point {point.name!r} ({point.value}) could not be loaded: {reason}")
        finally:
            _POINTS.loading = False


def failures() -> str:
    """Return the entry points that could not be loaded, as text for the error about a missing name."""
    return "".join(f" {failure}." for failure in _POINTS.failures)


def _equal(first: object, second: object) -> bool:
    """Whether two entries are the same, functions by where they are defined: a module may be run twice."""
    if is_dataclass(first) and type(first) is type(second):
        return all(_equal(getattr(first, f.name), getattr(second, f.name)) for f in fields(first))
    if isinstance(first, FunctionType) and isinstance(second, FunctionType):
        same_place = (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)
        same_code = first.__code__ == second.__code__ and first.__defaults__ == second.__defaults__
        return first is second or (same_place and same_code and not first.__closure__ and not second.__closure__)
    return first is second or bool(first == second)
