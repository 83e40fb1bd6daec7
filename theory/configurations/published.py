"""Published models by name, for those who have no file at hand."""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

PUBLISHED: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
)
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
    close = get_close_matches(name, PUBLISHED, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ValueError(f"like must be one of {', '.join(PUBLISHED)}, got {name!r}.{hint}")
