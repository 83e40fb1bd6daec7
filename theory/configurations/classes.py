"""Default values of model classes in Hugging Face transformers, for fields that a configuration file leaves out.

They were measured with the classes themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from theory.stack.documents import parsed

FILE = Path(__file__).with_name("classes.json")


@dataclass(frozen=True, slots=True)
class ModelClass:
    """The default configuration and the measured initial weights of one model family in Hugging Face transformers.

    Attributes:
        name: name of the model's class.
        defaults: default values of the configuration's fields; None for a field whose value the class derives from
            others.
        names: alternative names of a field, such as `{"hidden_size": "n_embd"}`.
        rope: default parameters of the rotary positions; None if the class has no rotary positions.
        tied: whether the output matrix is the embedding matrix, if the file says false and if it says true.
        own_heads: whether `head_dim` sets a head width other than d/h.
        small: configuration fields of the small model that was built and measured.
        deviations: standard deviations of the entries of that model's matrices, by the names of this project.
        older: by version of transformers, the factors by which standard deviations of matrices are larger in that
            older version. Only matrices that differ are listed. The factor is sqrt(2 L), because older versions do
            not divide the matrices whose output is added to the residual stream.
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
        """The names of all fields that the configuration class of a model family knows."""
        return frozenset(self.defaults) | frozenset(self.names) | frozenset(self.names.values())


_TABLE: dict[str, Any] = parsed(FILE.read_bytes(), "JSON")

MEASURED: str = _TABLE["transformers"]
"""The version of transformers whose classes were measured."""

OLDER: tuple[str, ...] = tuple(_TABLE["older"])
"""Older versions of transformers that were compared with the measured one, the oldest first."""

OF_WORDS: dict[str, str] = _TABLE["words"]
"""The family of the language model in a model of several parts, by the `model_type` of the whole model.

It is used if the `text_config` has no `model_type` of its own.
"""

WITHOUT_WORDS: frozenset[str] = frozenset(_TABLE["without words"])
"""The `model_type` of models of several parts, including a `text_config`, that have no language model class."""

OTHER_TYPES: frozenset[str] = frozenset(_TABLE["other types"].split())
"""The `model_type` of every other class of the measured version of transformers."""

CLASSES: dict[str, ModelClass] = {
    name: ModelClass(**{**entry, "tied": tuple(entry["tied"])}) for name, entry in _TABLE["classes"].items()
}
"""The measured classes by `model_type`."""
