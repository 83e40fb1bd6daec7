"""Tables of named choices, to which users and installed packages can add entries.

Entry points of the group `gradbounds` name a module, or a function without arguments, that makes the registering
calls. They are loaded once in a process, when a name that is in no table is looked up.
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

SYNONYMS = {
    **dict.fromkeys(("seq_len", "seq_length", "sequence_length", "max_seq_len", "block_size"), "tokens"),
    "batch_size": "batch", "lr": "learning_rate", "llmc": "nanogpt", "llm.c": "nanogpt",
}  # fmt: skip
"""Fields and flags by their usual names in other codes; llm.c initializes GPT-2 as nanoGPT does."""

Entry = TypeVar("Entry")


def nearest(unknown: str | Iterable[str], known: Iterable[str]) -> str:
    """Return a question with the known name most similar to an unknown one, such as " Did you mean width?".

    The question is "" if no name is similar.

    For gated MLPs with a name of their own, such as SwiGLU, the text lists the fields that describe them.

    Args:
        unknown: the unknown name, or several of them.
        known: the known names.

    >>> nearest("Preln", ["post", "pre"]), nearest("sideways", ["post", "pre"])
    (' Did you mean pre?', '')
    >>> nearest("SwiGLU", ["plain", "gated"])
    ' SwiGLU is ffn gated with activation silu.'
    """
    spelled = {name.lower(): name for name in map(str, known)}
    for name in [unknown] if isinstance(unknown, str) else sorted(map(str, unknown)):
        if name.lower() in _UNITS:
            return _UNITS[name.lower()]
        word = SYNONYMS.get(name.lower(), name.lower())
        if len(name) <= _LONG and (close := get_close_matches(word, spelled, n=1, cutoff=_NEAR)):
            return f" Did you mean {spelled[close[0]]}?"
    return ""


class Table(dict[str, Entry]):
    """A dictionary of the built-in and registered values of one network field, such as the activation.

    Attributes:
        field: the field of `Stack`, or another noun for the names; error messages use it.
        versions: versions of the registered entries, by name; built-in entries have none.
        installed: names registered by an entry point; every process in the same environment finds them automatically.
    """

    def __init__(self, field: str, builtin: Mapping[str, Entry]) -> None:
        super().__init__(builtin)
        self.field = field
        self.versions: dict[str, str] = {}
        self.installed: set[str] = set()

    def __missing__(self, name: str) -> Entry:
        """Return the entry of a name that is not in the table yet, if an entry point registers it.

        Raises:
            ValueError: no entry point registers the name.
        """
        if not self.knows(name):
            raise ValueError(
                f"{self.field} must be one of {', '.join(map(repr, self))}, got {name!r}."
                f"{nearest(name, self)}{failures()}"
            )
        return self[name]

    def knows(self, name: str) -> bool:
        """Return whether a table has an entry of a given name, after loading entry points if necessary."""
        if name not in self:
            load_entry_points()
        return name in self

    def register(self, name: str, entry: Entry, version: str = "1") -> None:
        """Add an entry under a name to the table; repeating the same registration has no effect.

        Args:
            name: name of the entry.
            entry: the entry.
            version: version of the entry; change it when the same name means something new.

        Raises:
            ValueError: the name or the version is not allowed, or the name already has another entry.
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
    """The state of loading entry points: whether they were loaded, and error messages of those that failed."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.loaded = self.loading = False
        self.failures: list[str] = []


_POINTS = _EntryPoints()


def load_entry_points() -> None:
    """Load the entry points of installed packages once, and collect the error messages of those that fail.

    `failures` returns the messages.
    """
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
    """Return the error messages of installed packages' entry points that failed to load.

    The error about a missing name ends with them.
    """
    return "".join(f" {failure}." for failure in _POINTS.failures)


def _equal(first: object, second: object) -> bool:
    """Return whether two entries are the same.

    Functions are the same if they are defined at the same place with the same code, because a module may run twice.
    """
    if is_dataclass(first) and type(first) is type(second):
        return all(_equal(getattr(first, f.name), getattr(second, f.name)) for f in fields(first))
    if isinstance(first, FunctionType) and isinstance(second, FunctionType):
        same_place = (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)
        same_code = first.__code__ == second.__code__ and first.__defaults__ == second.__defaults__
        return first is second or (same_place and same_code and not first.__closure__ and not second.__closure__)
    return first is second or bool(first == second)
