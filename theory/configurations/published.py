"""The configurations of published models by name, for users who do not have the configuration file."""

from pathlib import Path
from typing import Any

from theory.stack.documents import parsed
from theory.stack.registry import nearest

PUBLISHED: dict[str, dict[str, Any]] = parsed(Path(__file__).with_name("published.toml").read_bytes(), "TOML")
"""The fields of each published model's configuration, by name of the model."""


def published(name: str) -> dict[str, Any]:
    """Return the fields of a published model's configuration file (`config.json`), from the model's name.

    Raises:
        ValueError: the name is not known; the message lists the known names.

    >>> published("llama-3-8b")["num_key_value_heads"]
    8
    """
    if name in PUBLISHED:
        return dict(PUBLISHED[name])
    raise ValueError(f"like must be one of {', '.join(PUBLISHED)}, got {name!r}.{nearest(name, PUBLISHED)}")
