"""A sweep's flags: every field of Stack, each with several values."""

from collections.abc import Iterator
from dataclasses import field, fields, make_dataclass
from itertools import product
from types import GenericAlias
from typing import Annotated, Any, Literal

import tyro

from theory import Stack

# Values that follow the width, by field and word.
_TIED = {
    "vocab": {"width": lambda width: width},
    "output_scale": {"sqrt-width": lambda width: width**0.5},
}
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "placement": ("post", "pre"),
    "width": (64, 128, 256),
    "depth": (2, 4, 8),
    "vocab": ("width",),
}


def _flag(f: Any) -> tuple[str, Any, Any]:
    words = _TIED.get(f.name, {})
    kind: Any = f.type | Literal[tuple(words)] if words else f.type
    said = f.metadata["help"] + (f"; {' or '.join(map(repr, words))} follows the width" if words else "")
    return (
        f.name,
        Annotated[GenericAlias(tuple, (kind, ...)), tyro.conf.arg(help=said)],
        field(default=_DEFAULTS.get(f.name, (f.default,))),
    )


Grid = make_dataclass("Grid", [_flag(f) for f in fields(Stack)], frozen=True, kw_only=True)
Grid.__doc__ = "The product of the values given for each field of the Stack."


def stacks(grid: Any) -> Iterator[Stack]:
    """Every Stack of a grid.

    Raises:
        ValueError: a field without values, or a Stack that makes no sense.
    """
    names = [f.name for f in fields(Stack)]
    values = [getattr(grid, name) for name in names]
    for name, given in zip(names, values, strict=True):
        if not given:
            raise ValueError(f"{name} must have at least one value, got none.")
    for combination in product(*values):
        chosen = dict(zip(names, combination, strict=True))
        for name, words in _TIED.items():
            if chosen[name] in words:
                chosen[name] = words[chosen[name]](chosen["width"])
        yield Stack(**chosen)
