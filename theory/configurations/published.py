"""Published models by name, for those who have no file at hand."""

from pathlib import Path
from typing import Any

from theory.stack.documents import parsed
from theory.stack.registry import nearest

PUBLISHED: dict[str, dict[str, Any]] = parsed(Path(__file__).with_name("published.toml").read_bytes(), "TOML")
"""The fields of each one's configuration."""


def published(name: str) -> dict[str, Any]:
    """The configuration of a published model.

    Raises:
        ValueError: it is not known; the message has those that are.

    >>> published("llama-3-8b")["num_key_value_heads"]
    8
    """
    if name in PUBLISHED:
        return dict(PUBLISHED[name])
    raise ValueError(f"like must be one of {', '.join(PUBLISHED)}, got {name!r}.{nearest(name, PUBLISHED)}")
