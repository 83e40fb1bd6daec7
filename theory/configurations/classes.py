"""Measured defaults of model classes in Hugging Face transformers, for fields that a file does not set."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from theory.stack.documents import parsed

FILE = Path(__file__).with_name("classes.json")


@dataclass(frozen=True, slots=True)
class ModelClass:
    """One family's classes, of a configuration and of a model.

    Attributes:
        name: of the model's class.
        defaults: of the configuration's fields; None where it makes the value of others.
        names: other names of a field, as `{"hidden_size": "n_embd"}`.
        rope: the parameters of its rotary positions by default; None if it has none.
        tied: whether the output matrix is the embeddings', if the file says false and if it says true.
        own_heads: whether `head_dim` makes its heads of another width than d/h.
        small: the fields with which the class was built.
        deviations: of the entries of its matrices then, by our names of them.
        older: how many times as large deviations are in an older version of the library, by version; of those that
            differ, which is by sqrt(2 L), as without the division of what is added to the stream.
    """

    name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    rope: Mapping[str, Any] | None = None
    tied: tuple[bool, bool] = (False, True)
    own_heads: bool = False
    small: Mapping[str, Any] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    older: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[str]:
        """All names that the configuration's class knows."""
        return frozenset(self.defaults) | frozenset(self.names) | frozenset(self.names.values())


_TABLE: dict[str, Any] = parsed(FILE.read_bytes(), "JSON")

MEASURED: str = _TABLE["transformers"]
"""The version of transformers whose classes these are."""

OLDER: tuple[str, ...] = tuple(_TABLE["older"])
"""Older versions that were compared with it, the oldest first."""

OF_WORDS: dict[str, str] = _TABLE["words"]
"""The family of a model's words where its `text_config` does not say it, by the `model_type` of the whole."""

WITHOUT_WORDS: frozenset[str] = frozenset(_TABLE["without words"])
"""Models of several parts, a `text_config` among them, of which no class predicts words, by `model_type`."""

OTHER_TYPES: frozenset[str] = frozenset(_TABLE["other types"].split())
"""The `model_type` of every other class of that version."""

CLASSES: dict[str, ModelClass] = {
    name: ModelClass(**{**entry, "tied": tuple(entry["tied"])}) for name, entry in _TABLE["classes"].items()
}
"""By `model_type`."""
